"""The model on disk: reading checkpoints, converting them, and the per-rank artefact that the engine loads."""
