"""The codec and the reader: what is written comes back, a torn end reads as a prefix, damage is named and placed."""

from __future__ import annotations

import io
import json
import math
import struct
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import limits
from probes.format import (
    FORMAT_VERSION,
    Flat,
    FormatError,
    Ragged,
    Run,
    Torn,
    decode_frame,
    decode_line,
    encode_frame,
    encode_json,
    encode_line,
    encode_lines,
    encode_manifest,
    number,
    read_extents,
    read_lines,
    read_manifest,
    run_id,
    whole,
    write_manifest,
)
from probes.install import start
from probes.lines import RESERVED, check_tail

WHOLE = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), JSON, max_size=5)
I4 = st.integers(-(2**31), 2**31 - 1)
F4 = st.floats(width=32)
ROWS = st.lists(st.lists(I4, max_size=6), max_size=6)


OPEN = {"role": "actor", "rank": 0, "pid": 12}


def events_of(*events: tuple[str, dict[str, Any]], opening: dict[str, Any] = OPEN) -> bytes:
    """A journal of these events after `open`."""
    return encode_lines([(7, "open", opening), *((8, kind, fields) for kind, fields in events)])


def journal(*kinds: str) -> bytes:
    return events_of(*((kind, {"step": number}) for number, kind in enumerate(kinds, 1)))


def frame(step: int, rank: int = 0, role: str = "actor") -> bytes:
    arrays = {"output": Ragged.of([[step], [1, 2]], "i4")}
    return encode_frame("rollout", step, role, rank, {"finish": ["stop"]}, arrays)


def run_of(tmp_path: Path, events: bytes, tokens: bytes | None = None) -> Path:
    write_manifest(tmp_path, {"backend": "hf"})
    for folder, suffix, data in (("events", "jsonl", events), ("tokens", "bin", tokens)):
        (tmp_path / folder).mkdir(exist_ok=True)
        if data is not None:
            (tmp_path / folder / f"actor-0-12.{suffix}").write_bytes(data)
    return tmp_path


def prefix(reader: Any) -> list[Any]:
    """What a reader gives before the tear."""
    found = []
    try:
        for item in reader:
            found.append(item)
    except Torn:
        pass
    return found


# Lines


@pytest.mark.slow
@given(st.text(), FIELDS)
def test_an_event_round_trips(kind: str, fields: dict[str, Any]) -> None:
    line = encode_line(3, 9, kind, fields)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert decode_line(line) == {"seq": 3, "t_ns": 9, "kind": kind, **fields}


@pytest.mark.slow
@given(st.lists(FIELDS, max_size=5), st.data())
def test_a_torn_journal_reads_as_a_prefix(events: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = events_of(*(("note", fields) for fields in events))
    torn = whole[: data.draw(st.integers(0, len(whole)))]
    read = [event for _, _, event in prefix(read_lines(io.BytesIO(torn)))]
    assert read == [event for _, _, event in read_lines(io.BytesIO(whole))][: torn.count(b"\n")]


def test_every_cut_of_a_journal_reads_as_a_prefix() -> None:
    whole = journal("span", "note", "close")
    for cut in range(len(whole) + 1):
        torn = whole[:cut]
        assert [event["seq"] for _, _, event in prefix(read_lines(io.BytesIO(torn)))] == list(range(torn.count(b"\n")))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf")])
def test_what_json_has_no_number_for_is_written_as_a_string(value: float) -> None:
    fields = {"plain": value, "deep": [{"a": (1, value)}, {"b": 2.5}], "key": {value: 1}}
    event = decode_line(encode_line(0, 0, "step", fields))
    text = str(float(value))
    assert event["plain"] == text and event["deep"] == [{"a": [1, text]}, {"b": 2.5}] and event["key"] == {text: 1}
    assert str(float(event["plain"])) == text


def test_values_that_json_lacks() -> None:
    fields = {"set": {3, 1}, "numpy": np.int64(3), "array": np.array([1.5, math.nan]), "path": Path("a/b")}
    event = decode_line(encode_line(0, 0, "note", fields))
    assert [event[name] for name in fields] == [[1, 3], 3, [1.5, "nan"], "a/b"]


def test_a_field_cannot_take_a_key_of_every_event() -> None:
    with pytest.raises(ValueError, match="seq, t_ns"):
        encode_line(0, 0, "note", {"seq": 1, "t_ns": 2, "step": 3})


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"[]\n", b'{"seq":0,"t_ns":1,"kind":"a","x":NaN}\n', b"\x00\x00\n", b"\xff\n", b'{"seq":0}{}\n', b"\n"],
)
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(FormatError):
        decode_line(line)


