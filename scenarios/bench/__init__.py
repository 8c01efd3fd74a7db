"""The bench: both engines and a reference draw the same few samples again, unchanged and with one thing changed at a
time.

`case` is plain data and imports no torch. `reference` and `bench` run in the learner's interpreter.
"""
