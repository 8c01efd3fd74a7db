"""What the exit codes of the commands mean."""

from __future__ import annotations

from typing import NamedTuple

from reports.model import AUDIT_EXIT_CODES, EXIT_CODES, PASSES, STRICT, TRIAGE_EXIT_CODES


class Exit(NamedTuple):
    """One exit code. `commands`: the commands that exit with it, in words."""

    code: str
    commands: str
    meaning: str


STALLED = 86  # free, of sysexits.h and of shells
NOT_RECORDED = 3  # as INCONCLUSIVE: what was recorded is not enough for a verdict
NOT_FOUND, NOT_RUNNABLE = 127, 126  # as env, nice, timeout and every shell say it

_NIGHTS = "harness nightly and history show"
_CHECKS = "harness doctor, env check, faults run and adapters check"
_JOBS = "harness watch and record"

EXITS = (
    *(Exit(str(code), "harness parity, diff, replay and report", name) for name, code in EXIT_CODES.items()),
    *(Exit(str(code), "harness audit", name) for name, code in AUDIT_EXIT_CODES.items()),
    *(Exit(str(code), "harness triage", name) for name, code in TRIAGE_EXIT_CODES.items()),
    Exit(
        str(STRICT),
        "harness parity, diff, replay and audit with --strict",
        f"{' or '.join(PASSES)} with reservations: {PASSES[0]}, but ...",
    ),
    Exit("0", _NIGHTS, "nothing is new"),
    Exit("1", _NIGHTS, "a cell regressed, or a new cell has a problem"),
    Exit("2", _NIGHTS, "no cell regressed, and a cell could not run"),
    Exit("0", "harness bisect", "found"),
    Exit("3", "harness bisect", "the comparisons do not tell"),
    Exit("0", "harness mapping", "every setting arrives"),
    Exit("1", "harness mapping", "a setting is dropped or arrives as another value, or an argument is wrong"),
    Exit("0", _CHECKS, "all is well"),
    Exit("1", _CHECKS, "something is wrong"),
    Exit(str(STALLED), f"{_JOBS} with --on-stall end or exit", "the command was found hung"),
    Exit(str(NOT_RUNNABLE), _JOBS, "the command is not executable"),
    Exit(str(NOT_FOUND), _JOBS, "the command is not found"),
    Exit(str(NOT_RECORDED), "harness record", "the command ended with 0, and no rollout was recorded"),
    Exit("its own", _JOBS, "the command ended by itself; 128 + n: by signal n"),
    Exit("2", "every command", "bad input: the message names what is wrong, and the command that fixes it"),
    Exit("130", "every command", "interrupted by Ctrl-C"),
    Exit("129", "every command", "its terminal was closed (SIGHUP)"),
    Exit("143", "every command", "interrupted by SIGTERM"),
)
