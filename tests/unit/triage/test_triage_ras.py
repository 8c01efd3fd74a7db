"""NCCL RAS, as text and as JSON: what it shows of ranks that are behind or do not answer. It is one look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.triage.communicators import of_json
from harness.triage.judge import triage as judge
from harness.triage.pasted import ras
from harness.triage.run import triage
from reports.model import Verdict
from tests.support.triage_evidence import evidence, process

SUMMARY = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  {errors}

Errors
======

"""
OK = SUMMARY.format(errors="OK")
MISMATCH = SUMMARY.format(errors="MISMATCH")
LAG = """Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 20
  Rank 1 has launched up to operation 19 -- GPU 1 managed by process 812 on node 10.0.0.2

"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 812 on node 10.0.0.2 managing GPU 1

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 812 on node 10.0.0.2

Warnings
========

"""
QUIET = "Warnings\n========\n\n"
COUNTS = {"Broadcast": 5, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 20}


def rank(number: int, **counts: int) -> dict[str, Any]:
    return {
        "rank": number, "host": "10.0.0.2", "pid": 811 + number, "cuda_dev": number, "nvml_dev": number,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                   "abort_flag": False},
        "collective_counts": {**COUNTS, **counts},
    }  # fmt: skip


def communicator(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = (), name: str = "ae") -> dict[str, Any]:
    return {"hash": f"0x{name}", "size": len(ranks) + len(missing), "ranks_count": len(ranks),
            "missing_ranks_count": len(missing), "ranks": list(ranks), "missing_ranks": list(missing)}  # fmt: skip


def absent(number: int, *, dead: bool) -> dict[str, Any]:
    return {"rank": number, "host": "10.0.0.2", "pid": 811 + number, "cuda_dev": 0, "nvml_dev": 0,
            "status": {"unresponsive": True, "considered_dead": dead}}  # fmt: skip


def status(*communicators: dict[str, Any]) -> dict[str, Any]:
    return {"nccl_version": "2.29.1", "communicators_count": len(communicators), "communicators": list(communicators),
            "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}  # fmt: skip


FOUR = [rank(number) for number in range(4)]
LAGGING = communicator(FOUR[0], rank(1, AllReduce=19), FOUR[2], FOUR[3])


def judged(folder: Path, content: str | dict[str, Any], name: str = "status") -> Verdict:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    verdict = triage([str(folder / name)])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    return verdict


@pytest.mark.parametrize("content", [MISMATCH + LAG, status(LAGGING), "OK\n" + json.dumps(status(LAGGING))])
def test_the_rank_that_is_behind_is_named_and_nothing_is_proven(tmp_path: Path, content: Any) -> None:
    reason = judged(tmp_path, content).reason
    assert "rank 1 (pid 812" in reason and "3 others 20" in reason


def test_an_answer_without_counts_says_of_nobody_that_none_is_behind(tmp_path: Path) -> None:
    bare = [{key: value for key, value in each.items() if key != "collective_counts"} for each in FOUR]
    assert "nobody is behind" in judged(tmp_path, status(communicator(*FOUR))).reason
    verdict = judged(tmp_path, status(communicator(*bare)))
    assert "nobody is behind" not in verdict.reason and any("no operation counts" in gap for gap in verdict.missing)


def test_text_before_nccl_2_26_counts_all_collectives_together(tmp_path: Path) -> None:
    assert "19 collective" in judged(tmp_path, MISMATCH + LAG.replace("AllReduce", "collective")).reason


@pytest.mark.parametrize("content", [OK + QUIET, status(communicator(*FOUR))])
def test_nobody_is_named_where_the_counts_are_equal(tmp_path: Path, content: Any) -> None:
    verdict = judged(tmp_path, content)
    assert "nobody is behind" in verdict.reason and "812" not in verdict.to_json()


def test_two_against_two_names_nobody_but_those_for_whom_the_others_wait(tmp_path: Path) -> None:
    halves = communicator(FOUR[0], FOUR[1], rank(2, AllReduce=19), rank(3, AllReduce=19))
    assert "ranks 2, 3 have launched 19" in judged(tmp_path, status(halves)).reason


def test_one_that_is_ahead_of_all_others_names_nobody(tmp_path: Path) -> None:
    reason = judged(tmp_path, status(communicator(rank(0, AllReduce=21), *FOUR[1:]))).reason
    assert "do not say for whom" in reason


def test_a_rank_that_runs_another_operation_is_named_with_it(tmp_path: Path) -> None:
    odd = communicator(FOUR[0], rank(1, AllReduce=19, Broadcast=6), FOUR[2], FOUR[3])
    assert judged(tmp_path, status(odd)).reason.endswith("launched Broadcast where 3 others launched AllReduce")


def test_a_rank_that_waits_in_another_communicator_is_not_named(tmp_path: Path) -> None:
    pair = communicator(rank(0, AllReduce=7), rank(1, AllReduce=8), name="b1")  # rank 1 is ahead of rank 0 here
    pair["ranks"][0]["pid"] = 900
    assert "pid 900" in judged(tmp_path, status(LAGGING, pair)).reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (SUMMARY.format(errors="INCOMPLETE") + DEAD, "considers rank 1 (pid 812 on 10.0.0.2) dead"),
        (status(communicator(FOUR[0], missing=(absent(1, dead=True),))), "considers rank 1 (pid 812 on 10.0.0.2)"),
        (status(communicator(FOUR[0], missing=(absent(1, dead=False),))), "rank 1 (pid 812 on 10.0.0.2) does not"),
    ],
)  # fmt: skip
def test_a_process_that_does_not_answer_comes_before_counts(tmp_path: Path, content: Any, words: str) -> None:
    assert words in judged(tmp_path, content).reason


