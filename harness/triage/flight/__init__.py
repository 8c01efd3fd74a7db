"""Flight recorder dumps: read any of them safely, and compare all ranks.

`loading` reads Flights, and `compare` compares them across ranks. `harness.triage.judge` says what the comparison
means. Nothing is imported here: a process that reads dumps starts in a third of the time without the comparison.
"""
