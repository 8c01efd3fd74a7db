"""Transformers, embedded in our own process."""
