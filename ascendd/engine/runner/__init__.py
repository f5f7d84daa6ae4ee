"""ModelRunner: from a SchedulerOutput to token ids. The only room of the engine that touches tensors each step."""
