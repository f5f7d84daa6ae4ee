"""Probes of the host: read-only, stdlib only, frozen facts or a ProbeError."""
