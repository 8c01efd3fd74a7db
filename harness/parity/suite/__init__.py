"""The planted faults of parity, run and scored: which there are, what the judge made of each, how good that is."""
