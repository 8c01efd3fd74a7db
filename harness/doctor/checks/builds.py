"""Lock files that a killed build of torch's extensions left behind: the next job waits for them for ever."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.builds import Builds
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, check, duration

SHOWN = 4  # items of a list that one line shows


@check("build-locks", "builds", host=True)
def locks(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Lists `lock` files of torch's extension builds (TORCH_EXTENSIONS_DIR) that no process has open. torch
    waits for such a file without a limit (torch/utils/file_baton.py). Error; warning where a holder may be
    hidden: a network file system, or processes that cannot be asked."""
    assert facts.builds is not None
    yield from judge_locks(facts.builds)


def judge_locks(builds: Builds) -> Iterator[Outcome]:
    """An error if no process can hold the file open, a warning if a holder may not have been seen."""
    abandoned_locks = [lock for lock in builds.locks if not lock.holder]
    active_locks = [lock for lock in builds.locks if lock.holder]
    if not abandoned_locks:
        yield Fine(
            f"{builds.folder}: {len(active_locks)} builds go on" if active_locks else f"{builds.folder}: no lock file"
        )
        return
    unsure = ", which other machines may use too" if builds.remote else ""
    unsure += f"; {builds.unreadable} processes could not be asked what they have open" if builds.unreadable else ""
    names = ", ".join(lock.path for lock in abandoned_locks[:SHOWN])
    if len(abandoned_locks) > SHOWN:
        names += f" and {len(abandoned_locks) - SHOWN} more"
    oldest = max(lock.age_s for lock in abandoned_locks)
    age = f"{'the oldest ' if len(abandoned_locks) > 1 else ''}{duration(oldest)} old"
    # Removing the lock of a build that still runs lets two processes build into one folder. So where a holder may be
    # hidden, the fix looks for one first.
    fix = f"rm {' '.join(shlex.quote(lock.path) for lock in abandoned_locks)}"
    if unsure:
        fix = f"pgrep -a ninja   # on each machine; where it prints nothing, no build runs: {fix}"
    yield Problem(
        "warning" if unsure else "error",
        "a killed build of torch's extensions has left its lock file",
        f"{names}, {age}{unsure}",
        "whoever loads that extension next (DeepSpeed's fused_adam, cpu_adam) waits for ever for the file to go away",
        fix,
    )
