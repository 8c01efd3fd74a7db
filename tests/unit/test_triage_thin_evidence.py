"""Thin evidence: what was not seen, what is of another run, and what a name alone suggests, blames nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from flight_support import entry
from triage_evidence import compared, evidence, group

from harness.triage.evidence import Evidence
from harness.triage.flight import compare, load_directory
from harness.triage.flight.compare import DEFAULT
from harness.triage.judge import triage
from reports.model import Verdict


def dump(
    at: int,
    *,
    pending: bool,
    mentions: Sequence[int] = (),
    later_ns: int = 0,
    odd: Mapping[int, str] | None = None,
) -> str:
    """What gloo's recorder writes of a rank that is in #`at`, or has done it; `odd`: other operations, by number."""
    entries = []
    for seq in range(1, at + 1):
        one = entry(seq, (odd or {}).get(seq, "all_reduce"), backend="gloo", done=not (pending and seq == at))
        entries.append({**one, "time_created_ns": 1_760_000_000_000_000_000 + seq * 1_000_000 + later_ns})
    config = {"": {"name": "", "desc": "", "ranks": str(list(mentions))}}
    return json.dumps({"version": "2.10", "pg_config": config, "entries": entries})


def dumped(folder: Path, files: Mapping[int, str]) -> Evidence:
    for number, text in files.items():
        (folder / f"rank{number}.json").write_text(text)
    return Evidence(str(folder), "dumps", "", 0.0)


def judged(folder: Path, files: Mapping[int, str]) -> Verdict:
    return triage(dumped(folder, files))


def nobody(verdict: Verdict, kind: str = "INSUFFICIENT") -> None:
    assert verdict.verdict == kind, verdict.reason
    assert verdict.triage is not None and not verdict.triage.culprits and not verdict.triage.cycle


# ---- a dump that is not there, or cannot be read, is no proof that everybody has come


def test_a_culprit_without_a_dump_is_no_fault_of_the_fabric(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {n: dump(5, pending=True) for n in range(3)})  # of four: nobody says so
    nobody(verdict)
    assert any("members of group 0" in item for item in verdict.missing)


@pytest.mark.parametrize("third", ["", dump(5, pending=False)[:300], '{"pg_config": {}, "entries": 7}'])
def test_a_culprit_whose_dump_cannot_be_read_is_missing_by_name(tmp_path: Path, third: str) -> None:
    verdict = judged(tmp_path, {**{n: dump(5, pending=True) for n in range(3)}, 3: third})
    nobody(verdict)
    assert any(item.startswith("no recorder data from rank 3 (rank3.json is") for item in verdict.missing)
    assert "rank 3" in verdict.reason


def test_a_rank_that_the_other_dumps_mention_is_missing_by_name(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {n: dump(5, pending=True, mentions=range(4)) for n in range(3)})
    nobody(verdict)
    assert "no recorder data from rank 3" in verdict.missing and "rank 3" in verdict.reason


def test_a_rank_that_is_behind_explains_the_wait_before_one_without_a_dump(tmp_path: Path) -> None:
    files = {n: dump(5, pending=True, mentions=range(4)) for n in range(2)} | {2: dump(4, pending=False)}
    verdict = judged(tmp_path, files)
    assert [party.rank for party in verdict.triage.culprits] == [2] and verdict.triage.hang == "K4"


def test_everybody_in_one_operation_is_still_the_fabric() -> None:
    at = compared(group("0", dict.fromkeys(range(3), (17, "all_reduce")), keyed=False))
    assert triage(evidence(source="dumps"), at).triage.hang == "K12"
    [state] = at.groups
    unknown = dataclasses.replace(state, group=dataclasses.replace(state.group, members=(), world_size=0))
    nobody(triage(evidence(source="dumps"), dataclasses.replace(at, groups=(unknown,))))


def test_what_the_dumps_mention_is_no_membership(tmp_path: Path) -> None:
    """gloo writes one entry for all its groups, the last one's: two of four may be all that a dump mentions."""
    dumped(tmp_path, {n: dump(5, pending=True, mentions=[n // 2 * 2, n // 2 * 2 + 1]) for n in range(4)})
    found = compare(load_directory(tmp_path))
    assert [state.group.members for state in found.groups if state.group.desc == DEFAULT] == [()] and not found.absent
