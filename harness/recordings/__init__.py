"""Read a run directory: files, scans, tables, compaction."""
