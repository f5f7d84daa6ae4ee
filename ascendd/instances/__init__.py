"""Instances of a host: their files, keys and drop-ins, and the chips that they share."""