def test_an_error_is_told_and_that_of_a_peer_is_an_echo(tmp_path: Path) -> None:
    first, echo = rank(0), rank(1)
    first["status"]["async_error"], echo["status"]["async_error"] = 1, 6
    verdict = judged(tmp_path, status(communicator(echo, first)))
    assert verdict.reason.startswith("rank 0") and verdict.evidence[-1].endswith("echo")


def test_a_rank_that_left_the_communicator_is_named(tmp_path: Path) -> None:
    gone = absent(3, dead=False)
    gone["status"]["unresponsive"] = False
    assert (
        "rank 3 (pid 814 on 10.0.0.2) NOCOMM"
        in judged(tmp_path, status(communicator(*FOUR[:3], missing=(gone,)))).reason
    )


@pytest.mark.parametrize(
    "content", [MISMATCH, json.dumps(status(LAGGING), indent=2)[:-40], MISMATCH + "#0-0 (cf264af53edbe986) MISMATCH\n"]
)
def test_a_status_that_is_cut_short_says_so(tmp_path: Path, content: str) -> None:
    verdict = judged(tmp_path, content)
    assert any("cut short" in line for line in [verdict.reason, *verdict.missing])


SECTION = "Warnings\n========\n\n#0-0 (cf264af53edbe986) {0}\n"
DIFFER = "  Communicator ranks have different AllReduce operation counts\n"


@pytest.mark.parametrize(
    ("kind", "text", "operation"),
    [
        ("MISMATCH", SECTION.format("MISMATCH") + DIFFER, "AllReduce"),
        ("MISMATCH", SECTION.format("MISMATCH") + DIFFER + "  3 ranks stood at operation 20\n", "AllReduce"),
        ("MISMATCH", SECTION.format("MISMATCH") + DIFFER + "  3 ranks have launched up to operation 20\n", "AllReduce"),
        ("MISMATCH", SECTION.format("MISMATCH") + "  Communicator ranks are of two minds\n", ""),
        ("MISMATCH", QUIET, ""),
        ("INCOMPLETE", SECTION.format("INCOMPLETE") + "  Missing communicator data from 1 rank\n", ""),
        ("ERROR", SECTION.format("ERROR"), ""),
    ],
)
def test_a_mismatch_without_its_details_is_told_and_no_counts_are_equal(
    tmp_path: Path, kind: str, text: str, operation: str
) -> None:
    summary = SUMMARY.format(errors=kind)
    [lack] = ras.of_text(summary + text).lacks
    assert (lack.kind, lack.operation) == (kind, operation)
    verdict = judged(tmp_path, summary + text)
    assert kind in verdict.reason and "equally many" not in verdict.reason
    assert any("not in the text" in line for line in verdict.missing)


