"""Warm engines: `harness up` starts them once, comparisons that fit use them, and `harness down` ends them."""
