"""LoRA adapters (Hu et al., 2021): read from PEFT's folders, kept in host memory, given slots in the layers."""
