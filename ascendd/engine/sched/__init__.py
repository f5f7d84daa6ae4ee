"""Which sequences compute which tokens in the next step. Pure: no torch, no clock of its own, no process."""
