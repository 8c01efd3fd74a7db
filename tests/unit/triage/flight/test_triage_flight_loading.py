"""Dumps from disk: every form that torch writes, and every kind of file that must not harm whoever reads it."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from flight_support import faulty
from hypothesis import given
from hypothesis import strategies as st

from harness.triage.flight.compare import compare
from harness.triage.flight.decode import decode
from harness.triage.flight.filenames import named_rank
from harness.triage.flight.flight import MAX_DUMP_BYTES, Flight, FlightError, NotADump
from harness.triage.flight.loading import load, load_directory
from harness.triage.flight.synthesis import encoded, simulate, write
from harness.triage.flight.worker import packed, unpacked
from harness.triage.flight.worlds import worlds
from probes.errors import FormatError
from probes.limits import WHOLE, bounded

REAL = Path(__file__).resolve().parents[3] / "fixtures" / "flight"
JOB = simulate(4, 40, tensor_parallel=2)
WORLD_ONLY = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
PICKLE, JSON = encoded(JOB, 1), encoded(JOB, 1, "json")


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo owned",)


def test_pickle_and_json_say_the_same() -> None:
    first, second = decode(PICKLE, "a"), decode(JSON, "b")
    assert len(first) == len(second) == 40
    assert first.groups == second.groups and first.kinds == second.kinds
    assert first.groups[0].members and first.world_size == second.world_size == 4
    assert first.seq == second.seq and first.done == second.done
    last = first.collective(39)
    assert last.frames[2].function == "forward" and not second.collective(39).frames
    assert (last.op, last.done, last.timeout_s, last.age_s) == ("all_reduce", True, 600.0, None)


def test_a_synthesised_pickle_has_the_opcodes_of_torch() -> None:
    """As read from a pickle of torch 2.13: strings and frames are memoised, containers are not."""
    used = {opcode.name for opcode, _, _ in pickletools.genops(PICKLE)}
    assert used <= {
        "PROTO", "EMPTY_DICT", "MARK", "BINUNICODE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "SETITEMS",
        "BININT1", "BININT2", "BININT", "LONG1", "EMPTY_LIST", "APPENDS", "TUPLE2", "NONE", "NEWTRUE", "NEWFALSE",
        "STOP",
    }  # fmt: skip
    assert pickle.loads(PICKLE)["entries"][0]["input_sizes"] == [[4, 512, 4096]]


def test_columns_survive_the_way_between_processes() -> None:
    before = decode(PICKLE, "a")
    after = unpacked(packed(before))
    assert list(after.collectives()) == list(before.collectives())
    assert (after.groups, after.name, after.notes) == (before.groups, "a", ())


@pytest.mark.parametrize("case", ["extra-broadcast", "legitimate"])
def test_real_gloo_dumps_load(case: str) -> None:
    flights = load_directory(REAL / f"gloo-{case}")
    assert sorted(one.rank for one in flights.values() if one.rank is not None) == [0, 1, 2, 3]
    one = flights["rank0.json"]
    assert (one.version, one.backend, one.world_size) == ("2.10", "gloo", None)
    assert {(group.name, group.desc, group.members) for group in one.groups} == {
        ("0", "default_pg", ()),
        ("1", "tp", ()),
    }
    assert next(one.collectives()).op == "all_reduce"
    assert any("groups.json" in note for note in flights.notes)


def test_a_recorder_that_is_off_is_said() -> None:
    flights = load_directory(REAL / "gloo-recorder-off")
    assert "recorder is off" in flights["rank2.json"].notes[0]
    assert "recorder is off" in compare(flights).missing[0]


@pytest.mark.parametrize("data", [JSON, PICKLE], ids=["json", "pickle"])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_dump_is_one_sentence(data: bytes, share: float) -> None:
    cut = data[: int(share * len(data))]
    with pytest.raises(FlightError, match=r"empty|cut short|no flight recorder dump") as caught:
        decode(cut, "rank3.json")
    assert "rank3.json" in caught.value.message and "\n" not in caught.value.message


@given(place=st.integers(0, len(PICKLE) - 1), value=st.integers(0, 255))
def test_a_damaged_pickle_is_a_flight_or_a_sentence(place: int, value: int) -> None:
    damaged = bytearray(PICKLE)
    if damaged[place : place + 1] == b"q" or value in b"rj":
        return  # memo numbers may ask for gigabytes: that is what the worker's limit is for
    damaged[place] = value
    try:
        found = decode(bytes(damaged), "rank0")
    except FlightError:
        return
    list(found.collectives())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_with_a_global_is_refused(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "owned"
    path = tmp_path / "nccl_trace_rank_0"
    Hostile.__reduce__ = lambda self: (os.system, (f"touch {marker}",))  # type: ignore[method-assign]
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [Hostile()]}, protocol))
    with pytest.raises(FlightError, match=r"system.*refused"):
        load(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())  # the control: it would have run
    assert marker.exists()


def test_a_pickle_with_a_foreign_reference_is_refused() -> None:
    with pytest.raises(FlightError, match="outside the file"):
        decode(b"\x80\x02X\x01\x00\x00\x00aQ.", "rank0")


@pytest.mark.slow
def test_pickles_that_would_eat_the_machine_are_refused(tmp_path: Path) -> None:
    memory = b"\x80\x02}r" + struct.pack("<I", (1 << 32) - 1) + b"."  # a memo of 32 GB
    pairs = b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60))
    key = b"\x80\x02})q\x00" + pairs + b"Ns."  # a key of nested tuples: its hash takes 2^60 steps
    for name, data, deadline_s, why in (
        ("rank_0", memory, 60.0, "more memory"),
        ("rank_1", key, 1.0, "not read within"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FlightError, match=f"{why}.*refused"):
            load(tmp_path / name, deadline_s=deadline_s)


@pytest.mark.slow
def test_a_file_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FlightError, match=f"1,024 MiB: dumps over {MAX_DUMP_BYTES >> 20} MiB") as caught:
        load(path)
    assert caught.value.fix is not None and "TORCH_FR_BUFFER_SIZE" in caught.value.fix


@pytest.mark.parametrize(
    ("data", "sort"),
    [
        (b"", FlightError), (b"hello", NotADump), (b"{}", NotADump), (b'{"backend": "hf"}', NotADump),
        (b'{"version": 3, "pg_config": {}}', FlightError), (b'{"version": "2.10", "entries": {"a": 1}}', FlightError),
        (b'{"version":"2.10","pg_config":{},"entries":[{"collective_seq_id":"x"}]}', FlightError),
        (pickle.dumps([1, 2], 2), NotADump), (pickle.dumps({"entries": 5, "version": "2.1"}, 2), FlightError),
        (pickle.dumps({"entries": [7], "version": "2.1"}, 2), FlightError),
        (pickle.dumps({"entries": [{"profiling_name": 3}], "version": "2.1"}, 2), FlightError),
        (pickle.dumps({"entries": [], "pg_config": {"0": 3}}, 2), FlightError),
        (b"{" * 100_000, FlightError), (b'{"version":"2.10","entries":' + b"[" * 100_000, FlightError),
    ],
)  # fmt: skip
def test_what_is_no_dump_is_one_sentence(data: bytes, sort: type[FlightError]) -> None:
    with pytest.raises(sort) as caught:
        decode(data, "x.json")
    assert caught.value.message.startswith("x.json") and "\n" not in caught.value.message


def test_other_formats_load_with_a_note() -> None:
    old = {"version": "1.5", "pg_config": {}, "entries": [
        {"record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "seq_id": 7,
         "profiling_name": "nccl:all_reduce", "input_sizes": [[3]], "output_sizes": [[3]], "state": "completed"},
    ]}  # fmt: skip
    found = decode(pickle.dumps(old, 2), "rank0")
    assert next(found.collectives()).seq == 7 and "1.5" in found.notes[0]
    assert len(decode(json.dumps({**json.loads(JSON), "version": "2.99", "news": [1]}).encode(), "a")) == 40


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl_trace_rank_12", ("nccl_trace_rank_", 12)), ("rank3.json", ("rank", 3)), ("7.pkl", ("", 7)),
        ("trace_rank2_of_8.json", ("trace_rank_of_8", 2)), ("run.json", ("run", None)),
        ("README.md", ("README.md", None)), ("dump-99999999999", ("dump-99999999999", None)),
    ],
)  # fmt: skip
def test_the_rank_in_a_name(name: str, expected: tuple[str, int | None]) -> None:
    assert named_rank(name) == expected


def test_a_number_that_is_no_rank_is_not_taken_for_one(tmp_path: Path) -> None:
    """The groups of rank 1 have no other member in common; in a job of one group nothing tells."""
    for name, job, expected in (("host-4242.json", JOB, 1), ("host-17.json", simulate(1, 20), 0)):
        (tmp_path / name).write_bytes(encoded(job, expected, "json"))
        assert load(tmp_path / name).rank == expected
    (tmp_path / "4711.json").write_bytes(json.dumps({**json.loads(JSON), "pg_config": WORLD_ONLY}).encode())
    found = load(tmp_path / "4711.json")
    assert found.rank is None and "4711" in found.notes[0]
    assert compare([found]).ranks == () and "4711" in compare([found]).notes[-1]
    told = load(tmp_path / "4711.json", rank=1, world_size=4, series="trainer")
    assert (told.rank, told.world_size, told.series) == (1, 4, "trainer")


def test_a_directory_of_everything(tmp_path: Path) -> None:
    list(write(JOB, tmp_path, "json", prefix="fr_"))
    (tmp_path / "fr_1.json").write_bytes(JSON[:700])
    (tmp_path / "fr_2.json").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "older").mkdir()
    found = load_directory(tmp_path)
    assert list(found) == ["fr_0.json", "fr_1.json", "fr_2.json", "fr_3.json"]
    assert [one.readable for one in found.values()] == [True, False, False, True]
    assert len(found.notes) == 2
    compared = compare(found)
    assert compared.absent == (1, 2)
    assert "rank 1 (fr_1.json" in compared.missing[0]


@pytest.mark.slow
def test_the_same_rank_in_two_forms_counts_once(tmp_path: Path) -> None:
    (tmp_path / "fr_1.json").write_bytes(JSON)
    (tmp_path / "fr_1").write_bytes(PICKLE)
    found = load_directory(tmp_path)
    assert list(found) == ["fr_1"] and "fr_1.json" in found.left_out[0]


def test_two_jobs_in_one_directory_are_told(tmp_path: Path) -> None:
    list(write(JOB, tmp_path, "json", prefix="monday_"))
    list(write(simulate(3, 20, tensor_parallel=1), tmp_path, "json", prefix="tuesday_"))
    found = load_directory(tmp_path)
    compared = compare(found)
    assert compared.jobs == 2 and compared.groups == ()
    assert any("monday_0.json" in note for note in compared.notes)
    first, second = worlds(found)
    assert (len(first), len(second)) == (4, 3)
    assert compare(first).world_size == 4 and compare(second).world_size == 3


def test_worlds_of_different_sizes_are_two_jobs_even_without_a_rank_twice() -> None:
    found: dict[str, Flight] = {}
    for job, rank, name in ((JOB, 0, "a_0"), (simulate(8, 20, tensor_parallel=2), 1, "b_1")):
        one = decode(encoded(job, rank, "json"), name)
        found[name] = Flight(**{**vars(one), "rank": rank, "series": name[:2]})
    assert compare(found).jobs == 2


def test_dumps_that_all_contradict_each_other_are_compared_with_a_bounded_number_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dump, asked = decode(encoded(JOB, 1, "json"), "a"), []
    module = sys.modules["harness.triage.flight.worlds"]  # the package has a function of this name
    monkeypatch.setattr(module._World, "admits", lambda world, flight: asked.append(flight))  # None: refused
    count = 5 * module.MOST_JOBS
    copies = {f"dump_{at}": Flight(**{**vars(dump), "rank": 1, "series": "dump_"}) for at in range(count)}
    assert len(worlds(copies)) == count
    assert len(asked) <= 2 * count * module.MOST_JOBS


@pytest.mark.parametrize("name", ["9" * 5000, "²"])
def test_a_group_whose_name_is_no_number_leaves_the_other_ranks_comparable(name: str) -> None:
    config = WORLD_ONLY | {name: {"name": name, "desc": "odd", "ranks": "[0, 1, 2, 3]"}}
    odd = json.loads(JSON) | {"pg_config": config, "pg_status": {"7": {"last_enqueued_collective": 3}}}
    flights = {f"r_{rank}": decode(encoded(JOB, rank, "json"), f"r_{rank}") for rank in (0, 2, 3)}
    flights["r_1"] = decode(json.dumps(odd).encode(), "r_1")
    assert flights["r_1"].standing() == {} or "7" not in flights["r_1"].standing()
    assert compare(flights).world_size == 4


@pytest.mark.parametrize("make", ["missing", "file", "empty", "foreign"])
def test_a_directory_without_dumps(tmp_path: Path, make: str) -> None:
    place = tmp_path / "dumps"
    if make == "file":
        place.write_text("x")
    elif make != "missing":
        place.mkdir()
        if make == "foreign":
            (place / "run.json").write_text("{}")
    with pytest.raises(FlightError):
        load_directory(place)
    with pytest.raises(FlightError):
        load(place)


def test_ages_need_the_moment_of_the_dump(tmp_path: Path) -> None:
    path = tmp_path / "rank1.json"
    path.write_bytes(encoded(faulty("wedge", 0, 50), 1, "json"))
    last = [one for one in load(path, taken_ns=1_760_000_030_000_000_000).collectives() if not one.done][-1]
    assert last.age_s == pytest.approx(30.0, abs=0.1)


HUGE = 2**80


def with_status(number: int) -> bytes:
    dump = json.loads(JSON)
    status = dict.fromkeys(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), number)
    return json.dumps(dump | {"pg_status": {"0": status}}).encode()


def with_member(rank: int) -> bytes:
    dump = json.loads(JSON)
    dump["pg_config"]["0"]["ranks"] = f"[0, 1, 2, {rank}]"
    return json.dumps(dump).encode()


def with_size(size: int) -> bytes:
    dump = json.loads(JSON)
    dump["entries"][0]["input_sizes"] = [[size]]
    return json.dumps(dump).encode()


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
@pytest.mark.parametrize("damage", [with_status, with_member, with_size])
def test_a_number_of_more_than_64_bits_costs_one_dump_at_most(tmp_path: Path, damage: Any, form: str) -> None:
    list(write(JOB, tmp_path))
    names = sorted(load_directory(tmp_path))
    data = damage(HUGE)
    (tmp_path / names[1]).write_bytes(data if form == "json" else pickle.dumps(json.loads(data), 2))
    flights = load_directory(tmp_path)
    assert sorted(flights) == names
    assert [flight.readable for flight in flights.values()].count(False) <= 1
    assert compare(list(flights.values())).ranks


NUMBERS = ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "time_created_ns", "timeout_ms")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("number", [HUGE, -HUGE, 2**63])
def test_each_number_of_an_operation_has_64_bits(field: str, number: int, form: str) -> None:
    dump = json.loads(JSON)
    dump["entries"][0][field] = number
    data = json.dumps(dump).encode() if form == "json" else pickle.dumps(dump, 2)
    with pytest.raises(FormatError) as bound:
        bounded(number, WHOLE, field, least=-WHOLE - 1)
    with pytest.raises(FlightError) as refusal:
        decode(data, "rank1.json")
    assert refusal.value.message == f"rank1.json is damaged: {bound.value}"


@pytest.mark.slow
@pytest.mark.parametrize("number", [HUGE, 2**63, -5])
def test_a_dump_whose_status_is_damaged_is_a_missing_rank(tmp_path: Path, number: int) -> None:
    """Without its status a rank looks as if it had left its group."""
    list(write(JOB, tmp_path))
    name = sorted(load_directory(tmp_path))[1]
    (tmp_path / name).write_bytes(with_status(number))
    flight = load_directory(tmp_path)[name]
    assert not flight.readable
    assert "pg_status" in "".join(flight.notes)


@pytest.mark.slow
def test_a_name_that_is_no_utf8_costs_nothing(tmp_path: Path) -> None:
    list(write(JOB, tmp_path))
    damaged = os.fsencode(tmp_path) + b"/\xff\xfe_rank_9"
    with open(damaged, "wb") as stream:
        stream.write(b"\x80\x02broken")
    flights = load_directory(tmp_path)
    assert sum(flight.readable for flight in flights.values()) == 4
    assert r"\xff\xfe_rank_9" in flights
