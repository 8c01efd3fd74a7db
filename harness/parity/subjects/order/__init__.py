"""Order: whether every sample has its own response."""
