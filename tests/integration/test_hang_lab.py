"""Real hangs and controls under the real watchdog: a fixed subset of the lab, two at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.planted.hangs import lab
from harness.planted.hangs.hang_outcome import Outcome
from scenarios.planted.hangs.catalog import HANGS, VARIANTS, Hang

STALL_S = 5.0
# Another kind each, chosen for their speed: worlds of two where two are enough, and without Ray, which
# test_ray_job.py and test_ray_resources.py start. All of them: `make faults`.
BY_DAY = ("trip-publish", "order-pair", "dead-thread", "state-stopped", "slow-shards")
NAMES = (
    *BY_DAY, "ray-pair", "replica-more", "branch-timeout", "http-pair", "sleep-wake", "replica-evaluation",
    "order-pair+spin", "dead-keepalive+logger", "async-lost",
) if os.environ.get("TEST_PROFILE") == "nightly" else BY_DAY  # fmt: skip
MARK = "RLHF_HARNESS_LAB="


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    out = tmp_path_factory.mktemp("lab")
    hangs = [hang for hang in (*HANGS, *VARIANTS) if hang.name in NAMES]
    return {one.hang.name: one for one in lab.outcomes(hangs, stall_s=STALL_S, jobs=2, out=out)}


@pytest.mark.parametrize("name", NAMES)
def test_each_is_judged_as_it_is(found: dict[str, Outcome], name: str) -> None:
    one = found[name]
    assert one.right, (one.to_dict(), one.verdict and one.verdict.reason)
    assert not one.blamed


def test_a_culprit_is_shown_where_it_stands(found: dict[str, Outcome]) -> None:
    wrong = {name: one.frames for name, one in found.items() if not one.frame_right}
    assert not wrong


def test_a_verdict_comes_within_ten_seconds_of_the_threshold(found: dict[str, Outcome]) -> None:
    """On a machine that imports torch in two: on one that is busy with something else, by as many times more."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    bar = max(10.0, 5 * (time.monotonic() - began))
    late = {name: one.seconds for name, one in found.items() if one.seconds is not None and one.seconds > bar}
    assert not late


def test_no_process_is_left(found: dict[str, Outcome]) -> None:
    assert not _ours()


def test_a_trial_that_is_left_early_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("")
    (tmp_path / "long.py").write_text("import subprocess, sys\nsubprocess.run(['sleep', '1000'])\n")
    hangs = [Hang(name, "", "", str(tmp_path / f"{name}.py"), verdict="HEALTHY") for name in ("long", "short")]
    running = lab.outcomes(hangs, jobs=2, stall_s=60.0, out=tmp_path)
    first = next(running)
    assert first.hang.name == "short" and first.right, first.to_dict()
    assert _ours(), "the long program was never started"
    running.close()
    assert not _ours()


def _ours() -> list[int]:
    """Processes of any trial that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(MARK.encode()) and f"-{os.getpid()}-".encode() in word for word in words):
            found.append(int(entry.name))
    return found
