"""`harness nightly`: a matrix of comparisons, run every night and judged against the nights before."""

HISTORY = "runs/nightly/history.db"  # of all nights, where no other is named
