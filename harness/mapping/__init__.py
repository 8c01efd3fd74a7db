"""Checks a user's mapping of settings from one engine to another by calling it: no run, no engine, no torch."""
