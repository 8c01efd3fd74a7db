"""Coupled sampling inside a framework's own job."""
