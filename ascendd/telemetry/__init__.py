"""What the daemon tells: logs, metrics, and the two processes that carry them out."""
