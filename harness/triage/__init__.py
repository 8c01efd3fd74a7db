"""Hang triage: which processes are stuck, which only wait, and why.

`watch` notices a stall, `collect` takes evidence from every process, `flight` compares flight recorder dumps, `graph`
builds one wait graph over all layers, `rules` name the kind of hang, and `judge` makes the verdict.
"""
