"""One teachable file a family; no device and no rank inside."""
