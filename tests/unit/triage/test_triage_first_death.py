"""A run that has ended: the first death is named, and those that failed because of it come after."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import evidence, process, rank
from waiting import until

from harness.triage import run
from harness.triage.collect import Scope, beats, conduct, endings, proc, stacks
from harness.triage.evidence import ENDED, Beat, Evidence, Frame, Journal, Peak, Process, Sample
from harness.triage.judge import triage
from harness.triage.watch.deaths import failed_ranks, killed_for_memory
from harness.triage.watch.peaks import Peaks, killed_by_kernel
from harness.triage.watch.progress import ProcessSnapshot
from harness.triage.watch.watched_command import WatchResult, why_of, words_of

ECHO = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:61672"


def ended(number: int, *, beat_s: float, error: str = "", error_s: float = 0.0, **more: object) -> Process:
    """A rank that is gone. `beat_s`: age of its last heartbeat; `error_s`: of its error."""
    gone = rank(number, gone=True, **more)  # type: ignore[arg-type]
    beat = Beat(90, beat_s, beat_s, ended=bool(error))
    return dataclasses.replace(gone, beat=beat, error=error, error_age_s=error_s if error else None)


def first(*processes: Process) -> tuple[str, list[str]]:
    verdict = triage(evidence(*processes, source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    return verdict.reason.partition("order: ")[2], verdict.evidence


def test_who_was_killed_comes_before_those_that_lost_the_connection() -> None:
    echoes = [ended(number, beat_s=9.0, error=ECHO, error_s=9.5) for number in (0, 2)]
    reason, facts = first(echoes[0], ended(1, beat_s=10.0), echoes[1])
    assert reason.startswith("rank 1 was ended without a last word")
    assert any(line.startswith("after it rank 0 and rank 2 ended with RuntimeError") for line in facts)


def test_an_error_comes_before_the_silence_of_those_that_were_brought_down() -> None:
    """A launcher ends the others without a last word. Where there is none, nothing tells who ended first."""
    launcher = dataclasses.replace(process(50, "launcher", gone=True), beat=None, journal=None, exit_code=1)
    ranks = ended(0, beat_s=10.4), ended(1, beat_s=10.0, error="ValueError: no slot", error_s=10.0)
    assert first(launcher, *ranks)[0].startswith("rank 1 ended with ValueError: no slot")
    reason, facts = first(*ranks)
    assert "rank 0" in reason and "rank 1" in reason
    assert [("rank 0" in fact, "rank 1" in fact) for fact in facts[:2]] == [(True, False), (False, True)]
    assert "which of them first is not known" in facts[1]


@pytest.mark.parametrize("later_s", [9.4, 7.0])
def test_errors_of_their_own_that_end_together_are_not_put_in_an_order(later_s: float) -> None:
    """A process that closes its connections in a `finally` ends after those that lost them."""
    reason, facts = first(
        ended(0, beat_s=10.0, error="RuntimeError: the answer of rank 1 is missing", error_s=10.0),
        ended(1, beat_s=later_s, error="ValueError: bad reward", error_s=later_s),
    )
    together = later_s > 9.0
    assert ("rank 1" in reason) is together and reason.startswith("rank 0") and ("not known" in facts[1]) is together


@pytest.mark.parametrize(
    "echo",
    [
        {"error": "EOFError:"},
        {"error": "http.client.RemoteDisconnected: Remote end closed connection without response"},
        {"error": "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 8 expected bytes"},
        {"error": "BrokenPipeError: [Errno 32] Broken pipe"},
        {"exit_code": -signal.SIGPIPE},
        {"exit_code": 128 + signal.SIGTERM},
    ],
)
def test_who_lost_a_peer_or_was_brought_down_is_not_first(echo: dict[str, Any]) -> None:
    """Whatever the times say: its end is recorded at once, and a silence later than it began."""
    lost = dataclasses.replace(ended(1, beat_s=12.0, error=echo.get("error", ""), error_s=12.0), **echo)
    reason, _ = first(ended(0, beat_s=10.0), lost)
    assert reason.startswith("rank 0 was ended without a last word")


@pytest.mark.parametrize("error", ["EOFError: EOF when reading a line", "EOFError: Ran out of input"])
def test_the_end_of_a_file_is_an_error_of_ones_own(error: str) -> None:
    assert first(ended(0, beat_s=5.0), ended(1, beat_s=12.0, error=error, error_s=12.0))[0].startswith("rank 1")


LOST = (
    ECHO,
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:544] Connection reset by peer",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "RuntimeError: eof (this error originated at tensorpipe/transport/shm/connection_impl.cc:259)",
)


@pytest.mark.parametrize("error", LOST)
def test_who_ended_well_before_its_peers_lost_it_is_named(error: str) -> None:
    """Rank 2 skipped a collective: it ends first, with exit code 0."""
    peers = [ended(number, beat_s=9.0, error=error, error_s=9.5 + number / 100) for number in (0, 1)]
    early = ended(2, beat_s=11.0, exit_code=0)
    counts = [(peers[0], 50), (peers[1], 50), (early, 49)]
    job = [
        dataclasses.replace(each, beat=dataclasses.replace(each.beat, ended=True, sequences={"0": count}))  # type: ignore[type-var]
        for each, count in counts
    ]
    reason, facts = first(*job)
    assert reason.startswith("rank 2 ended well, 1.5 s before")
    assert any("after 49 of the 50 collectives" in line for line in facts)
    assert any(line.startswith("after it rank 0") for line in facts[1:])


SKIPS = """for step in range(50):
    if rank == 2 and step == 6:
        continue
    all_reduce(step)
