"""Groups of ranks and what passes between them inside a step."""
