"""A job that ends while it is looked at: what its processes wrote last decides, not what they wrote before."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, group, process, rank

from harness.triage.collect import Scope, beats, conduct
from harness.triage.evidence import Beat, Process, Sample
from harness.triage.judge import triage
from probes.heartbeat import WATCHDOG

GONE = Sample(12.0, "gone")


def finished(number: int, stack: str) -> Process:
    """A rank that stood in `stack` at the first look, and ended in good order since."""
    waiting = rank(number, stack, world=2)
    return replace(waiting, samples=(waiting.samples[0], GONE), beat=Beat(9, 1.0, 1.0, ended=True))


def test_ranks_that_ended_in_good_order_wait_for_nobody() -> None:
    ranks = finished(0, ""), finished(1, "main:10 step:42 broadcast")
    launcher = process(90, "launcher", "main:40 sleep", "main:41 sleep")
    at = compared(group("0", {0: 1, 1: (2, "broadcast")}))
    verdict = triage(evidence(launcher, *ranks, source="live", stall_s=0.0), at)
    assert verdict.verdict == "HEALTHY" and verdict.triage is not None and not verdict.triage.waits


def test_a_rank_that_died_in_its_wait_is_no_finished_one() -> None:
    waiting = finished(1, "main:10 step:42 broadcast")
    died = replace(waiting, beat=Beat(9, 1.0, 1.0), exit_code=-9)
    at = compared(group("0", {0: 1, 1: (2, "broadcast")}))
    verdict = triage(evidence(finished(0, ""), died, source="live", stall_s=0.0), at)
    assert verdict.verdict == "INSUFFICIENT" and "rank 1" in verdict.reason


def test_the_last_beat_is_read_though_the_watch_has_removed_its_directory(tmp_path: Path) -> None:
    folder, here = tmp_path / "watch", socket.gethostname()
    (folder / beats.FOLDER).mkdir(parents=True)
    fields = {"host": here, "pid": 7, "count": 3, "t_ns": 10**9, "progress_ns": 10**9, "start_ticks": 5}
    file = folder / beats.FOLDER / "7.json"
    file.write_text(json.dumps(fields))
    with contextlib.ExitStack() as stack:
        pulse = beats.kept_open(beats.read(folder, 2 * 10**9)[0], stack)[here, 7]
        with file.open("r+") as stream:  # rewritten in place, as the probe does
            stream.write(json.dumps({**fields, "count": 4, "ended": True}))
        shutil.rmtree(folder)
        assert beats.again(pulse, 4 * 10**9).beat.ended
    assert beats.again(pulse, 5 * 10**9) == pulse  # it is closed again


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_known_though_the_watch_has_removed_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = tmp_path / "watch"
    (folder / beats.FOLDER).mkdir(parents=True)
    (folder / WATCHDOG).write_text("{}")
    gather = conduct._gather

    def ending(*words: object) -> object:
        with (folder / WATCHDOG).open("r+") as stream:
            stream.write(json.dumps({"exit_code": code}))
        shutil.rmtree(folder)
        return gather(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(conduct, "_gather", ending)
    scope = Scope(directory=folder, ray_address="")
    assert conduct.collect(scope, out=tmp_path / "out", samples=1).command_exit_code == code


@pytest.mark.parametrize("state", ["S", "gone"])
def test_what_a_process_wrote_while_it_lived_does_not_say_how_it_ended(state: str) -> None:
    """The control had ended at the earlier look already: nothing was written later."""
    before = replace(
        rank(0, "main:10 step:42 all_reduce"), samples=(Sample(0.0, "S"), Sample(1.5, state)), command="job"
    )
    now = Process(before.host, before.pid, samples=(GONE,))
    joined = conduct.continued(evidence(now), evidence(before), 5.0)
    lived = state == "S"
    assert (joined.processes[0].beat is None) is lived
    verdict = triage(replace(joined, source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert any("dmesg" in step for step in verdict.triage.next) is not lived