def test_white_space_of_a_foreign_writer_is_welcome() -> None:
    assert decode_line(b' { "kind": "a", "t_ns": 1, "seq": 0 } \r\n')["kind"] == "a"


# Frames


@pytest.mark.slow
@given(ROWS, st.lists(F4), st.lists(WHOLE), st.lists(st.floats()), FIELDS, WHOLE)
def test_a_frame_round_trips(
    rows: list[list[int]],
    floats: list[float],
    longs: list[int],
    doubles: list[float],
    fields: dict[str, Any],
    step: int,
) -> None:
    arrays: dict[str, Flat | Ragged] = {
        "a": Ragged.of(rows, "i4"), "b": Flat.of(floats, "f4"), "c": Flat.of(longs, "i8"), "d": Flat.of(doubles, "f8")
    }  # fmt: skip
    data = encode_frame("rollout", step, "actor", 3, fields, arrays)
    read = decode_frame(data)
    assert (read.kind, read.step, read.role, read.rank, read.fields) == ("rollout", step, "actor", 3, fields)
    assert read.arrays["a"].rows() == rows and len(read.arrays["a"]) == len(rows)
    assert read.arrays["c"].tolist() == longs and read.arrays["c"].rows() == [[value] for value in longs]
    assert bytes(read.arrays["b"].values) == struct.pack(f"<{len(floats)}f", *floats)
    assert bytes(read.arrays["d"].values) == struct.pack(f"<{len(doubles)}d", *doubles)
    assert len(data) % 8 == 0


