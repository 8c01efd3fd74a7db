"""Golden verdicts: what the judge and triage say of recordings, dumps and evidence that are kept (tests/README.md)."""
