"""Prefix cache: whether an engine uses keys and values of earlier weights."""
