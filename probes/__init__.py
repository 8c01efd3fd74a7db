"""Recorders that live in any process, standard library only. docs/reference/format.md describes their format."""
