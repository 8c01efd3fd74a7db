"""A user's mapping of settings from one engine to another, checked by calling it: no run, no engine, no torch."""
