"""The planted differences of parity, run and scored."""
