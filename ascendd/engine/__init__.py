"""The engine: schedule, execute, update. One process a model; torch lives in the rooms that compute."""
