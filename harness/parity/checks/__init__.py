"""Checks: each is a function of the evidence that confirms or rules out something.

Here are those that serve several subjects: of run with run (`between_runs`), and of each engine (`one_engine`). The
others, most of the eleven suspicions among them, are in the folders of their subjects (`harness.parity.subjects`).
"""
