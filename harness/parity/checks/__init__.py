"""The named checks: the eleven suspicions and the others, each a function of the facts with a verdict of its own."""
