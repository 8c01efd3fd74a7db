"""Frames of an engine that runs from a checkout, as after `pip install -e`, are the engine's and not the user's."""

from __future__ import annotations

import pytest

from harness.triage.evidence import Frame
from harness.triage.places import match, users


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/u/sglang/python/sglang/srt/managers/scheduler.py", False),
        ("/workspace/sgl-fork/python/sglang/srt/utils/common.py", False),
        ("/home/u/vllm/vllm/distributed/parallel_state.py", False),
        ("/workspace/vllm-0.31-patched/vllm/executor/ray_utils.py", False),
        ("/src/fork/vllm/v1/worker/gpu_worker.py", False),
        ("/home/u/vllm/train.py", True),
        ("/home/u/vllm-jobs/train.py", True),
        ("/home/u/src/vllm_rollout/worker.py", True),
        ("/home/u/sglang/my_scheduler.py", True),
        ("/home/u/python/train.py", True),
    ],
)
def test_the_files_of_a_checkout_are_the_engines(file: str, own: bool) -> None:
    assert users(Frame("step", file, 3)) is own


def test_the_scheduler_loop_of_a_checkout_is_known() -> None:
    entry = match(Frame("event_loop_normal", "/home/u/sglang/python/sglang/srt/managers/scheduler.py", 901))
    assert entry is not None and entry.kind == "scheduler"
