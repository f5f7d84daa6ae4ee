"""The paged KV cache: who owns which block. No torch here; the tensors live with the ModelRunner."""