@pytest.mark.parametrize("text", [OK + QUIET, MISMATCH + LAG, SUMMARY.format(errors="INCOMPLETE") + DEAD])
def test_an_answer_with_all_its_details_lacks_none(text: str) -> None:
    """The control."""
    assert ras.of_text(text).lacks == ()


def test_a_share_of_one_rank_that_is_listed_below_it_is_read(tmp_path: Path) -> None:
    listed = "  1 rank has launched up to operation 19\n  Rank 1 -- GPU 1 managed by process 812 on node 10.0.0.2\n"
    text = MISMATCH + SECTION.format("MISMATCH") + DIFFER + "  3 ranks have launched up to operation 20\n" + listed
    assert "rank 1 (pid 812 on 10.0.0.2) has launched 19" in judged(tmp_path, text).reason


def test_ranks_whose_counts_are_not_in_the_text_are_counted(tmp_path: Path) -> None:
    text = MISMATCH + LAG.replace("3 ranks", "2 ranks")
    [lack] = ras.of_text(text).lacks
    verdict = judged(tmp_path, text)
    assert lack.ranks == 1 and "rank 1 (pid 812 on 10.0.0.2) has launched 19" in verdict.reason
    assert any("1 rank of communicator" in line for line in verdict.missing)


HUGE = 10**18


@pytest.mark.parametrize(
    "content",
    [
        MISMATCH + LAG.replace("Rank 1 ", f"Rank {HUGE} "),
        MISMATCH + LAG.replace("3 ranks", f"{HUGE} ranks"),
        MISMATCH + LAG.replace("operation 20", f"operation {'9' * 19}"),
        status({**LAGGING, "size": HUGE}),
        status(communicator(rank(HUGE))),
        status(communicator({**rank(0), "pid": HUGE})),
        status(communicator({**rank(0), "host": "h" * 10_000})),
    ],
)
def test_impossible_numbers_are_refused_and_blame_nobody(tmp_path: Path, content: Any) -> None:
    verdict = judged(tmp_path, content)
    assert any("damaged" in line for line in verdict.missing)


@pytest.mark.slow
def test_an_answer_of_many_ranks_is_read_in_linear_time() -> None:
    members = "".join(f"  Rank {n} -- GPU 0 managed by process {n} on node 10.0.0.2\n" for n in range(100_000))
    begin = MISMATCH + LAG.replace(
        "  Rank 1 has", "  100000 ranks have launched up to operation 18\n" + members + "  Rank 1 has"
    )
    parts = ras.of_text(begin).uneven[0].counts["AllReduce"]
    assert [share.size for share in parts] == [3, 100_000, 1] and len(parts[1].members) == 100_000


def test_text_and_json_of_one_job_agree() -> None:
    [text], [decoded] = ras.of_text(MISMATCH + LAG).uneven, of_json(status(LAGGING)).uneven
    assert text.counts["AllReduce"][1] == decoded.counts["AllReduce"][1]
    assert (text.size, text.counts["AllReduce"][0].size) == (decoded.size, decoded.counts["AllReduce"][0].size)


def test_stacks_beside_the_status_say_where_the_ranks_stand(tmp_path: Path) -> None:
    (tmp_path / "status").write_text(MISMATCH + LAG)
    for number, line in enumerate((12, 10, 12, 12)):
        stack = f'Thread {811 + number} (idle): "MainThread"\n    step (train.py:{line})\n'
        (tmp_path / f"rank{number}.txt").write_text(f"Process {811 + number}: python train.py\n{stack}")
    verdict = triage([str(tmp_path)])
    assert verdict.reason.startswith("NCCL RAS: rank 1") and any("train.py:10" in line for line in verdict.evidence)


@pytest.mark.parametrize(("stall_s", "verdict", "culprits"), [(300.0, "HUNG", [812]), (0.0, "INSUFFICIENT", [])])
def test_only_a_job_that_was_watched_has_a_culprit(stall_s: float, verdict: str, culprits: list[int]) -> None:
    waiting = [process(811 + number, "rank", "main:10 run:20 getresponse") for number in (0, 2, 3)]
    late = process(812, "rank", "main:10 compute:30")
    answers = {"node0": status(LAGGING)}
    seen = judge(evidence(*waiting, late, stall_s=stall_s, ras=answers))
    assert (seen.verdict, [party.pid for party in seen.triage.culprits]) == (verdict, culprits)
