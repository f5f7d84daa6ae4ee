"""The keeper of a `vllm serve`: starts it in the engine's place, reads its log and metrics, and speaks for it."""
