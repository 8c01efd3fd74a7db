"""Weights: whether an engine computes with the weights of its learner."""
