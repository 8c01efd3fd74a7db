"""Ranks: whether the ranks of a learner do together what a single process does."""
