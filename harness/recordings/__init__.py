"""Reads a run directory: files, scans, tables, compaction."""
