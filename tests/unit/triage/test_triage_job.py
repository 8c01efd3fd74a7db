"""The pid of any process of a job finds the whole job, and nothing of the job beside it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from triage_evidence import evidence, process
from waiting import until

from harness.errors import BadInput
from harness.triage import judge
from harness.triage.collect import live, proc, roles, scope
from harness.triage.collect.roles import LAST_WORDS
from harness.triage.evidence import Starter
from harness.triage.watch.stderr_tail import PROGRAM

TORCH = "MASTER_ADDR=127.0.0.1 MASTER_PORT={0} WORLD_SIZE=2 RANK={1}"
MPI = "OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=job{0} OMPI_COMM_WORLD_RANK={1}"
SLURM = "SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID={0} SLURM_PROCID={1}"
# A script that starts a server, and a launcher with two ranks, each of which starts a tool.
SCRIPT = """
sleep 3003 &
sh -c '{0} sh -c "sleep 3001 & wait" & {1} sh -c "sleep 3002 & wait" & wait' &
wait
"""
SPAWNS = """
import multiprocessing as mp, time
if __name__ == "__main__":
    ctx = mp.get_context(METHOD)
    for _ in range(2):
        ctx.Process(target=time.sleep, args=(3000,)).start()
    time.sleep(3000)
"""
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command line in a process group of its own, as a shell does, and waits for so many processes."""
    groups: list[subprocess.Popen[bytes]] = []

    def run(*command: str, processes: int) -> int:
        groups.append(subprocess.Popen(command, start_new_session=True))
        until(lambda: len(below(groups[-1].pid)) >= processes)
        return groups[-1].pid

    yield run
    for group in groups:
        os.killpg(group.pid, signal.SIGKILL)
        group.wait()


def below(*roots: int) -> dict[int, str]:
    """Pid -> command line of all processes below some."""
    return {pid: " ".join(proc.arguments(pid)) for pid in proc.descendants(roots, proc.parents())}


def script(variables: str, port: int) -> str:
    return SCRIPT.format(*(variables.format(port, rank) for rank in range(2)))


@pytest.mark.slow
@pytest.mark.parametrize("variables", [TORCH, MPI, SLURM])
def test_any_pid_of_a_job_finds_all_of_it(start: Start, variables: str) -> None:
    top = start("sh", "-c", script(variables, 29511), processes=7)
    beside = start("sh", "-c", script(variables, 29512), processes=7)
    for pid in below(top):
        assert live(str(pid)).roots == (top,), below(top)[pid]
    assert live(str(beside)).roots == (beside,)


@pytest.mark.slow
def test_a_sweep_of_two_jobs_is_not_one(start: Start) -> None:
    both = f"({script(TORCH, 29513)}) & ({script(TORCH, 29514)}) & wait"
    top = start("sh", "-c", both, processes=15)
    ranks = [pid for pid, command in below(top).items() if command == "sleep 3001"]
    assert len(ranks) == 2
    jobs = [set(below(*live(str(pid)).roots)) for pid in ranks]
    assert not jobs[0] & jobs[1] and all(len(job) >= 5 for job in jobs)
    assert live(str(top)).roots == (top,)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "processes"), [("fork", 3), ("spawn", 4)])  # spawn has a resource tracker
def test_a_worker_of_multiprocessing_belongs_to_its_program(
    start: Start, tmp_path: Path, method: str, processes: int
) -> None:
    (tmp_path / "job.py").write_text(SPAWNS.replace("METHOD", repr(method)))
    top = start(sys.executable, str(tmp_path / "job.py"), processes=processes)
    workers = [pid for pid, command in below(top).items() if pid != top and "resource_tracker" not in command]
    assert len(workers) == 2 and all(live(str(pid)).roots == (top,) for pid in workers)


@pytest.mark.slow
def test_two_programs_of_one_script_are_two_jobs(start: Start) -> None:
    top = start("sh", "-c", "sleep 3000 & sleep 3000 & wait", processes=3)
    until(lambda: list(below(top).values()).count("sleep 3000") == 2)
    for pid in set(below(top)) - {top}:
        assert live(str(pid)).roots == (pid,)


