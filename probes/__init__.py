"""Recorders that run inside any process. Standard library only. docs/reference/format.md describes what they write."""
