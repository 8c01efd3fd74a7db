"""Sampling: whether both engines were asked for and given the same parameters, and drew the same tokens."""