def test_every_cut_of_a_token_log_reads_as_a_prefix(tmp_path: Path) -> None:
    parts = [frame(1), frame(2), frame(3)]
    whole, ends = b"".join(parts), [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    for cut in range(len(whole) + 1):
        extents = prefix(read_extents(io.BytesIO(whole[:cut])))
        assert [extent.start for extent in extents] == [start for start, end in pairwise(ends) if end <= cut]
        if cut in ends:
            assert list(read_extents(io.BytesIO(whole[:cut]))) == extents
        else:
            with pytest.raises(Torn, match="unfinished last frame"):
                list(read_extents(io.BytesIO(whole[:cut])))


def test_every_changed_byte_of_a_frame_is_noticed() -> None:
    whole = frame(1) + frame(2)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        start = 0 if at < len(frame(1)) else len(frame(1))
        with pytest.raises(FormatError, match=f"byte {start}: ") as caught:
            list(read_extents(io.BytesIO(bytes(changed))))
        assert not isinstance(caught.value, Torn)


def test_a_frame_alone_is_checked_as_well() -> None:
    whole = frame(1)
    for at in range(len(whole)):
        with pytest.raises(FormatError):
            decode_frame(whole[:at])
        with pytest.raises(FormatError):
            decode_frame(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(FormatError, match="the frame says"):
        decode_frame(whole + b"x")


def test_arrays_are_views_of_the_frame_and_numpy_reads_them() -> None:
    data = encode_frame("rollout", 1, "actor", 0, {}, {"x": Ragged.of([[1, 2], [3]], "i4"), "y": Flat.of([0.5], "f4")})
    read = decode_frame(data)
    assert read.arrays["x"].values.obj is data
    ids = np.frombuffer(read.arrays["x"].values, read.arrays["x"].dtype)
    assert ids.tolist() == [1, 2, 3] and ids.flags.aligned
    assert np.frombuffer(read.arrays["y"].values, "f4").tolist() == [0.5]


@pytest.mark.parametrize("dtype, numpy_dtype", [("i4", "int32"), ("i8", "int64"), ("f4", "float32"), ("f8", "float64")])
def test_arrays_are_accepted_in_every_form(dtype: str, numpy_dtype: str) -> None:
    values = [3, 1, 2]
    expected = np.array(values, numpy_dtype).tobytes()
    matrix = np.array([[0, 3, 0], [0, 1, 0], [0, 2, 0]], numpy_dtype)
    forms: list[Any] = [
        values, tuple(values), array("b", values), np.array(values, numpy_dtype), np.array(values, "int16"),
        np.array([9, 3, 9, 1, 9, 2], numpy_dtype)[1::2], matrix[:, 1], memoryview(array("q", values)),
    ]  # fmt: skip
    for form in forms:
        assert bytes(Flat.of(form, dtype).values) == expected
        assert Ragged.of([form, [], form], dtype).offsets.tolist() == [0, 3, 3, 6]
    assert Flat.of(np.empty(0, numpy_dtype), dtype).tolist() == []
    assert Ragged.of(matrix, dtype).rows() == matrix.tolist()


def test_tensors_are_accepted() -> None:
    import torch

    leaf = torch.tensor([1.5, 2.5], requires_grad=True)
    assert Flat.of(leaf, "f4").tolist() == [1.5, 2.5]
    assert Flat.of(leaf.to(torch.bfloat16), "f8").tolist() == [1.5, 2.5]
    assert Flat.of(torch.tensor([1, 2]), "i4").tolist() == [1, 2]
    assert Ragged.of(torch.tensor([[1, 2], [3, 4]]), "i8").rows() == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="meta"):
        Flat.of(torch.empty(2, device="meta"), "f4")


@pytest.mark.parametrize("values, error", [([2**31], OverflowError), ([1.5], TypeError), (np.zeros((2, 2)), TypeError)])
def test_numbers_that_do_not_fit_are_refused(values: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Flat.of(values, "i4")


def test_rows_that_are_already_joined() -> None:
    assert Ragged.joined([1, 2, 3], [0, 1, 3], "i4").rows() == [[1], [2, 3]]
    assert Ragged.joined([1, 2, 3], [0, 1, 3], "i4").row(1).tolist() == [2, 3]
    for offsets in ([], [0, 2], [1, 3], [0, 4, 3]):
        with pytest.raises(ValueError, match="from 0 to 3"):
            Ragged.joined([1, 2, 3], offsets, "i4")


def test_a_bare_list_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"'output' is list"):
        encode_frame("rollout", 1, "actor", 0, {}, {"output": [1]})  # type: ignore[dict-item]


# A run directory


def test_a_whole_run(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path, journal("span", "close"), frame(1) + frame(2)))
    ours = {"format_version": FORMAT_VERSION, "id": run_id(tmp_path), "index": False, "records": []}
    assert run.manifest == {**ours, "backend": "hf"}
    assert run.complete and run.torn == [] and run.incomplete == []
    assert [event["kind"] for event in run.events()] == ["open", "span", "close"]
    assert list(run.events("span")) == [
        {"role": "actor", "rank": 0, "pid": 12, "seq": 1, "t_ns": 8, "kind": "span", "step": 1}
    ]
    assert list(run.events(role="critic")) == [] and list(run.events("nothing")) == []
    assert [one.step for one in run.frames("rollout", role="actor")] == [1, 2]
    assert [one.arrays["output"].rows() for one in run.frames(step=2)] == [[[2], [1, 2]]]
    assert list(run.frames("experience")) == [] and list(run.frames(role="critic")) == []


def test_processes_come_by_role_and_rank(tmp_path: Path) -> None:
    run_of(tmp_path, journal("close"), frame(1))
    for rank in (10, 2):
        events = events_of(("close", {}), opening={"role": "actor", "rank": rank, "pid": 1})
        (tmp_path / "events" / f"actor-{rank}-1.jsonl").write_bytes(events)
        (tmp_path / "tokens" / f"actor-{rank}-1.bin").write_bytes(frame(1, rank))
    run = Run(tmp_path)
    assert [event["rank"] for event in run.events("open")] == [0, 2, 10]
    assert [one.rank for one in run.frames()] == [0, 2, 10]


