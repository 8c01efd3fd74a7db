"""Families of causes: how each is recognised, proven, told apart from its rivals, named and fixed."""
