"""Control: nothing is wrong."""
PATCH = {}