def test_an_events_own_rank_wins(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path, events_of(("group", {"rank": 5, "members": [0, 5]}))))
    assert next(run.events("group", role="actor"))["rank"] == 5


def test_a_torn_end_is_dropped_and_said(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path, journal("span", "close")[:-3], (frame(1) + frame(2))[:-9]))
    assert [event["kind"] for event in run.events()] == ["open", "span"]
    assert [one.step for one in run.frames()] == [1]
    lost, start = len(journal("span", "close")) - len(journal("span")) - 3, len(journal("span"))
    assert run.torn == [
        ("events/actor-0-12.jsonl", f"{lost} bytes of an unfinished last line at byte {start}"),
        ("tokens/actor-0-12.bin", f"{len(frame(2)) - 9} bytes of an unfinished last frame at byte {len(frame(1))}"),
    ]
    assert run.incomplete == ["events/actor-0-12.jsonl"] and not run.complete


def test_a_broken_line_in_the_middle_is_named_with_its_place(tmp_path: Path) -> None:
    whole = journal("span", "note", "close")
    at = len(journal("span"))
    run_of(tmp_path, whole[: at + 4] + b"\x00\x00\x00" + whole[at + 7 :])
    with pytest.raises(FormatError, match=rf"actor-0-12\.jsonl: byte {at}: not a line of JSON"):
        Run(tmp_path)
    run = Run(tmp_path, strict=False)
    assert [event["kind"] for event in run.events()] == ["open", "span"]
    assert run.torn[0][0] == "events/actor-0-12.jsonl" and "what follows in this file was dropped" in run.torn[0][1]
    assert run.incomplete == ["events/actor-0-12.jsonl"]


def test_a_missing_line_is_damage(tmp_path: Path) -> None:
    lines = journal("span", "note", "close").splitlines(keepends=True)
    run_of(tmp_path, b"".join(lines[:1] + lines[2:]))
    with pytest.raises(FormatError, match="event 2"):
        Run(tmp_path)


def test_a_bad_checksum_in_the_middle_is_named_with_its_place(tmp_path: Path) -> None:
    data = bytearray(frame(1) + frame(2) + frame(3))
    data[len(frame(1)) + len(frame(2)) - 20] ^= 1
    run_of(tmp_path, journal("close"), bytes(data))
    with pytest.raises(FormatError, match=rf"actor-0-12\.bin: byte {len(frame(1))}: the checksum"):
        Run(tmp_path)
    run = Run(tmp_path, strict=False)
    assert [one.step for one in run.frames()] == [1] and len(run.torn) == 1 and run.incomplete == []


def test_frames_that_close_counted_and_are_gone(tmp_path: Path) -> None:
    events = events_of(("close", {"ok": True, "frames": 3}))
    run = Run(run_of(tmp_path, events, frame(1)))
    assert run.torn == [("tokens/actor-0-12.bin", "2 of the 3 frames that were written are missing")]
    (tmp_path / "tokens" / "actor-0-12.bin").unlink()
    assert Run(tmp_path).torn == [("tokens/actor-0-12.bin", "3 of the 3 frames that were written are missing")]


def test_records_that_could_not_be_written(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path, events_of(("close", {"ok": False, "lost": 4}))))
    assert run.torn == [("events/actor-0-12.jsonl", "4 records could not be written when they were made")]


@pytest.mark.parametrize("data, said", [(b"", "the file is empty"), (b'{"seq":0', "holds only 8 bytes of an unfin")])
def test_an_events_file_without_a_line_is_an_error(tmp_path: Path, data: bytes, said: str) -> None:
    run_of(tmp_path, data)
    with pytest.raises(FormatError, match=rf"actor-0-12\.jsonl: .*{said}"):
        Run(tmp_path)
    run = Run(tmp_path, strict=False)
    assert list(run.events()) == [] and said in run.torn[0][1] and run.incomplete == ["events/actor-0-12.jsonl"]


