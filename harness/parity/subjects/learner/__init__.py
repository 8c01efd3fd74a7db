"""Learner: whether both learners make the same of the same rollouts."""
