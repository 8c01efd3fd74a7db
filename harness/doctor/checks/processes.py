"""Checks for processes that an earlier run left running."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.processes import Leftover
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, check, duration

_AGENTS = ("ray::Dashboard", "ray::RuntimeEnv")  # processes beside each raylet that are no workers of a job


@check("leftover-engines", "processes", host=True)
def engines(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Lists processes titled sglang:: or VLLM::. Error when their parent has ended, else info; also of those that have
    ended and whose parent has not collected them: signals do nothing to them."""
    assert facts.processes is not None
    engine_processes = [item for item in facts.processes.found if item.kind == "engine"]
    ended = [item for item in engine_processes if item.zombie]
    orphans = [item for item in engine_processes if item.orphan and not item.zombie]
    owned = [item for item in engine_processes if item not in (*orphans, *ended)]
    outcomes: list[Outcome] = []
    if orphans:
        outcomes.append(
            Problem(
                "error",
                "engine processes outlived the run that started them",
                _listing(orphans),
                "they hold GPU memory, ports and shared memory, and take part in nothing",
                f"kill {_pids(orphans)}   # by pid, never by name: other runs have processes of that name",
            )
        )
    if owned:
        # Engines older than the shell that asks are the likelier leftovers: they are named alone where there are any.
        older = [item for item in owned if item.age_s > facts.processes.shell_age_s]
        outcomes.append(
            Problem(
                "info",
                "engines are running on this node",
                _listing(older or owned),
                "if no run is meant to be there, they are what holds its memory and ports",
                f"ps -fp {_pids(owned).replace(' ', ',')}",
            )
        )
    if ended:
        outcomes.append(_uncollected("engine processes", ended))
    yield from outcomes or [Fine("no engine process is running")]


@check("leftover-ray", "processes", host=True)
def ray(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Lists Ray's processes. Error for workers whose raylet has ended, a warning for its agents, which hold no GPU.
    Info for a cluster that runs here and was not asked for, and for processes that have ended and whose parent has not
    collected them."""
    assert facts.processes is not None
    ray_processes = [item for item in facts.processes.found if item.kind == "ray"]
    ended = [item for item in ray_processes if item.zombie]
    running = [item for item in ray_processes if not item.zombie]
    orphaned = [item for item in running if item.orphan]
    agents = [item for item in orphaned if item.title.startswith(_AGENTS)]
    orphans = [item for item in orphaned if item.title.startswith("ray::") and item not in agents]
    daemons = [item for item in running if not item.title.startswith("ray::")]
    outcomes: list[Outcome] = []
    if orphans:
        outcomes.append(
            Problem(
                "error",
                "Ray workers outlived their raylet",
                _listing(orphans),
                "they hold memory and GPUs of a cluster that is gone",
                f"kill {_pids(orphans)}",
            )
        )
    if agents:
        outcomes.append(
            Problem(
                "warning",
                "agents of a Ray cluster outlived their raylet",
                _listing(agents),
                "they hold memory and ports of a cluster that is gone",
                f"kill {_pids(agents)}",
            )
        )
    # A doctor that joined the cluster, or runs in one of its workers, was asked about it.
    if daemons and facts.shell and not request.joined:
        outcomes.append(
            Problem(
                "info",
                "Ray is running on this node",
                _listing(daemons),
                "`ray start` fails or joins it, and its workers have the variables of the shell that "
                "started it, not of this one",
                f"harness doctor --address auto   # to examine it; to end it: kill {_pids(daemons)}",
            )
        )
    if ended:
        outcomes.append(_uncollected("processes of Ray", ended))
    yield from outcomes or [
        Fine(f"{len(running)} processes of the cluster itself" if running else "Ray is not running")
    ]


def _uncollected(what: str, ended: list[Leftover]) -> Problem:
    return Problem(
        "info",
        f"{what} have ended, and their parent has not collected them",
        _listing(ended),
        "they hold nothing, unless a thread of theirs is stuck in a driver",
        f"ps -o ppid= -p {_pids(ended).replace(' ', ',')}   # it goes when that process does",
    )


def _listing(items: list[Leftover]) -> str:
    listing = "; ".join(map(_in_words, items[:4]))
    return f"{listing}; and {len(items) - 4} more" if len(items) > 4 else listing


def _in_words(item: Leftover) -> str:
    ended = " (zombie)" if item.zombie else ""
    return f"pid {item.pid} {item.title[:60]}{ended}, {duration(item.age_s)} old"


def _pids(items: list[Leftover]) -> str:
    return " ".join(str(item.pid) for item in items)
