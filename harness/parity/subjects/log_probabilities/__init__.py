"""Log-probabilities: how far two sets of numbers of the same tokens are apart, and what removes the difference."""
