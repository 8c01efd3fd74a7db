"""Bisection: find the release, the commit or the settings that turned a good comparison into a bad one."""
