"""A thread that ends with an error is in the beat of its process; one that ends in order is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.triage.collect import beats
from probes import lost_threads
from probes.heartbeat import Heartbeat


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hook in place of pytest's own, with nothing remembered. Yields the names that it was given before."""
    before: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: before.append(args.thread.name))
    lost_threads._lost.clear()
    lost_threads.watch()
    lost_threads.watch()  # a second probe of one process
    yield before
    lost_threads._lost.clear()


def end(name: str, error: BaseException | None = None) -> None:
    def work() -> None:
        if error is not None:
            raise error

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_a_thread_that_ends_with_an_error_is_remembered_and_the_hook_of_before_still_runs(watched: list[str]) -> None:
    end("healthy")
    end("leaves", SystemExit(3))
    end("collector", RuntimeError("password=hunter2secret1 was refused"))
    [thread] = lost_threads.lost()
    assert thread["name"] == "collector" and thread["error"].startswith("RuntimeError: password=***")
    assert watched == ["leaves", "collector"]


def test_the_first_threads_are_kept() -> None:
    for number in range(lost_threads.MOST + 2):
        end(f"worker-{number}", ValueError(number))
    assert [thread["name"] for thread in lost_threads.lost()] == [f"worker-{n}" for n in range(lost_threads.MOST)]


def test_the_beat_carries_it_to_the_evidence(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path)
    assert "lost_threads" not in heart.beat()
    end("collector", RuntimeError("no more prompts"))
    beat = heart.beat()
    pulse = beats.parse(heart.path.read_bytes(), beat["t_ns"] + 5 * 10**9)
    [thread] = pulse.beat.lost_threads
    assert (thread.name, thread.error) == ("collector", "RuntimeError: no more prompts") and thread.age_s >= 5


@pytest.mark.parametrize("damage", [5, "x", [5], [{}], [{"t_ns": "x"}], {"t_ns": 1}])
def test_a_damaged_list_is_a_damaged_beat(tmp_path: Path, damage: object) -> None:
    heart = Heartbeat(tmp_path)
    content = {**heart.beat(), "lost_threads": damage}
    with pytest.raises(beats._DAMAGED):
        beats.parse(json.dumps(content).encode(), content["t_ns"])


LOSES = """
import threading, sys
def work(): raise {error}
thread = threading.Thread(target=work, name="collector")
thread.start()
thread.join()
print("goes on")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("error", "recorded"), [("RuntimeError('no more prompts')", True), ("SystemExit(3)", False)])
def test_a_process_of_a_watched_command_is_recorded_from_the_thread_on_that_it_loses(
    tmp_path: Path, error: str, recorded: bool
) -> None:
    """Though it imports neither torch nor Ray; the error is still printed, and what is written is its last beat."""
    root = Path(__file__).parents[3]
    variables = {"PYTHONPATH": str(root / "probes" / "site"), "RLHF_HARNESS_WATCH": str(tmp_path / "watch")}
    wait = f"import os, time\nwhile not os.path.isdir({str(tmp_path / 'watch' / 'beats')!r}): time.sleep(0.05)\n"
    code = LOSES.format(error=error) + wait * recorded
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "goes on\n" and ("no more prompts" in done.stderr) == recorded
    assert (tmp_path / "watch").exists() == recorded
    if recorded:
        [beat] = (tmp_path / "watch" / "beats").iterdir()
        content = json.loads(beat.read_text())
        assert [thread["name"] for thread in content["lost_threads"]] == ["collector"]