def test_a_process_killed_at_its_first_frame(tmp_path: Path) -> None:
    for tokens in (b"", frame(1)[:30]):
        run = Run(run_of(tmp_path, journal("close"), tokens))
        assert list(run.frames()) == [] and run.torn[0][0] == "tokens/actor-0-12.bin"


@pytest.mark.parametrize(
    "events, said",
    [
        (encode_lines([(0, "span", {})]), "the first event is 'span', not 'open'"),
        (events_of(opening={"role": "actor", "rank": 0}), "the open event has no 'pid' of type int"),
    ],
)
def test_a_journal_must_begin_with_open(tmp_path: Path, events: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        Run(run_of(tmp_path, events))


@pytest.mark.parametrize(
    "text, said",
    [
        (None, "no run.json in it: not a run"),
        ("{", "run.json: not JSON"),
        ("[]", "no format_version in it"),
        ('{"format_version": 0}', "no format_version in it"),
        ('{"format_version": 99}', "format_version is 99, the newest that this installation reads is 4"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_directory_that_is_no_run(tmp_path: Path, text: str | None, said: str, strict: bool) -> None:
    run_of(tmp_path, journal("close"))
    (tmp_path / "run.json").unlink()
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError, match=said) as refused:
        Run(tmp_path, strict=strict)
    assert refused.value.fix


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory: not a run"):
        Run(tmp_path / "nowhere")


def test_a_run_without_events(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    with pytest.raises(FormatError, match="events: no process has recorded anything"):
        Run(tmp_path)
    assert not Run(tmp_path, strict=False).complete


def test_the_manifest_is_json_everywhere(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"seeds": {"run": 1}, "limit": math.inf})
    write_manifest(tmp_path, {"seeds": {"run": 2}, "limit": math.nan})
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    manifest = Run(tmp_path, strict=False).manifest
    identity = manifest.pop("id")
    ours = {"format_version": FORMAT_VERSION, "index": False, "records": []}
    assert len(manifest.pop("earlier")) == 1
    assert manifest == {**ours, "seeds": {"run": 2}, "limit": "nan"}
    assert identity == run_id(tmp_path) != ""


@pytest.mark.slow
@given(FIELDS)
def test_json_is_one_line_of_ascii(fields: dict[str, Any]) -> None:
    text = encode_json(fields)
    assert text.isascii() and "\n" not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("nan", math.nan),
        ("-inf", -math.inf),
        (None, math.nan),
        (True, math.nan),
        ("12", 12.0),
        ("x", math.nan),
        (10**400, math.inf),
        ([1], math.nan),
    ],
)
def test_numbers_out_of_json(value: Any, expected: float) -> None:
    assert number(value) == expected or (math.isnan(number(value)) and math.isnan(expected))


# Checksums, from format 3 on


@pytest.mark.slow
@given(st.lists(FIELDS, min_size=1, max_size=4), st.data())
def test_no_changed_bit_of_a_journal_is_read(events: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = events_of(*(("note", fields) for fields in events))
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    before = [event for _, _, event in read_lines(io.BytesIO(whole))]
    read: list[dict[str, Any]] = []
    with pytest.raises(FormatError):  # Torn, where the last newline is what was changed
        read.extend(event for _, _, event in read_lines(io.BytesIO(bytes(changed)), sealed=True))
    assert read == before[: len(read)]


def test_a_line_of_another_journal_is_damage(tmp_path: Path) -> None:
    ours, others = (events_of(("span", {"step": step}), ("close", {})).splitlines(keepends=True) for step in (1, 2))
    run_of(tmp_path, ours[0] + ours[1] + others[2])
    with pytest.raises(FormatError, match="the checksum of the line does not match"):
        Run(tmp_path)


def test_a_journal_of_format_2_is_read_and_named_as_unchecked(tmp_path: Path) -> None:
    lines = [encode_line(0, 7, "open", OPEN), encode_line(1, 8, "close", {})]
    run_of(tmp_path, b"".join(lines))
    with pytest.raises(FormatError, match="the line has no checksum"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text('{"format_version": 2}')
    run = Run(tmp_path)
    assert run.complete and run.unchecked == ["run.json", "events/actor-0-12.jsonl"]


def test_lines_with_checksums_are_checked_whatever_the_version_says(tmp_path: Path) -> None:
    run_of(tmp_path, journal("span", "close").replace(b"span", b"spam"))
    (tmp_path / "run.json").write_text('{"format_version": 2}')
    with pytest.raises(FormatError, match="the checksum of the line does not match"):
        Run(tmp_path)


@given(st.data())
def test_no_changed_bit_of_a_manifest_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_manifest(folder, {"backend": "hf", "scenario": {"steps": 8}})
    whole = (folder / "run.json").read_bytes()
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "run.json").write_bytes(bytes(changed))
    before = json.loads(whole)
    try:
        manifest = read_manifest(folder)
    except FormatError:
        return
    assert manifest == {key: value for key, value in before.items() if key != "checksum"}  # white space at the end


@pytest.mark.slow
def test_files_of_another_run_are_damage(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        write_manifest(folder, {})
        with start(folder, role="actor") as recorder:
            recorder.frame("rollout", step=1, arrays={"sample": Flat.of([1], "i8")})
    stem = recorder.path.stem
    for file, what in ((f"events/{stem}.jsonl", "it belongs to"), (f"tokens/{stem}.bin", "the frame belongs to")):
        first, second = ((folder / file) for folder in folders)
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes())
        with pytest.raises(FormatError, match=what):
            Run(folders[0])
        first.write_bytes(kept)
    assert Run(folders[0]).complete


@pytest.mark.parametrize("kind", ["span", "note"])
def test_events_that_close_counted_under_another_kind_are_said(tmp_path: Path, kind: str) -> None:
    closing = {"ok": True, "frames": 0, "events": {"open": 1, "span": 1, "note": 1}}
    kinds = ["moved" if name == kind else name for name in ("span", "note")]
    run = Run(run_of(tmp_path, events_of(*((name, {}) for name in kinds), ("close", closing))))
    assert [(file, kind in what) for file, what in run.torn] == [
        ("events/actor-0-12.jsonl", True), ("events/actor-0-12.jsonl", False)
    ]  # fmt: skip


def test_frames_out_of_their_place_are_damage(tmp_path: Path) -> None:
    frames = [encode_frame("rollout", step, "actor", 0, {}, {}, seq=step) for step in range(3)]
    run_of(tmp_path, journal("close"), frames[0] + frames[2] + frames[1])
    with pytest.raises(FormatError, match="frame 2"):
        Run(tmp_path)


def test_a_recorder_counts_what_it_wrote(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    with start(tmp_path, role="actor", groups=False) as recorder:
        recorder.event("note", text="a")
        recorder.frame("floor", step=1, arrays={})
    closing = next(Run(tmp_path).events("close"))
    assert closing["events"] == {"open": 1, "environment": 1, "note": 1} and closing["frame_kinds"] == {"floor": 1}


def test_the_tail_of_a_journal_leaves_out_the_damaged_line() -> None:
    lines = journal("span", "note", "span", "close").splitlines(keepends=True)
    damaged = [*lines[:2], lines[2].replace(b"note", b"nose"), *lines[3:]]
    assert check_tail(lines[1:]) == lines[1:]
    assert check_tail(damaged) == [*lines[:2], *lines[3:]]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("scenario", "steps"), 10**9),
        (("scenario", "steps"), -1),
        (("scenario", "ppo", "world_size"), 10**12),
        (("scenario", "engine", "engines"), 10**6),
        (("replay", "stop"), 10**12),
        (("anything",), 2**80),
    ],
)
def test_a_number_of_run_json_beyond_its_bound_is_refused(tmp_path: Path, path: tuple[str, ...], value: int) -> None:
    manifest: Any = value
    for key in reversed(path):
        manifest = {key: manifest}
    write_manifest(tmp_path, manifest)
    with pytest.raises(FormatError, match=r"run\.json: .* was expected") as refused:
        read_manifest(tmp_path)
    assert refused.value.fix


