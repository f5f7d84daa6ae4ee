"""Starts, watches and restarts the processes of one instance; no torch, aiohttp or prometheus_client here."""
