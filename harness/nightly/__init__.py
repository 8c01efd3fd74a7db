"""`harness nightly`: a matrix of comparisons that runs every night and is judged against the previous nights."""

HISTORY = "runs/nightly/history.db"  # the default file, for all nights