"""


def test_the_branch_that_skips_the_collective_of_the_peers_is_said(tmp_path: Path) -> None:
    (tmp_path / "skip.py").write_text(SKIPS)
    for line, told in ((4, True), (1, False)):
        beat = Beat(90, 9.0, 9.0, ended=True, raised_at=Frame("<module>", str(tmp_path / "skip.py"), line))
        peers = [dataclasses.replace(ended(n, beat_s=9.0, error=ECHO, error_s=9.5), beat=beat) for n in (0, 1)]
        _, facts = first(*peers, dataclasses.replace(ended(2, beat_s=11.0), beat=Beat(90, 11.0, 11.0, ended=True)))
        assert any("rank == 2 and step == 6" in fact and "line 2" in fact for fact in facts) is told


def test_the_last_heartbeat_says_where_the_error_was_raised() -> None:
    content = {"host": "n", "pid": 1, "count": 1, "t_ns": 5, "progress_ns": 5, "raised_at": ["/job/a.py", 7, "step"]}
    assert beats.parse(json.dumps(content).encode(), 6).beat.raised_at == Frame("step", "/job/a.py", 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"beat": Beat(90, 8.0, 8.0, ended=True)},  # it ended after them
        {"world_size": 2},  # of another job beside
        {"error": "ValueError: no slot", "error_age_s": 9.0},
    ],
)
def test_a_rank_that_ended_well_later_or_elsewhere_explains_nothing(changes: dict[str, Any]) -> None:
    peers = [ended(number, beat_s=9.0, error=ECHO, error_s=9.5) for number in (0, 1)]
    early = dataclasses.replace(ended(2, beat_s=11.0, exit_code=0), **changes)
    assert not first(*peers, early)[0].startswith("rank 2 ended well")


def test_an_error_of_ones_own_comes_before_who_ended_well() -> None:
    broken = ended(0, beat_s=9.0, error="ValueError: no slot", error_s=9.4)
    echo = ended(1, beat_s=9.0, error=ECHO, error_s=9.5)
    early = dataclasses.replace(ended(2, beat_s=11.0, exit_code=0), beat=Beat(90, 11.0, 11.0, ended=True))
    assert first(broken, echo, early)[0].startswith("rank 0 ended with ValueError")


BEHIND = "\n Original exception: \n[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
MISSED = "RuntimeError: [Rank 0]: {0} failed to pass monitoredBarrier in 3000 ms" + BEHIND  # torch 2.13
REACHED = "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors" + BEHIND


@pytest.mark.parametrize(("words", "ranks"), [("Rank 1", "rank 1"), ("Ranks 1, 2", "rank 1 and rank 2")])
def test_who_missed_a_monitored_barrier_comes_before_those_that_say_so(words: str, ranks: str) -> None:
    waiting = ended(3, beat_s=9.0, error=REACHED, error_s=9.5), ended(0, beat_s=9.0, error=MISSED.format(words))
    brought_down = [dataclasses.replace(ended(number, beat_s=8.0), exit_code=-signal.SIGTERM) for number in (1, 2)]
    reason, _ = first(*waiting, *brought_down)
    assert reason == f"{ranks} missed a monitored barrier"


@pytest.mark.parametrize("error", [
    "ValueError: no slot\nof 4\n[left behind]",
    "Traceback (most recent call last):\n  File 'a.py'\nKeyError: 1\n\nDuring handling, another occurred:\n\n"
    "Traceback (most recent call last):\n  File 'a.py'\nValueError: no slot\nof 4",
])  # fmt: skip
def test_an_error_of_several_lines_is_told_by_the_line_that_names_it(error: str) -> None:
    assert first(ended(0, beat_s=9.0, error=error, error_s=9.0))[0] == "rank 0 ended with ValueError: no slot"


@pytest.mark.parametrize(("error", "is_told"), [("KeyError: 'reward'", True), (ECHO, False)])
def test_where_the_error_of_the_first_death_was_raised_is_told(error: str, is_told: bool) -> None:
    beat = Beat(90, 9.0, 9.0, ended=True, raised_at=Frame("step", "/job/die.py", 6))
    failed = dataclasses.replace(ended(1, beat_s=9.0, error=error, error_s=9.5), beat=beat)
    _, facts = first(failed, ended(0, beat_s=8.0, error=ECHO, error_s=8.5))
    assert any("die.py:6" in fact for fact in facts) is is_told


def test_a_silence_long_before_an_error_comes_first() -> None:
    reason, _ = first(ended(0, beat_s=30.0), ended(1, beat_s=10.0, error="ValueError: empty batch", error_s=10.0))
    assert reason.startswith("rank 0 was ended without a last word")


def test_silences_that_begin_together_are_not_put_in_an_order() -> None:
    reason, facts = first(*(ended(number, beat_s=10.0 + number / 2) for number in range(3)))
    assert reason.startswith("ranks 0-2 were ended") and "which of them first is not known" in facts[0]


def test_the_exit_code_of_a_launcher_tells_silences_apart() -> None:
    brought_down = ended(2, beat_s=10.5, exit_code=-15)
    reason, _ = first(ended(0, beat_s=10.8), ended(1, beat_s=10.0, exit_code=-9), brought_down)
    assert reason.startswith("rank 1 ended with signal 9 (SIGKILL)")


@pytest.mark.parametrize(
    ("error", "command", "phase"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "nvidia-smi", True),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "df -h", False),
        ("ValueError: no slot is free", "read the end", False),
    ],
)
def test_the_error_says_what_to_do_and_memory_where_it_ran_out(error: str, command: str, phase: bool) -> None:
    journal = Journal("", 3, 10.0, last_span="update_actor")
    verdict = triage(evidence(ended(0, beat_s=10.0, error=error, error_s=10.0, journal=journal), source="live"))
    assert verdict.triage is not None and verdict.triage.next[0].startswith(command)
    assert any("update_actor" in line for line in verdict.evidence) is phase


@pytest.mark.parametrize(("path", "where"), [("/job", "job"), ("/gone", ".")])
def test_kills_of_the_cgroup_are_counted(tmp_path: Path, path: str, where: str) -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "own").write_text(f"0::{path}\n")
    assert killed_for_memory(tmp_path, tmp_path / "own") == 2


def test_without_a_cgroup_no_kill_is_counted(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/x\n")
    assert killed_for_memory(tmp_path, tmp_path / "own") == killed_for_memory(tmp_path, tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("top", "helper", "verdict"),
    [
        ({"exit_code": 0}, {}, "HEALTHY"),
        ({}, {}, "INSUFFICIENT"),  # nothing says how the program itself ended
        ({"exit_code": 1}, {}, "INSUFFICIENT"),
        ({"exit_code": 0}, {"error": "KeyError: 'x'"}, "HEALTHY"),
        ({"exit_code": 0}, {"rank": 0}, "INSUFFICIENT"),
        ({"exit_code": 0}, {"exit_code": -signal.SIGTERM}, "HEALTHY"),
        ({"exit_code": 0}, {"exit_code": -signal.SIGSEGV}, "HEALTHY"),
        ({"exit_code": 0}, {"exit_code": -signal.SIGKILL}, "HEALTHY"),
    ],
)
def test_what_a_helper_answered_to_its_end_is_no_failure_of_a_program_that_succeeded(
    top: dict[str, object], helper: dict[str, object], verdict: str
) -> None:
    gone = {"gone": True, "stale_s": 0.0}
    bare = {"beat": None, "journal": None}
    program = dataclasses.replace(process(50, "process", **gone), **{**bare, **top})
    between = dataclasses.replace(process(51, "process", ppid=50, **gone), **bare)
    ended = dataclasses.replace(process(52, "process", ppid=51, **gone), **{**bare, "exit_code": 1, **helper})
    looked = triage(evidence(program, between, ended))
    assert looked.verdict == verdict
    answers = helper.get("exit_code", -signal.SIGTERM) == -signal.SIGTERM and "error" not in helper
    assert any("went on" in line for line in looked.evidence) is (verdict == "HEALTHY" and not answers)


def helper_of(program: Process, *, failed_s: float) -> tuple[Process, Process]:
    """The program and a helper of it that failed so long ago."""
    helper = dataclasses.replace(process(52, "process", ppid=program.pid, gone=True), error="ValueError: bad page",
                                 error_age_s=failed_s, beat=Beat(9, failed_s, failed_s, ended=True))  # fmt: skip
    return program, helper


def program_that(error: str = "", ended_s: float = 10.0) -> Process:
    gone = process(50, "process", gone=True)
    beat = Beat(90, ended_s, ended_s, ended=True)
    return dataclasses.replace(gone, beat=beat, error=error, error_age_s=ended_s if error else None)


@pytest.mark.parametrize(
    ("program", "failed_s", "first_pid"),
    [
        (program_that(), 60.0, None),
        (program_that(), 11.0, None),
        (program_that(ended_s=60.0), 10.0, 52),  # it had ended before
        (program_that("KeyError: 'x'"), 60.0, 50),
        (program_that("KeyError: 'x'"), 13.0, 52),
        (program_that("RuntimeError: worker 52 died"), 60.0, 52),
        (program_that(ECHO), 60.0, 52),
    ],
)
def test_a_failure_that_the_program_outlived_is_not_the_end_of_the_run(
    program: Process, failed_s: float, first_pid: int | None
) -> None:
    looked = triage(evidence(*helper_of(program, failed_s=failed_s), source="live", stall_s=0.0))
    if first_pid is None:
        assert looked.verdict == "HEALTHY" and any("52" in line and "went on" in line for line in looked.evidence)
    else:
        assert looked.verdict == "INSUFFICIENT" and f"pid {first_pid} " in looked.evidence[0]


@pytest.mark.parametrize(("states", "went_on"), [("SSg", True), ("Sgg", False)])
def test_a_failed_helper_that_its_program_left_behind_is_not_the_end_of_the_run(states: str, went_on: bool) -> None:
    """`states` of the program at three looks; nothing tells with which exit code it ended."""
    names = {"S": "S", "g": "gone"}
    program = dataclasses.replace(
        process(50, "process"),
        beat=None,
        samples=tuple(Sample(1.5 * at, names[state]) for at, state in enumerate(states)),
    )
    zombie = tuple(Sample(1.5 * at, "Z") for at in range(3))
    helper = dataclasses.replace(process(52, "tool", ppid=50), beat=None, samples=zombie, exit_code=124)
    looked = triage(evidence(program, helper, source="live", stall_s=0.0))
    assert looked.verdict == "INSUFFICIENT" and ("not in good order" in looked.reason) is not went_on
    assert any("124" in line and "went on" in line for line in looked.evidence) is went_on


def test_a_rank_that_was_started_again_and_ended_well_is_not_the_end_of_the_run() -> None:
    failed = ended(1, beat_s=60.0, error="ValueError: no slot", error_s=60.0)
    again = dataclasses.replace(ended(1, beat_s=10.0), pid=300, beat=Beat(90, 10.0, 10.0, ended=True))
    well = dataclasses.replace(ended(0, beat_s=10.0), beat=Beat(90, 10.0, 10.0, ended=True))
    assert triage(evidence(failed, again, well, source="live", stall_s=0.0)).verdict == "HEALTHY"
    assert triage(evidence(failed, well, source="live", stall_s=0.0)).verdict == "INSUFFICIENT"


def test_the_exit_code_of_a_process_that_ends_between_two_looks_is_read() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    until(lambda: proc.look(child.pid).state == "Z")
    assert proc.look(child.pid).exit_code == 7 and proc.look(os.getpid()).exit_code is None
    child.wait()


def test_kills_are_counted_by_a_cgroup_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "memory" / "job").mkdir(parents=True)
    (tmp_path / "memory" / "job" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "own").write_text("4:memory:/job\n2:cpu,cpuacct:/\n0::/\n")
    assert killed_for_memory(tmp_path, tmp_path / "own") == 3


KERNEL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/job,task=python,pid=41,uid=0",
    "Memory cgroup out of memory: Killed process 41 (python (x)) total-vm:9kB, anon-rss:2048kB, file-rss:1024kB, "
    "shmem-rss:0kB, UID:0 pgtables:468kB oom_score_adj:0",
    "usb 1-1: new device",
)


def test_the_kernels_log_says_whom_it_killed_and_what_that_one_held() -> None:
    assert killed_by_kernel(KERNEL) == {41: 3 << 20} and killed_by_kernel(KERNEL[:1]) == {}


def peaks_of(*processes: ProcessSnapshot, killed: dict[int, int], failed: dict[int, Process]) -> tuple[Peak, ...]:
    sizes = {1: 10, 2: 30, 3: 20}
    peaks = Peaks("node1", lambda pid: sizes.get(pid, 0))
    peaks.look(processes, 0.0)
    return peaks.of_job(killed, failed)


# torchrun of torch 2.13, shortened; it ends with the failure that it saw first.
TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_13:23:41
  host      : localhost
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 2)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_peaks_are_those_of_this_host_with_who_was_killed_and_exit_codes() -> None:
    processes = [
        ProcessSnapshot(f"node{host}:{pid}:7", pid, state=state, name=f"rank {pid}")
        for host, pid, state in ((1, 1, "S"), (1, 2, "S"), (1, 9, "Z"), (2, 3, ""))
    ]
    first, second = peaks_of(*processes, killed={1: 50, 77: 9}, failed=failed_ranks(TABLE))
    assert first == Peak("node1", 1, "rank 1", 50, killed=True, exit_code=-9)
    assert second == Peak("node1", 2, "rank 2", 30, exit_code=1, rank=4, first_by_launcher=True)


def test_the_watch_keeps_how_long_a_process_was_gone_at_its_last_look() -> None:
    """Not of a tool, which a program calls and which ends soon."""
    peaks = Peaks("node1", lambda pid: 10)
    server, tool, trainer = (ProcessSnapshot(f"node1:{pid}:7", pid, name=f"process {pid}") for pid in (1, 2, 3))
    for at_s, processes in ((0.0, [server, trainer]), (3.0, [server, tool, trainer]), (4.0, [tool, trainer]),
                            (8.0, [trainer])):  # fmt: skip
        peaks.look(processes, at_s)
    gone_s = {peak.pid: peak.gone_s for peak in peaks.of_job({}, {})}
    assert gone_s == {1: 5.0, 2: 0.0, 3: 0.0}


LOST = "ConnectionError: server closed the connection"
SERVER = Peak("node0", 900, "python reward.py", 9 << 20, gone_s=5.0)


@pytest.mark.parametrize(("error", "gone", "named"), [
    (LOST, [SERVER], True),
    (LOST, [dataclasses.replace(SERVER, gone_s=0.0)], False),  # it outlived the rank
    (LOST, [SERVER, dataclasses.replace(SERVER, pid=901)], False),  # which of them was the peer?
    ("ValueError: no slot", [SERVER], False),  # the rank's own error
])  # fmt: skip
def test_a_server_without_a_record_that_ended_before_its_client_is_the_first_death(
    error: str, gone: list[Peak], named: bool
) -> None:
    client = ended(0, beat_s=9.0, error=error, error_s=9.5)
    echo = ended(1, beat_s=9.0, error=ECHO, error_s=9.2)
    verdict = triage(evidence(client, echo, source="live", stall_s=0.0, peaks=tuple(gone)))
    assert verdict.triage is not None
    assert ("python reward.py" in verdict.reason, "rank 0" in verdict.reason) == (named, True)
    listed = error == LOST and any(peak.gone_s for peak in gone)
    assert any("pid 900" in line for line in verdict.evidence) is listed
    assert any("python reward.py" in step for step in verdict.triage.next) is listed


def test_an_error_in_the_output_comes_before_the_loss_of_a_peer() -> None:
    """The peer has no rank and left no record, but its traceback stands in the output."""
    death = f"rank 0 (pid 7 on node0) ended with {LOST}; after it rank 1 ended with {ECHO}"
    result = WatchResult(1, None, None, "ValueError: reward: bad prompt", death)
    assert why_of(result).startswith("ValueError: reward: bad prompt; rank 0")
    own = death.replace(LOST, "KeyError: 7")
    assert why_of(dataclasses.replace(result, first_death=own)).startswith("rank 0")


def test_what_the_watch_wrote_of_an_end_is_read_again(tmp_path: Path) -> None:
    second = Peak("node1", 2, "rank 2", 30, exit_code=1, rank=4)
    peaks = Peak("node1", 1, "rank 1", 50, killed=True, exit_code=-9), second
    endings.write(tmp_path, peaks)
    gone = Process(host="node1", pid=2, ppid=1, samples=(Sample(0.0, "gone"),))
    alive = dataclasses.replace(gone, samples=(Sample(0.0, "S"),))
    for member, code in ((gone, 1), (alive, None)):
        added = endings.added(evidence(member, source="live"), tmp_path)
        assert [each.exit_code for each in added.processes] == [code, -9] and added.peaks == peaks


def test_a_rank_of_its_launchers_table_is_named_even_if_it_left_nothing_else(tmp_path: Path) -> None:
    endings.write(tmp_path, [Peak("node1", 2, "python train.py", 30, exit_code=1, rank=4)])
    gone = Process(host="node1", pid=2, ppid=1, samples=(Sample(0.0, "gone"),))
    for recorded in ([], [gone]):
        (added,) = endings.added(evidence(*recorded, source="live"), tmp_path).processes
        assert (added.pid, added.rank, added.exit_code) == (2, 4, 1)


@pytest.mark.parametrize("by_launcher", [True, False])
def test_a_sigterm_that_the_launcher_did_not_send_comes_before_those_that_it_sent(
    tmp_path: Path, by_launcher: bool
) -> None:
    """The control: the table is lost, so that nothing tells who of those with a SIGTERM was first."""
    ranks = [ended(number, beat_s=9.0, error=ECHO if number != 1 else "", error_s=9.5) for number in range(3)]
    endings.write(
        tmp_path,
        [Peak(each.host, each.pid, f"rank {each.rank}", 30, exit_code=-15, rank=each.rank,
              first_by_launcher=by_launcher and each.rank == 1) for each in ranks],
    )  # fmt: skip
    added = endings.added(evidence(*ranks, source="live", stall_s=0.0), tmp_path)
    reason = triage(added).reason.partition("order: ")[2]
    assert reason.startswith("rank 1 ended with signal 15 (SIGTERM)") is by_launcher


@pytest.mark.parametrize(
    ("died", "words", "step"),
    [
        ({"error": "MemoryError:"}, "ended with MemoryError", "free -h"),
        ({"error": "MemoryError"}, "ended with MemoryError", "free -h"),
        (
            {"error": "numpy._core._exceptions._ArrayMemoryError: too much"},
            "_ArrayMemoryError",
            "free -h",
        ),
        ({"exit_code": -signal.SIGSEGV}, "signal 11 (SIGSEGV)", "PYTHONFAULTHANDLER=1"),
        ({"exit_code": -signal.SIGFPE}, "signal 8 (SIGFPE)", "PYTHONFAULTHANDLER=1"),
        ({"exit_code": -signal.SIGBUS}, "signal 7 (SIGBUS)", "df -h /dev/shm"),
        # The look-alikes: errors of the program, and of a device.
        ({"error": "ValueError: MemoryError is no answer"}, "ended with ValueError", "read the end of its log"),
        ({"error": "torch.OutOfMemoryError: CUDA out of memory."}, "OutOfMemoryError", "nvidia-smi"),
        ({"exit_code": 11}, "exit code 11", "read the end of its log"),
    ],
)
def test_a_death_whose_cause_is_known_has_a_fix_for_it(died: dict[str, Any], words: str, step: str) -> None:
    dead = dataclasses.replace(ended(1, beat_s=10.0), **died)
    verdict = triage(evidence(dead, ended(0, beat_s=9.0, error=ECHO, error_s=9.5), source="live", stall_s=0.0))
    assert verdict.triage is not None and words in verdict.reason and verdict.triage.next[0].startswith(step)
    assert not verdict.reason.endswith(":")


RAISED = "ModuleNotFoundError: No module named 'verl'"


@pytest.mark.parametrize(
    ("death", "words", "why"),
    [
        ("", RAISED, RAISED),
        (f"rank 4 (pid 2) ended with {RAISED}", RAISED, f"rank 4 (pid 2) ended with {RAISED}"),
        ("rank 4 was killed", "no exception in its log, which ends: x", "rank 4 was killed"),
        ("rank 4 was killed", RAISED, f"rank 4 was killed; the last error that it printed: {RAISED}"),
    ],
)
def test_a_failed_command_is_told_by_its_first_death(death: str, words: str, why: str) -> None:
    result = WatchResult(1, None, None, last_words=words, first_death=death)
    assert why_of(result) == why and words_of(result).endswith(why)


@pytest.mark.parametrize(("code", "told"), [(5, True), (0, False), (86, False), (143, False)])
def test_the_exit_code_of_a_command_that_printed_nothing_is_told(code: int, told: bool) -> None:
    assert (f"exit code {code}" in words_of(WatchResult(code, None, None))) is told


@pytest.mark.parametrize("death", ["", "rank 1 ended with signal 6 (SIGABRT)"])
def test_an_abort_of_a_process_that_left_its_groups_alive_is_explained(death: str) -> None:
    aborted = WatchResult(1, None, None, last_words="terminate called without an active exception", first_death=death)
    assert "destroy_process_group" in why_of(aborted)
    other = WatchResult(1, None, None, last_words="terminate called after throwing an instance of 'int'")
    assert "destroy_process_group" not in why_of(other)


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"pid": "x"}]', "[3]", "[" * 100_000])
def test_a_damaged_file_of_ends_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / endings.NAME).write_text(text)
    assert endings.read(tmp_path) == ()


def test_a_kill_by_the_kernel_is_told_with_what_everybody_held() -> None:
    killed, echo = ended(1, beat_s=10.0, exit_code=-9), ended(0, beat_s=9.0, error=ECHO, error_s=9.5)
    peaks = [Peak(killed.host, killed.pid, "rank 1", 3 << 30, killed=True, exit_code=-9)]
    peaks += [Peak(killed.host, pid, f"loader {pid}", 200 << 20) for pid in (7, 8)]
    verdict = triage(evidence(echo, killed, source="live", stall_s=0.0, peaks=tuple(peaks)))
    assert verdict.reason.endswith("rank 1 was killed by the kernel for memory …")
    assert "memory at the peak: rank 1 3.0 GiB; 2 × loader, at most 200 MiB" in verdict.evidence


def test_a_kill_by_somebody_else_is_not_told_as_one_for_memory() -> None:
    killed = ended(1, beat_s=10.0, exit_code=-9)
    peaks = (Peak(killed.host, killed.pid, "rank 1", 3 << 30, exit_code=-9),)
    verdict = triage(evidence(killed, source="live", stall_s=0.0, peaks=peaks))
    assert "for memory" not in verdict.reason and any("3.0 GiB" in line for line in verdict.evidence)


def test_a_helper_that_the_kernel_killed_for_memory_is_named_whatever_its_program_said() -> None:
    program = dataclasses.replace(process(50, "process", gone=True), beat=None, journal=None, exit_code=0)
    helper = dataclasses.replace(program, pid=52, ppid=50, exit_code=137)
    kill = Peak(helper.host, helper.pid, "helper", 1 << 30, killed=True)
    assert triage(evidence(program, helper)).verdict == "HEALTHY"
    verdict = triage(evidence(program, helper, peaks=(kill,)))
    assert verdict.verdict == "INSUFFICIENT" and helper.key in verdict.reason


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({}, "INSUFFICIENT"),
        ({"exit_code": 0}, "HEALTHY"),
        ({"exit_code": -9}, "INSUFFICIENT"),
        ({"beat": Beat(9, 0.1, 0.1, ended=True)}, "HEALTHY"),
        ({"beat": Beat(9, 0.1, 0.1)}, "INSUFFICIENT"),
    ],
)
@pytest.mark.parametrize("with_child", [False, True])
def test_only_an_exit_code_or_a_last_word_says_that_an_end_was_in_good_order(
    end: dict[str, object], expected: str, with_child: bool
) -> None:
    looks = Sample(0.0, "S"), Sample(1.5, "gone")
    program = Process("node1", 50, command="python train.py", samples=looks, **end)  # type: ignore[arg-type]
    job = [program, *([Process("node1", 51, ppid=50, samples=looks)] if with_child else [])]
    verdict = triage(evidence(*job, source="live", stall_s=0.0))
    assert verdict.verdict == expected
    if not end:
        assert verdict.missing and verdict.triage is not None
        assert verdict.triage.next[0].startswith("harness watch -- python train.py ")


def test_the_watch_that_saw_the_command_succeed_vouches_for_its_processes() -> None:
    gone = Process("node1", 50, samples=(Sample(0.0, "S"), Sample(1.5, "gone")))
    seen = dataclasses.replace(evidence(gone, source="watch", stall_s=0.0), command_exit_code=0)
    assert triage(seen).verdict == "HEALTHY"


def test_a_process_that_ends_while_its_stacks_are_taken_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "60"])

    spied_pids: list[int] = []

    def spied(*_: object) -> stacks.Stacks:
        spied_pids.append(child.pid)
        if len(spied_pids) == 2:
            child.kill()
            child.wait()
        return stacks.Stacks()

    monkeypatch.setattr(conduct, "_spied", spied)
    looked_at = conduct.collect(
        Scope((child.pid,), ray_address=""), out=tmp_path / "out", gap_s=0.01, native=False, nodes=False
    )
    assert [look.state in ENDED for look in looked_at.processes[0].samples] == [False, True]


def test_a_longer_look_at_processes_that_have_ended_is_about_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "60"])
    looks: list[Evidence] = []

    def collected(*arguments: object, **options: object) -> Evidence:
        looks.append(conduct.collect(*arguments, **options))  # type: ignore[arg-type]
        child.kill()
        child.wait()
        return looks[-1]

    monkeypatch.setattr(run, "collect", collected)
    monkeypatch.setattr(run, "_may_decide_later", lambda verdict, looked_at: True)
    verdict = run.triage([str(child.pid)], tmp_path / "out", longer_s=0.2)
    assert len(looks) == 2 and [look.state in ENDED for look in looks[1].processes[0].samples] == [False, True]
    assert verdict.verdict == "INSUFFICIENT" and looks[1].processes[0].command == "sleep 60"
    assert verdict.triage is not None and verdict.triage.next[0].startswith("harness watch -- sleep 60 ")
