"""The fast scan and the reference reader agree: the same events, the same frames, the same damage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import make, scenario

from harness.parity.checks import summary
from harness.parity.checks.summary import spans_by_step
from harness.recordings import scan
from harness.recordings.store import Recording
from harness.recordings.tables import Rows
from probes.format import CHECKED_FROM, FORMAT_VERSION, FormatError, Run, encode_lines, write_manifest
from probes.lines import decode_line, encode_events, encode_line

KINDS = st.sampled_from(["span", "step", "note", "boundaries", "close", "a kind with spaces", "ünïcode"])
FIELDS = st.dictionaries(
    st.sampled_from(["name", "step", "ok", "text", "x"]),
    st.one_of(st.integers(-5, 5), st.booleans(), st.text(max_size=6), st.floats(allow_nan=True), st.none()),
    max_size=4,
)


def journal(
    path: Path, events: list[tuple[str, dict[str, Any]]], *, spaced: bool = False, version: int = FORMAT_VERSION
) -> Path:
    opening = ("open", {"role": "trainer", "rank": 0, "pid": 7})
    numbered = [(10 * i, kind, fields) for i, (kind, fields) in enumerate([opening, *events])]
    content = encode_lines(numbered)
    if spaced or version < CHECKED_FROM:
        content = b"".join(encode_line(seq, *event) for seq, event in enumerate(numbered))
    if spaced:  # another framework's writer, which knows no checksums
        content = content.replace(b'":', b'": ').replace(b',"', b', "')
    write_manifest(path, {"format_version": CHECKED_FROM - 1 if spaced else version})
    (path / "events").mkdir(exist_ok=True)
    file = path / "events" / "trainer-0-7.jsonl"
    file.write_bytes(content)
    return file


def same(path: Path) -> None:
    slow, fast = Run(path, strict=False), Recording(path)
    assert fast.torn == slow.torn and fast.incomplete == slow.incomplete and fast.manifest == slow.manifest
    kinds = {event["kind"] for event in slow.events()}
    for kind in kinds | {"absent"}:
        assert list(fast.events(kind)) == list(slow.events(kind))
        assert fast.count(kind) == len(list(slow.events(kind)))
        assert [{k: v for k, v in one.items() if k != "file"} for one in fast.all(kind)] == list(slow.events(kind))
    assert list(fast.events()) == list(slow.events())


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.tuples(KINDS, FIELDS), max_size=30), cut=st.floats(0, 1), spaced=st.booleans())
def test_a_torn_journal_reads_as_the_reference_reads_it(tmp_path: Path, events: Any, cut: float, spaced: bool) -> None:
    file = journal(tmp_path, events, spaced=spaced)
    same(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * cut)])
    same(tmp_path)


@pytest.mark.parametrize(
    "damage", [b'{"seq":9,', b'{"seq":1,"t_ns":5,"kind":"open"', b"nonsense\n", b"\n", b"\x00", b"{}"]
)
@pytest.mark.parametrize("where", [0, 1, 3, 12])
@pytest.mark.slow
def test_damage_is_named_as_the_reference_names_it(tmp_path: Path, damage: bytes, where: int) -> None:
    file = journal(tmp_path, [("step", {"step": i}) for i in range(12)])
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:where], damage, *lines[where:]]))
    same(tmp_path)


def test_a_line_that_is_broken_behind_its_kind_is_found_when_it_is_parsed(tmp_path: Path) -> None:
    file = journal(tmp_path, [("step", {"step": 1, "x": 5}), ("close", {"ok": True})], version=2)
    file.write_bytes(file.read_bytes().replace(b'"x":5', b'"x":,'))
    found = Recording(tmp_path)
    assert found.all("step") == []
    assert found.torn and "cannot be read" in found.torn[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("block", [100, 1 << 12, scan.SCAN_BYTES])
def test_many_lines_are_indexed_like_few(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SCAN_BYTES", block)
    kinds = ["span", "step", "span", "note"]
    events = [(kinds[i % 4], {"name": f"n{i % 3}", "step": i % 7, "dur_ns": i}) for i in range(2500)]
    journal(tmp_path, events)
    same(tmp_path)
    run = Recording(tmp_path)
    wanted = [one for kind, one in events if kind == "span" and one["name"] == "n1"]
    assert run.spans(("n1",)).seconds.tolist() == [one["dur_ns"] / 1e9 for one in wanted]
    assert [line for _, line in run.every_line()] == run._journals[0].path.read_bytes().splitlines(keepends=True)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0, 9, 10, 99, 100, 1234])
def test_a_number_that_is_not_the_next_is_seen_in_any_block(
    tmp_path: Path, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SCAN_BYTES", 2000)
    file = journal(tmp_path, [("note", {}) for _ in range(1300)])
    lines = file.read_bytes().splitlines(keepends=True)
    lines[wrong] = lines[wrong].replace(b'"seq":%d' % wrong, b'"seq":%d' % (wrong + 10))
    file.write_bytes(b"".join(lines))
    same(tmp_path)
    assert Recording(tmp_path).torn


def test_a_window_holds_its_steps_and_what_they_began_with(tmp_path: Path) -> None:
    path = make("baseline", scenario(steps=5, prompts=2, group=2)).write(tmp_path / "run")
    whole, part = Recording(path), Recording(path)
    part.restrict(range(2, 4))
    assert part.steps("rollout") == part.steps("experience") == [2, 3] and part.steps("floor") == [0]
    assert part.steps("native") == whole.steps("native")
    assert {event["version"] for event in part.all("weights")} == {2, 3, 4}
    assert {event["version"] for event in part.all("sync")} == {2, 3, 4}
    for kind in ("step", "learner", "data", "boundaries"):
        assert part.all(kind) == [event for event in whole.all(kind) if event["step"] in (2, 3)]
        assert part.count(kind) == len(part.all(kind)) == len(list(part.lines(kind)))
    assert part.all("open") == whole.all("open")
    inside = np.isin(whole.content_hashes("boundaries"), part.content_hashes("boundaries"))
    assert inside.tolist() == [event["step"] in (2, 3) for event in whole.all("boundaries")]
    assert set(part.spans(("step",)).step) == {2, 3}


def test_only_lines_that_mention_a_word_are_parsed(tmp_path: Path) -> None:
    phases = ["experience", "actor_forward", "experience", "not experience"]
    file = journal(tmp_path, [("shapes", {"phase": phase}) for phase in phases], version=2)
    found = Recording(tmp_path).all("shapes", mention="experience")
    assert [event["phase"] for event in found] == ["experience", "experience", "not experience"]
    file.write_bytes(file.read_bytes().replace(b'"phase":"', b'"phase": "'))  # another framework's writer
    assert len(Recording(tmp_path).all("shapes", mention="experience")) == 3


def test_a_step_takes_as_long_as_its_longest_process_and_what_overlaps_counts_once(tmp_path: Path) -> None:
    """verl waits for all prompts of a step at once; two ranks of one role record the same step."""
    overlapping = [(0, 4), (1, 2), (3, 3), (10, 1)]
    fields = [{"name": "rollout", "start_ns": start * 10**9, "dur_ns": long * 10**9, "ok": True, "step": 0}
              for start, long in overlapping]  # fmt: skip
    file = journal(tmp_path, [("span", one) for one in fields])
    other = [{**fields[0], "dur_ns": 5 * 10**9}]
    opening = decode_line(file.read_bytes().splitlines(keepends=True)[0]) | {"rank": 1}
    span = {"t_ns": 0, "kind": "span", **other[0]}
    (file.parent / "trainer-1-8.jsonl").write_bytes(encode_events([opening, span]))
    assert spans_by_step(Recording(tmp_path)) == {("rollout", 0): 7.0}
    unsaid = [{key: value for key, value in one.items() if key != "start_ns"} for one in fields]
    journal(tmp_path, [("span", one) for one in unsaid])
    assert spans_by_step(Recording(tmp_path)) == {("rollout", 0): 10.0}


def test_numbers_that_a_span_lacks_cost_no_verdict(tmp_path: Path) -> None:
    lasts = {"name": "rollout", "start_ns": 0, "dur_ns": 10**9, "ok": True, "step": 0}
    odd = [{**lasts, "step": "inf"}, {**lasts, "dur_ns": None}, {**lasts, "start_ns": "nan"}]
    journal(tmp_path, [("span", one) for one in [lasts, *odd]])
    assert spans_by_step(Recording(tmp_path)) == {("rollout", -1): 1.0, ("rollout", 0): 2.0}


@pytest.mark.parametrize("spaced", [False, True])
def test_spans_as_a_table(tmp_path: Path, spaced: bool) -> None:
    spans = [("rollout", 0, 10**9), ("actor_forward", 0, 5), ("rollout", 1, 2 * 10**9), ("train", None, 7)]
    fields = [{"name": n, "start_ns": 0, "dur_ns": d, "ok": True, "step": s} for n, s, d in spans]
    journal(tmp_path, [("span", one) for one in fields], spaced=spaced)
    spans = Recording(tmp_path).spans(("rollout", "train"))
    assert spans.name.tolist() == ["rollout", "rollout", "train"]
    assert spans.step.tolist() == [0, 1, -1] and spans.seconds.tolist() == [1.0, 2.0, 7e-9]


def test_many_spans_as_a_table(tmp_path: Path) -> None:
    one = {"start_ns": 0, "ok": True}
    spans = [("span", {"name": "rollout", "dur_ns": i * 10**6, "step": i % 5, **one}) for i in range(1500)]
    journal(tmp_path, spans)
    found = Recording(tmp_path).spans(("rollout",))
    assert found.seconds.tolist() == [i / 1000 for i in range(1500)] and found.step.max() == 4
    spans[3][1]["dur_ns"] = 2.5  # type: ignore[index]
    journal(tmp_path / "foreign", spans)
    assert len(Recording(tmp_path / "foreign").spans(("rollout",)).name) == 1500


def test_content_hashes_see_the_content_only(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    journal(one, [("note", {"x": 1}), ("boundaries", {"sample": 1}), ("boundaries", {"sample": 2})])
    journal(two, [("boundaries", {"sample": 2}), ("boundaries", {"sample": 3})])
    a, b = Recording(one).content_hashes("boundaries"), Recording(two).content_hashes("boundaries")
    assert np.isin(a, b).tolist() == [False, True]


def test_tables_hold_what_the_frames_hold(tmp_path: Path) -> None:
    path = make("baseline", scenario(steps=2, prompts=2, group=2), native=False).write(tmp_path / "run")
    slow, fast = Run(path), Recording(path)
    for kind in ("rollout", "experience", "floor"):
        frames = list(slow.frames(kind))
        assert fast.steps(kind) == sorted({frame.step for frame in frames})
        for frame in frames:
            wanted = {"variant": frame.fields["variant"]} if kind == "floor" else {}
            table = fast.table(kind, frame.step, **wanted)
            assert table is not None and table.sample.tolist() == frame.arrays["sample"].tolist()
            for name, array in frame.arrays.items():
                column = table.columns.get(name)
                if isinstance(column, Rows):
                    rows = [column.row(i).tolist() for i in range(len(column))]
                    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(array.rows()))
                    assert column.lengths.tolist() == [len(row) for row in rows]
    assert fast.table("rollout", 99) is None


def test_frames_of_several_ranks_are_one_table(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=1, prompts=2, group=2), native=False)
    frame = recording.frame("rollout", 0)
    import copy

    other = copy.deepcopy(recording.logs["rollout"])
    other.pid, other.rank = 99, 1
    next(fields for kind, fields in other.events if kind == "open").update(pid=99, rank=1)
    for log, rows in ((recording.logs["rollout"], [0, 2]), (other, [1, 3])):
        next(one for one in log.frames if one.kind == "rollout").take(rows)
    recording.logs["second"] = other
    table = Recording(recording.write(tmp_path / "run")).table("rollout", 0)
    assert table is not None
    assert table.sample.tolist() == [0, 2, 1, 3] and table.rank.tolist() == [0, 0, 1, 1]
    assert table.finish is not None and len(table.finish) == 4
    assert table.rows("output").lengths.tolist() == [  # type: ignore[union-attr]
        len(row) for row in frame.arrays["output"].rows() + other.frames[-1].arrays["output"].rows()
    ]


def test_a_frame_whose_arrays_disagree_is_refused(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=1, prompts=2, group=2), native=False)
    recording.frame("rollout", 0).arrays["cached"] = np.zeros(3, np.int64)
    with pytest.raises(FormatError, match="disagree"):
        Recording(recording.write(tmp_path / "run")).table("rollout", 0)


def test_the_share_of_the_probes_counts_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {"file": "a", "step": 0, "self_ns": 4_000_000_000}, {"file": "a", "step": 1, "self_ns": 4_010_000_000},
        {"file": "b", "step": 0, "self_ns": 1_000_000}, {"file": "b", "step": 1, "self_ns": 3_000_000},
    ]  # fmt: skip
    monkeypatch.setattr(summary, "step_seconds", lambda side: {0: 60.0, 1: 2.0})
    side = SimpleNamespace(recording=SimpleNamespace(all=lambda kind: events))
    assert summary._probe_share(side) == pytest.approx(0.005)  # type: ignore[arg-type]
    side = SimpleNamespace(recording=SimpleNamespace(all=lambda kind: events[:1]))
    assert summary._probe_share(side) is None  # type: ignore[arg-type]
