"""Prompts: whether each engine saw the token ids that it was sent."""
