"""What a human wrote (InstanceConfig), what the model says (ModelFacts), and all numbers final (EngineConfig)."""
