"""The role of a process in the job: from its journal, its heartbeat, Ray, its title or its command line, best first."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from harness.triage.collect.proc import Facts
from probes import limits
from scenarios.engines import registry

PLAIN = ("", "process")  # roles that carry no information: a probe that was switched on from outside
RAY_PROGRAMS = ("raylet", "gcs_server", "plasma_store")
RAY_SCRIPTS = re.compile(
    r"/ray/(dashboard/dashboard|dashboard/agent|autoscaler/_private/monitor|_private/log_monitor"
    r"|_private/runtime_env/agent/main|util/client/server/__main__|_private/workers/setup_worker)\.py$"
    r"|^ray\.util\.client\.server$"
)
RAY_TITLES = re.compile(
    r"ray::(IDLE|DashboardAgent|RuntimeEnvAgent|SpillWorker|RestoreWorker|harness_collect)|ray-dashboard-\w"
)
# The file of the process that passes on what a watched command prints (harness/triage/watch/stderr_tail.py) begins so.
LAST_WORDS = "rlhf-harness-words-"
SERVANTS = re.compile(
    rf"/{LAST_WORDS}\w+$|"
    r"multiprocessing\.resource_tracker|harness[./]triage[./]collect[./]ray_"
    r"|^scenarios\.forkserver$|/scenarios/forked\.py$"
    r"|^from multiprocessing\.forkserver import main.*'ray\.dashboard\."  # makes the parts of Ray's dashboard
)
LAUNCHERS = re.compile(
    r"(^|/)(torchrun|accelerate|deepspeed|mpirun|mpiexec(\.hydra)?|prterun|prted|orted|hydra_pmi_proxy|horovodrun|srun)$|^torch\.distributed\.(run|launch)"
    r"|^accelerate\.commands\.launch$|^deepspeed\.launcher|/torch/distributed/(run|launch)\.py$"
)
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ash", "timeout", "env", "nohup", "nice", "sudo", "setsid", "uv"))


def infrastructure(argv: Sequence[str]) -> bool:
    """Whether this is a process of Ray itself, an idle Ray worker, Python's resource tracker, or a collector, fork
    server or passer of output of harness."""
    if not argv:
        return False
    if os.path.basename(argv[0]) in RAY_PROGRAMS or RAY_TITLES.match(argv[0]):
        return True
    if any(RAY_SCRIPTS.search(argument) for argument in argv[1:6]):
        return True
    return any(SERVANTS.search(argument) for argument in argv[1:6])


def passes_output(argv: Sequence[str]) -> bool:
    """Whether this passes on what a watched command prints."""
    return any(f"/{LAST_WORDS}" in argument for argument in argv[1:6])


def raylet_address(argv: Sequence[str]) -> str:
    """The GCS address of the cluster to which this raylet belongs; empty for any other process."""
    if not argv or os.path.basename(argv[0]) != "raylet":
        return ""
    return next((argument.partition("=")[2] for argument in argv if argument.startswith("--gcs-address=")), "")


def role_of(facts: Facts, *, journal: str = "", beat: str = "", actor: str = "", parent: Facts | None = None) -> str:
    """The role of a process. `journal`, `beat`: the role that each reports; `actor`: the class of the Ray actor in
    the process. `parent`: whose title a forked child has until it gives itself one."""
    for role in (beat, journal) if beat.startswith(f"{journal}-") else (journal, beat):  # a numbered role says more
        if role not in PLAIN:
            return role
    if actor:
        return actor
    titled = _of_title(facts.title)
    if titled and not (facts.forked and parent is not None and _of_title(parent.title) == titled):
        return titled
    program = os.path.basename(facts.argv[0]) if facts.argv else facts.comm
    if program in SHELLS:
        return "shell"
    if "RANK" not in facts.environ and any(LAUNCHERS.search(argument) for argument in facts.argv[:4]):
        return "launcher"
    return "process"


def _of_title(title: str) -> str:
    """The role that the title of a process says; empty without one."""
    head, _, tail = title.partition("::")
    if head == "ray":
        return tail.partition(".")[0].partition("(")[0] or "ray"
    return re.sub(r"[_ ]?(TP|DP|PP|EP)?\d+.*$", "", tail.split()[0]).strip("_").lower() or head.lower() if tail else ""


def engine_of(facts: Facts) -> str:
    """The engine's name, by the process title or the module that was started; empty if it is no engine."""
    titles = {title.lower(): name for name, spec in registry.specs().items() for title in spec.process.titles}
    head = facts.title.partition("::")[0].lower()
    if head in titles:
        return titles[head]
    for argument in facts.argv[:4]:
        module = argument.partition(".")[0]
        if module in titles.values() and argument != facts.argv[0]:
            return module
    return ""


def own_rank(facts: Facts, parent: Facts | None) -> tuple[int | None, int | None]:
    """(rank, world size) from the environment; (None, None) if they were inherited: a loader worker is no second
    rank."""
    mine = facts.environ.get("RANK", "")
    if parent is not None and parent.environ.get("RANK") == mine:
        return None, None
    rank = limits.rank(mine)
    return rank, None if rank is None else limits.rank(facts.environ.get("WORLD_SIZE", ""))
