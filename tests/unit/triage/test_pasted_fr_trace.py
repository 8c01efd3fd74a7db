"""What torch's `fr_trace` prints of a folder of dumps, pasted in their place. The texts are those of torch 2.13."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.flight import synthesis
from harness.triage.pasted.fr_trace import findings
from harness.triage.run import triage
from reports.model import Verdict

TRACE = """collective stack trace: 
 all_gather at /opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2934
forward at /opt/job/model/layers.py:34
<module> at /opt/job/train.py:61
"""
MISSING = """Not all ranks joining collective, sequence number: {seq}
internal record id: 9
group info: {group}
collective: nccl:_all_gather_base
missing ranks: {{{missing}}}
input sizes: [[4096]]
output sizes: [[8192]]
world size: 2
expected ranks: {{{expected}}}
collective state: started
""" + TRACE  # fmt: skip
DIFFERS = """Collective sequence number: 2 has errors
internal record id: 5
group info: 4:dp
collective: nccl:_all_gather_base
input sizes: [[1048576]]
output sizes: [[2097152]]
world size: 2
expected ranks: {1, 3}
collective state: started
error msg: Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: '_all_gather_base' does not \
match found collective type: 'reduce'
""" + TRACE  # fmt: skip
NO_DUMP = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/lib/python3.11/site-packages/torch/distributed/flight_recorder/components/utils.py", line 706, in check
    raise AssertionError(f"Missing dump files from ranks {missing}")
AssertionError: Missing dump files from ranks {1}
"""
CELLS = """Rank 0                                                    Rank 1
--------------------------------------------------------  --------------------------------------------------------
all_reduce(input_sizes=[[4, 512, 4096]], state=completed)  all_reduce(input_sizes=[[4, 512, 4096]], state=completed)
"""
SERVER = """=== FR Trace ===
--- Groups ---
id                     desc      size
19000494312501845833   tp           2
--- Collectives ---
  id    group_id  pass_check      collective_seq_id    p2p_seq_id    record_id  pg_desc    collective_name
   0           1  True                            1             0            0  1:tp       nccl:all_reduce
"""
STACK = (
    'Process 7: python /job/train.py\nThread 7 (idle): "MainThread"\n'
    "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:12)\n"
)


def judged(tmp_path: Path, text: str, **beside: str) -> Verdict:
    (tmp_path / "fr_trace.txt").write_text(text)
    for name, words in beside.items():
        (tmp_path / f"{name}.txt").write_text(words)
    verdict = triage([str(tmp_path)])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    return verdict


def missing(seq: int, group: str, absent: str, expected: str) -> str:
    return MISSING.format(seq=seq, group=group, missing=absent, expected=expected)


def test_a_rank_that_has_not_come_is_told_and_the_dumps_are_asked_for(tmp_path: Path) -> None:
    verdict = judged(tmp_path, missing(7, "1:tp", "1", "0, 1"))
    assert "rank 1 has not come to _all_gather_base #7 of group 1:tp" in verdict.reason
    assert verdict.triage is not None and verdict.triage.next[0].startswith("harness triage FOLDER")


def test_a_rank_that_waits_elsewhere_is_not_told_first(tmp_path: Path) -> None:
    """Rank 0 is missing in its second group since it waits for rank 1 in the first."""
    verdict = judged(tmp_path, missing(4, "3:dp", "0", "0, 2") + missing(7, "1:tp", "1", "0, 1"))
    assert "rank 1 has not come" in verdict.reason and len(verdict.evidence) == 2


def test_an_operation_that_differs_is_told_without_a_culprit(tmp_path: Path) -> None:
    verdict = judged(tmp_path, DIFFERS)
    assert "rank 1 differs from the first rank in _all_gather_base #2" in verdict.reason
    assert any("COLLECTIVE_TYPE_MISMATCH" in line and "'reduce'" in line for line in verdict.evidence)


def test_the_failure_of_the_analysis_is_none_of_the_job(tmp_path: Path) -> None:
    verdict = judged(tmp_path, NO_DUMP)
    assert "no dump of rank 1" in verdict.reason and "the dump of rank 1" in verdict.missing


@pytest.mark.parametrize("text", [CELLS, SERVER])
def test_of_a_table_nothing_is_read(tmp_path: Path, text: str) -> None:
    verdict = judged(tmp_path, text)
    assert verdict.reason.startswith("a table of fr_trace") and any(
        "give the dumps" in line for line in verdict.missing
    )


@pytest.mark.parametrize("text", [CELLS, SERVER])
def test_stacks_beside_a_table_say_more(tmp_path: Path, text: str) -> None:
    verdict = judged(tmp_path, text, rank_0=STACK, rank_1=STACK.replace(":12", ":14"))
    assert "rank 1 at train.py:14" in verdict.reason and any("give the dumps" in line for line in verdict.missing)


def test_an_error_in_a_log_says_more(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path, missing(7, "1:tp", "1", "0, 1"), log="[rank1]: RuntimeError: CUDA error: unknown error\n"
    )
    assert "CUDA error" in verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        "a table of (input_sizes=[[4]]) that is no cell\n",
        "Rank 0   Rank 1\nloss 1   loss 2\n",
        "Not all ranks joining collective, sequence number: x\n",
    ],
)
def test_texts_that_only_look_so_have_no_findings(text: str) -> None:
    assert not list(findings("log.txt", text))


def test_the_dumps_themselves_decide_where_they_are(tmp_path: Path) -> None:
    fault = synthesis.Fault("dead", 1, 9)
    list(synthesis.write(synthesis.simulate(4, 12, fault, tensor_parallel=2), tmp_path))
    (tmp_path / "fr_trace.txt").write_text(missing(7, "1:tp", "1", "0, 1"))
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and [each.rank for each in verdict.triage.culprits] == [1]


@pytest.mark.slow
def test_torchs_own_analysis_prints_what_is_read(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    list(synthesis.write(synthesis.simulate(4, 12, synthesis.Fault("skip", 1, 5), tensor_parallel=2), dumps))
    module = "torch.distributed.flight_recorder.fr_trace"
    command = [sys.executable, "-m", module, str(dumps), "-p", synthesis.PREFIX]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    [finding] = findings("printed", printed.stdout + printed.stderr)
    assert (finding.kind, finding.op, finding.seq, finding.ranks, finding.expected) == (
        "missing", "_all_gather_base", 2, (1,), (1, 3))  # fmt: skip
