"""A run, a pair of runs or the evidence of a hang as one file, to hand over: docs/how-to/bundle.md."""
