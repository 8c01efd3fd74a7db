"""The bench: both engines and a reference draw the same few samples again, as they are and changed one thing at a time.

`case` is plain data and imports no torch; `reference` and `bench` run in the learner's interpreter.
"""
