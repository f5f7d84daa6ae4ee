"""How a step gets to the ranks that compute it, and how a rank that fails is told of."""
