"""Errors for the user: what was wrong and where, the command that fixes it, and the exit code."""

from __future__ import annotations

import contextlib
import difflib
import signal
from collections.abc import Iterable, Iterator, Sequence

from probes.signal_codes import exit_code_of

# Environment variable that names a file to which a command also writes its final error, for its caller.
ERROR_FILE = "RLHF_HARNESS_ERROR_FILE"
# Environment variable with the pid of the caller; the command ends when that process does.
STARTER = "RLHF_HARNESS_STARTER"


class HarnessError(Exception):
    """What was wrong and where, in one sentence.

    `fix` is a command line or a short instruction that helps, or a change of the user's command line: options to set,
    or with `instead` the words that take the place of that one (`harness/amended_command.py`).
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str | None = None, instead: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.instead = instead

    @property
    def advice(self) -> str:
        """The fix where no command line can be amended."""
        if not self.instead:
            return self.fix or ""
        return f"{self.fix} in place of {self.instead}" if self.fix else f"leave {self.instead} out"


class BadInput(HarnessError):
    """The user asked for something that does not exist or is not possible: a name, a path, a combination of options."""


class Mistakes(BadInput):
    """Several mistakes of one command line, a line each. Its fix mends all of them."""

    def __init__(self, mistakes: Sequence[HarnessError]) -> None:
        first = mistakes[0]
        super().__init__(
            "\n".join(dict.fromkeys(error.message for error in mistakes)), fix=first.fix, instead=first.instead
        )
        self.mistakes = mistakes


def mistakes_of(error: HarnessError) -> Sequence[HarnessError]:
    return error.mistakes if isinstance(error, Mistakes) else [error]


@contextlib.contextmanager
def collected(mistakes: list[HarnessError]) -> Iterator[None]:
    """Take a wrong input of the user's into `mistakes`, and go on behind the block."""
    try:
        yield
    except BadInput as error:
        mistakes += mistakes_of(error)


def refuse(mistakes: Sequence[HarnessError]) -> None:
    """Raise the error where there is one, and `Mistakes` where there are several."""
    if mistakes:
        raise mistakes[0] if len(mistakes) == 1 else Mistakes(mistakes)


class EnvironmentUnusable(HarnessError):
    """An engine environment is missing, could not be made, or does not fit the driver."""


def closest(name: str, candidates: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: "; did you mean X or Y?"; empty if no candidate is similar."""
    return did_you_mean(near_names(name, candidates))


def near_names(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that a user may have meant by an unknown name, the nearest first."""
    return difflib.get_close_matches(name, dict.fromkeys(candidates), n=3)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The candidate that a user most probably meant by an unknown name; empty if none is similar."""
    return next(iter(near_names(name, candidates)), "")


def did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


def last_line(error: BaseException) -> str:
    """The last line of a long error, such as Ray's; the error's type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived, or SIGHUP of a closed terminal. It is handled like Ctrl-C; only the exit code differs."""

    arrived = 0  # the number of the signal
    lost = False  # whether Python ignored it, so that it comes again


class Interrupted(HarnessError):
    """The command was stopped on request, and has cleaned up. Exit code 130 for Ctrl-C, 143 for SIGTERM, 129 for
    SIGHUP.

    Notes on the interrupt (`add_note`) become part of the sentence, and its attribute `fix` the command to type next.
    """

    exit_code = 130

    @classmethod
    def by(cls, cause: KeyboardInterrupt, message: str = "interrupted", *, fix: str | None = None) -> Interrupted:
        error = cls("; ".join([message, *getattr(cause, "__notes__", ())]), fix=fix or getattr(cause, "fix", None))
        default = signal.SIGTERM if isinstance(cause, Terminated) else signal.SIGINT
        error.exit_code = exit_code_of(Terminated.arrived or default)
        return error
