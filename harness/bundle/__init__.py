"""Bundles: a run, a pair of runs or the evidence of a hang in one file that can be passed on. See
docs/how-to/bundle.md.
"""
