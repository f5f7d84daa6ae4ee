"""Output held to a grammar: JSON schemas and regular expressions as masks over the vocabulary."""
