"""Families of causes: how each is recognised, proven and told from its rivals, and what to do about it."""
