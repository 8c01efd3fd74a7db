"""K9: a process waits for the lock file of a build of torch's extensions (`torch.utils.file_baton`), and nobody builds.

Whoever makes the file builds; the others sleep until it is gone, without a limit. A job that was killed in the middle
leaves it, and every later one waits for it: DeepSpeed's fused_adam and cpu_adam are built so.
"""

from __future__ import annotations

import os
import re

from harness.triage.graph import Subject
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.ruling import Case, Ruling

VARIABLE = "TORCH_EXTENSIONS_DIR"
_DEFAULT = '"${XDG_CACHE_HOME:-$HOME/.cache}"/torch_extensions'
_BUILDING = re.compile(r"torch/utils/cpp_ext")
_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "hipcc", "c++", "g++", "cc1plus", "clang++"})


def locked(case: Case) -> Ruling | None:
    """Somebody stands before such a file, at both looks."""
    waiting = [one for one in case.live() if {one.doing.kind, one.before.kind} == {"build_lock"}]
    if not waiting:
        return None
    hosts = {one.process.host for one in waiting if one.process}
    builders = [one for one in case.live() if one.process and one.process.host in hosts and _builds(one)]
    working = next((one for one in builders if one.progress), None)
    if working is not None:
        return slow_because(case, [working.key])
    if builders:
        why = {one.key: f"builds an extension of torch's and does not advance: {one.state()}" for one in builders}
        return Ruling(
            "HUNG", f"{case.names(why)} builds an extension of torch's and does not advance", "K9", why,
            place="the lock file of a build", next=("py-spy dump --pid PID   # what its build waits for",),
        )  # fmt: skip
    why = {one.key: "waits for the lock file of a build of torch's extensions, and no process of the job builds"
           for one in waiting}  # fmt: skip
    folders = sorted({folder for one in waiting if one.process and (folder := one.process.environ.get(VARIABLE, ""))})
    places = " ".join(folders) or _DEFAULT
    return Ruling(
        "HUNG",
        f"{case.names(why)} waits for the lock file of a build that was killed",
        "K9",
        why,
        place="the lock file of a build",
        next=(
            f"find {places} -name lock   # remove it where no other job builds there: pgrep -a ninja",
            "harness doctor names such files, and removes none, before a job starts",
        ),
    )


def _builds(one: Subject) -> bool:
    process = one.process
    if process is None or one.doing.kind == "build_lock":
        return False
    program = os.path.basename(process.command.split(" ", 1)[0])
    frames = (frame for look in process.samples for thread in look.threads for frame in thread.frames)
    return program in _COMPILERS or any(_BUILDING.search(frame.file) for frame in frames)