@pytest.mark.slow
def test_ranks_without_a_common_parent_are_found_by_where_they_meet(start: Start) -> None:
    variables: list[Mapping[str, str]] = [
        dict(part.split("=") for part in TORCH.format(29515, n).split()) for n in (0, 1)
    ]
    pids = [start("env", *(f"{name}={value}" for name, value in each.items()), "sleep", "3000", processes=1)
            for each in variables]  # fmt: skip
    until(lambda: all(below(pid)[pid].startswith("sleep") for pid in pids))  # env has gone, which has not the variables
    assert sorted(live(str(pids[1])).roots) == sorted(pids)


WATCH = """
import subprocess, sys
reader = subprocess.Popen([sys.executable, "-I", "-S", "-c", PROGRAM, FILE, "9", "-1"], stdin=subprocess.PIPE)
subprocess.Popen(["sleep", "3003"])
reader.wait()
"""


@pytest.mark.slow
def test_the_process_that_passes_on_output_stands_for_the_watched_command(start: Start, tmp_path: Path) -> None:
    words = tmp_path / f"{LAST_WORDS}1"
    words.touch()
    watch = tmp_path / "harness"
    watch.write_text(WATCH.replace("PROGRAM", repr(PROGRAM)).replace("FILE", repr(str(words))))
    root = start(sys.executable, str(watch), processes=3)
    until(lambda: "sleep 3003" in below(root).values())  # between fork and exec it has the command line of its parent
    members = below(root)
    [command] = [pid for pid, line in members.items() if line == "sleep 3003"]
    [passer] = set(members) - {root, command}
    assert roles.infrastructure(proc.arguments(passer))
    assert live(str(passer)).roots == live(str(command)).roots == (command,)
    os.kill(command, signal.SIGKILL)
    until(lambda: not proc.alive(command))
    with pytest.raises(BadInput, match="passes on") as refusal:
        live(str(passer))
    assert (refusal.value.fix or "").startswith("pgrep ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "named"),
    [("variable", "w"), ("file", "w"), ("variable", "absent"), ("variable", "")],
)
def test_the_pid_of_a_watched_process_finds_the_folder_of_its_watch(
    start: Start, tmp_path: Path, by: str, named: str
) -> None:
    """A worker of Ray has the variable set later, and then only its open heartbeat shows it."""
    (tmp_path / "w" / "beats").mkdir(parents=True)
    folder = tmp_path / named
    word = f"RLHF_HARNESS_WATCH={folder}" if by == "variable" and named else "A=1"
    opened = f"exec 3>{folder}/beats/77.json; " if by == "file" else ""
    pid = start("env", word, "sh", "-c", f"{opened}sleep 3004 & wait", processes=2)
    expected = folder if named == "w" else None
    assert live(str(pid)).directory == expected


@pytest.mark.slow
def test_processes_of_two_watches_are_looked_at_without_either(start: Start, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "beats").mkdir(parents=True)
    line = " & ".join(f"RLHF_HARNESS_WATCH={tmp_path / name} sleep 3005" for name in ("a", "b"))
    assert live(str(start("sh", "-c", f"{line} & wait", processes=3))).directory is None


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["/usr/bin/python3", "main.py"], True),
        (["bash", "run.sh"], False),
        (["/venv/bin/python", "/venv/bin/harness", "watch"], False),
    ],
)
def test_a_child_that_is_looked_at_alone_has_a_starter(
    monkeypatch: pytest.MonkeyPatch, command: list[str], named: bool
) -> None:
    monkeypatch.setattr(scope.proc, "arguments", lambda pid: command if pid == 40 else ["python", "worker.py"])
    table = {40: 1, 41: 40, 42: 40}
    starters = [*scope._starters("node0", (41,), {41}, table)]
    assert [(each.pid, each.child, each.command) for each in starters] == (
        [(40, 41, " ".join(command))] if named else []
    )
    assert not [*scope._starters("node0", (41,), {40, 41}, table)], "it is looked at as well"


def test_a_verdict_on_a_child_alone_says_whose_it_is() -> None:
    child = dataclasses.replace(process(41, "process", "main:10 sleep"), ppid=40, beat=None)
    starter = Starter("node0", 40, 41, "python main.py")
    alone = judge.triage(evidence(child, stall_s=0.0, source="live", starters=(starter,)))
    assert alone.verdict == "HEALTHY" and "40" in alone.reason and "python main.py" in alone.evidence[0]
    assert alone.triage is not None and alone.triage.next[0].startswith("harness triage 40 ")
    parent = dataclasses.replace(process(40, "process", "main:10 sleep"), beat=None)
    both = judge.triage(evidence(parent, child, stall_s=0.0, source="live", starters=(starter,)))
    assert "main.py" not in both.to_json()
