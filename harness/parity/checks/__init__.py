"""Checks: the eleven suspicions and others, each a function of the evidence that confirms or rules out something."""
