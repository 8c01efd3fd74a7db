"""Log-probabilities: how far two sets for the same tokens are apart, and what removes the difference."""
