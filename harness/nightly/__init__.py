"""`harness nightly`: a matrix of comparisons, run every night and judged against the nights before."""
