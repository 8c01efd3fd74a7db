"""Control: nothing is patched; see truth."""
PATCH = {}
