"""A log in which a process tries again after its error: that error is not the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ADVICE = "If reserved memory is large try setting PYTORCH_CUDA_ALLOC_CONF, or try lowering batch sizes"
WORK = ["batch 32 fits", "step 1 loss 2.3", "training finished in 320 s"]


def judged(tmp_path: Path, *lines: str) -> Verdict:
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    return triage([str(log)], str(tmp_path / "evidence"))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["INFO: auto batch size: CUDA out of memory at batch 64, trying 32", *WORK], id="in its line"),
        pytest.param([f"WARNING: {OOM}", "retrying with batch size 16", *WORK], id="in the next line"),
        pytest.param([f"[rank1]: WARNING: {OOM} -- skipping this batch", "[rank1]: step 4 reward 0.4"], id="of a rank"),
        pytest.param(["Traceback (most recent call last):", '  File "t.py", line 3, in step', OOM,
                      "falling back to micro-batches of 1", *WORK], id="behind a traceback"),
    ],
)  # fmt: skip
def test_an_error_after_which_its_process_tried_again_is_no_first_failure(tmp_path: Path, lines: list[str]) -> None:
    verdict = judged(tmp_path, *lines)
    assert verdict.verdict == "INSUFFICIENT" and "first failure" not in verdict.reason, verdict.reason


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        pytest.param([f"{OOM} {ADVICE}", *WORK], 1, id="advice"),
        pytest.param(["CUDA out of memory at batch 64, trying 32"], 1, id="nothing behind it"),
        pytest.param(["CUDA out of memory at batch 64, trying 32", "batch 32", OOM], 3, id="the second attempt failed"),
        pytest.param([f"[rank1]: {OOM} retrying", "[rank0]: step 4 reward 0.4"], 1, id="another rank went on"),
    ],
)
def test_an_error_that_nothing_says_was_survived_is_the_first_failure(
    tmp_path: Path, lines: list[str], at: int
) -> None:
    verdict = judged(tmp_path, *lines)
    assert verdict.triage is not None and verdict.triage.place == f"train.log:{at}", verdict.reason
