"""How an exit code says that a signal ended a program: 128 + n of a shell (POSIX), -n of `subprocess`."""

from __future__ import annotations

FIRST = 128  # a shell's exit codes from here on are 128 + the number of a signal


def exit_code_of(number: int) -> int:
    """The exit code that a shell has for a program that this signal ended."""
    return FIRST + number


def signal_of(exit_code: int) -> int:
    """The number of the signal that ended a program with this exit code; 0 if none did."""
    return -exit_code if exit_code < 0 else max(0, exit_code - FIRST)