@pytest.mark.parametrize(("key", "value"), [("rank", 2**80), ("rank", -1), ("world_size", 10**15)])
def test_a_rank_beyond_any_job_makes_no_journal(tmp_path: Path, key: str, value: int) -> None:
    run_of(tmp_path, events_of(opening={**OPEN, key: value}))
    with pytest.raises(FormatError, match=f"{key} of the open event|hexadecimal digits"):
        Run(tmp_path)


@pytest.mark.parametrize("value", [None, True, "nan", "inf", "-inf", [1], {}, "x"])
def test_what_is_no_whole_number_has_the_default(value: Any) -> None:
    assert whole(value, -1) == -1 and whole("7", -1) == whole(7.0, -1) == whole(7, -1) == 7


# What run.json of this format must have


WHOLE_MANIFEST = {"format_version": FORMAT_VERSION, "id": "r", "index": False, "records": ["open"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "id is None"),
        ({"id": ""}, "id is ''"),
        ({"id": 7}, "id is 7"),
        ({"index": None}, "index is None"),
        ({"index": 1}, "index is 1"),
        ({"records": None}, "records is None"),
        ({"records": "open"}, "records is 'open'"),
        ({"records": [1]}, "records holds"),
        ({"scenario": {"steps": 1e9}}, "scenario.steps is 1000000000.0"),
        ({"scenario": {"steps": 2.5}}, "scenario.steps is 2.5"),
        ({"scenario": {"steps": True}}, "scenario.steps is True"),
        ({"scenario": {"steps": None}}, "scenario.steps is missing"),
        ({"scenario": {"stepc": 2}}, "scenario.steps is missing"),
        ({"scenario": {"steps": -1}}, "scenario.steps is -1"),
        (
            {"scenario": {"steps": 2, "rollout": {"samples_per_prompt": "4"}}},
            "scenario.rollout.samples_per_prompt is '4'",
        ),
    ],
)
def test_a_run_json_that_its_format_does_not_have_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    manifest = {key: value for key, value in (WHOLE_MANIFEST | change).items() if value is not None}
    (tmp_path / "run.json").write_bytes(encode_manifest(manifest))
    with pytest.raises(FormatError) as refused:
        read_manifest(tmp_path)
    assert words in str(refused.value)
    if "scenario" not in change:  # formats before it did not promise these keys
        (tmp_path / "run.json").write_bytes(encode_manifest(manifest | {"format_version": 3}))
        assert read_manifest(tmp_path)["format_version"] == 3


def test_a_job_of_a_framework_need_not_know_its_steps(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"framework": "verl", "scenario": {"steps": None}})
    assert read_manifest(tmp_path)["scenario"] == {"steps": None}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_lower_format_over_journals_is_told(tmp_path: Path, version: int) -> None:
    write_manifest(tmp_path, {})
    with start(tmp_path, role="actor", groups=False) as recorder:
        recorder.frame("rollout", step=0, arrays={"sample": Flat.of([1], "i8")})
    assert Run(tmp_path).complete
    (tmp_path / "run.json").write_bytes(encode_manifest(read_manifest(tmp_path) | {"format_version": version}))
    run = Run(tmp_path)
    assert run.torn and {name for name, _ in run.torn} == {"run.json"}


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("0", 0), ("٣", 3), ("9" * 20, int("9" * 20))])
def test_a_text_of_digits_is_a_number(text: str, number: int) -> None:
    assert limits.whole_text(text) == number


@pytest.mark.parametrize("text", ["9" * 21, "9" * 5000, "²", "-1", "1.5", " 1", "", None])
def test_any_other_text_is_none(text: str | None) -> None:
    assert limits.whole_text(text) is None and limits.rank(text) is None
