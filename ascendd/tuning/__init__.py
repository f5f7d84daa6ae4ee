"""Self-tuning: pure policies that choose the batch from what the instance shows. Events in, decisions out."""
