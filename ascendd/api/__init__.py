"""The OpenAI-compatible HTTP front of one instance: text in, token ids to the engine, text out."""
