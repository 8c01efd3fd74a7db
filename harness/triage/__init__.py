"""Hang triage: who is stuck, who only waits, and why.

`watch` notices a stall, `collect` takes evidence from every process, `flight` compares flight recorder dumps, `graph`
builds one wait graph over all layers, `rules` name the kind, and `judge` makes the verdict.
"""
