"""Rule about the lock file of a build of torch's extensions (`torch.utils.file_baton`): processes wait, nobody builds.

The process that makes the file builds. The others sleep until the file is gone, without a limit. A job that is killed
during a build leaves the file behind, and every later job waits for it. DeepSpeed builds fused_adam and cpu_adam this
way.
"""

from __future__ import annotations

import os
import re

from harness.triage.graph import Subject
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.ruling import Case, Live, Ruling

VARIABLE = "TORCH_EXTENSIONS_DIR"
_DEFAULT = '"${XDG_CACHE_HOME:-$HOME/.cache}"/torch_extensions'
_BUILDING = re.compile(r"torch/utils/cpp_ext")
_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "hipcc", "c++", "g++", "cc1plus", "clang++"})


def locked(case: Case) -> Ruling | None:
    """K9, or SLOW if somebody builds: a process waits for such a lock file at both looks."""
    waiting = [subject for subject in case.live() if {subject.doing.kind, subject.before.kind} == {"build_lock"}]
    if not waiting:
        return None
    hosts = {waiter.process.host for waiter in waiting}
    builders = [subject for subject in case.live() if subject.process.host in hosts and _builds(subject)]
    working = next((builder for builder in builders if builder.progress), None)
    if working is not None:
        return slow_because(case, [working.key])
    if builders:
        why = {
            builder.key: f"builds an extension of torch's and does not advance: {builder.state()}"
            for builder in builders
        }
        return Ruling(
            "HUNG", f"{case.names(why)} builds an extension of torch's and does not advance", "K9", why,
            place="the lock file of a build", next=(Live("py-spy dump --pid PID   # what its build waits for"),),
        )  # fmt: skip
    why = {waiter.key: "waits for the lock file of a build of torch's extensions, and no process of the job builds"
           for waiter in waiting}  # fmt: skip
    folders = sorted({folder for waiter in waiting if (folder := waiter.process.environ.get(VARIABLE, ""))})
    places = " ".join(folders) or _DEFAULT
    return Ruling(
        "HUNG",
        f"{case.names(why)} waits for the lock file of a build that was killed",
        "K9",
        why,
        place="the lock file of a build",
        next=(
            f"find {places} -name lock   # remove it where no other job builds there: pgrep -a ninja",
            "harness doctor   # before a job starts: names such files, and removes none",
        ),
    )


def _builds(subject: Subject) -> bool:
    process = subject.process
    if subject.doing.kind == "build_lock":
        return False
    program = os.path.basename(process.command.split(" ", 1)[0])
    frames = (frame for look in process.samples for thread in look.threads for frame in thread.frames)
    return program in _COMPILERS or any(_BUILDING.search(frame.file) for frame in frames)
