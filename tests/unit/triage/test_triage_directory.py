"""The evidence directory: what goes in comes out, damage costs the damaged file, and a stranger's zip stays inside."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import stat
import tarfile
import tempfile
import types
import typing
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInput
from harness.triage import archive, directory, judge
from harness.triage import evidence as evidence_types
from harness.triage.evidence import Evidence, Frame, Process, Ranks, Sample, Thread
from probes.errors import FormatError
from probes.limits import RANKS, WHOLE, bounded
from probes.secret_names import is_secret
from reports.codec import Number

# Hypothesis draws words of the code under test as well, and what is kept under the name of a secret is withheld.
NAMES = st.text(max_size=5).filter(lambda name: not is_secret(name))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
PLAIN = {int: st.integers(-WHOLE - 1, WHOLE), bool: st.booleans(), str: st.text(max_size=10), Any: JSON}
FLOATS = st.floats(allow_nan=False)  # NaN is not equal to itself; infinity travels as text


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type; of dataclasses, every field filled."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Number:
        return FLOATS
    if kind == Ranks:
        return st.integers(0, RANKS)
    if origin in (types.UnionType, typing.Union):
        return st.none() | values(arguments[0])
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(NAMES, values(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: st.deferred(lambda hint=hint: values(hint)) for name, hint in hints.items()})
    return PLAIN[kind]


def _within(process: Process, evidence: Evidence) -> int | None:
    """Its rank, where its world can have it."""
    world = process.world_size or evidence.expected_world
    return process.rank if process.rank is None or not world else process.rank % world


def without_dumps(evidence: Evidence, path: str) -> Evidence:
    """Dumps are files, which these tests do not make; and ranks lie in their world."""
    processes = tuple(
        dataclasses.replace(process, dump="", rank=_within(process, evidence)) for process in evidence.processes
    )
    return dataclasses.replace(evidence, path=path, dumps={}, processes=processes)


@pytest.mark.slow
@given(values(Evidence))
def test_what_is_written_is_read(evidence: Evidence) -> None:
    with tempfile.TemporaryDirectory() as folder:
        evidence = without_dumps(evidence, folder)
        directory.write(evidence, folder)
        assert directory.read(folder) == evidence


def example(path: Path) -> Evidence:
    frames = (Frame("step", "train.py", 12),)
    samples = (Sample(0.0, "S", threads=(Thread("MainThread", 7, frames, main=True),)),)
    processes = tuple(Process("host", pid, samples=samples, dump=f"recorder/host-{pid}.json") for pid in (7, 8))
    evidence = Evidence(str(path), "watch", "2026-01-01T00:00:00+00:00", 60.0, processes)
    (path / "recorder").mkdir(parents=True)
    for process in processes:
        (path / process.dump).write_text("{}")
    directory.write(evidence, path)
    return evidence


@pytest.mark.slow
def test_a_zip_is_the_same_evidence_elsewhere(tmp_path: Path) -> None:
    evidence = example(tmp_path / "evidence")
    packed = directory.pack(tmp_path / "evidence")
    assert packed == tmp_path / "evidence.zip" and directory.pack(tmp_path / "evidence") == packed
    found = directory.read(packed)
    assert dataclasses.replace(found, path=evidence.path) == evidence
    assert (Path(found.path) / found.processes[0].dump).read_text() == "{}"


@pytest.mark.slow
def test_a_zip_of_the_folder_itself_is_read_too(tmp_path: Path) -> None:
    evidence = example(tmp_path / "evidence")
    with zipfile.ZipFile(tmp_path / "sent.zip", "w") as zipped:
        for file in (tmp_path / "evidence").rglob("*"):
            zipped.write(file, file.relative_to(tmp_path))
    assert directory.read(tmp_path / "sent.zip").processes == evidence.processes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "..\\out", "recorder/../../../out"])
def test_a_path_that_leaves_the_zip_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr("evidence.json", "{}")
        zipped.writestr("processes/x.json", "{}")
        zipped.writestr(name, "owned")
    with pytest.raises(BadInput, match="would leave the directory"):
        directory.read(tmp_path / "bad.zip")
    assert not list(tmp_path.rglob("out"))


@pytest.mark.slow
def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("recorder/host-7.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr(link, "/etc/passwd")
    with pytest.raises(BadInput, match="would leave the directory"):
        directory.read(tmp_path / "bad.zip")


@pytest.mark.slow
def test_a_zip_that_says_how_large_it_is_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    target = tmp_path / "large.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("evidence.json", b"x" * 5_000)
    data = bytearray(target.read_bytes())
    data[60] ^= 0xFF  # what it holds cannot be read
    target.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="too large when it is unpacked"):
        archive.unpack(target, max_bytes=4_999)


@pytest.mark.slow
def test_a_zip_that_swells_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("evidence.json", b"0" * 3_000_000)
    with pytest.raises(BadInput, match="too large when it is unpacked"):
        archive.unpack(tmp_path / "bomb.zip", max_bytes=2_000_000)
    with pytest.raises(BadInput, match="more than 0 files"):
        archive.unpack(tmp_path / "bomb.zip", max_files=0)


def _tar(file: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as tarred:  # type: ignore[call-overload]
        for member, content in members:
            member.size = len(content)
            tarred.addfile(member, io.BytesIO(content))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_unpacked_without_its_links(tmp_path: Path, mode: str) -> None:
    link = tarfile.TarInfo("job/latest")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    file = _tar(tmp_path / "stacks.any", (tarfile.TarInfo("./job/rank_0.txt"), b"text"), (link, b""), mode=mode)
    assert archive.is_tar(file)
    folder = archive.unpack(file)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["job", "job/rank_0.txt"]
    assert (folder / "job/rank_0.txt").read_bytes() == b"text"


@pytest.mark.slow
def test_a_tar_that_leaves_the_folder_or_swells_is_refused(tmp_path: Path) -> None:
    for name in ("../out", "/tmp/out", "a/" * 9 + "x"):
        with pytest.raises(BadInput):
            archive.unpack(_tar(tmp_path / "bad.tgz", (tarfile.TarInfo(name), b"owned")))
    bomb = _tar(tmp_path / "bomb.tgz", *[(tarfile.TarInfo(str(number)), b"0" * 3_000_000) for number in range(2)])
    with pytest.raises(BadInput):
        archive.unpack(bomb, max_bytes=5_000_000)
    with pytest.raises(BadInput):
        archive.unpack(bomb, max_files=1)
    torn = tmp_path / "torn.tgz"
    torn.write_bytes(bomb.read_bytes()[:300])
    with pytest.raises(BadInput):
        archive.unpack(torn)


def test_a_compressed_log_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(b"step 1\n" * 1000))
    assert not archive.is_tar(tmp_path / "job.log.gz")


@pytest.mark.slow
def test_what_is_no_zip_or_a_torn_one_is_a_sentence(tmp_path: Path) -> None:
    example(tmp_path / "evidence")
    whole = directory.pack(tmp_path / "evidence").read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "torn.zip").write_bytes(whole[:cut])
        with pytest.raises(BadInput, match="is not a readable zip or tar"):
            directory.read(tmp_path / "torn.zip")


def test_a_damaged_or_missing_file_is_a_note(tmp_path: Path) -> None:
    evidence = example(tmp_path)
    (tmp_path / "processes" / "host-7.json").write_text('{"host": "host", "pid": ')
    (tmp_path / "recorder" / "host-8.json").unlink()
    found = directory.read(tmp_path)
    assert [process.pid for process in found.processes] == [8] and found.processes[0].dump == ""
    assert found.stall_s == 60.0 and len(found.notes) == 2
    assert "processes/host-7.json" in found.notes[0]
    assert "recorder/host-8.json" in found.notes[1]
    (tmp_path / "processes" / "host-7.json").unlink()
    assert any("processes/host-7.json" in note for note in directory.read(tmp_path).notes)

    (tmp_path / "evidence.json").unlink()
    found = directory.read(tmp_path)
    assert [process.pid for process in found.processes] == [8] and "evidence.json" in found.notes[0]
    assert evidence.processes[1].samples == found.processes[0].samples


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"pid": "seven", "host": "h"}', '{"samples": [{}]}', '{"pid": 1e999}', "\0"]
)
def test_a_process_file_that_is_wrong_in_any_way_is_a_note(tmp_path: Path, text: str) -> None:
    example(tmp_path)
    (tmp_path / "processes" / "host-7.json").write_text(text)
    found = directory.read(tmp_path)
    assert [process.pid for process in found.processes] == [8]
    assert any("processes/host-7.json" in note for note in found.notes)


@pytest.mark.slow
@given(st.binary(max_size=60), st.integers(0, 400))
def test_no_damage_of_the_index_is_a_traceback(junk: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        example(Path(folder))
        index = Path(folder) / "evidence.json"
        whole = index.read_bytes()
        index.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
        try:
            found = directory.read(folder)
        except BadInput as error:
            assert "newest" in error.message
        else:
            assert {process.pid for process in found.processes} == {7, 8}


def test_fields_of_a_later_version_are_ignored_and_its_format_refused(tmp_path: Path) -> None:
    example(tmp_path)
    index = json.loads((tmp_path / "evidence.json").read_text())
    (tmp_path / "evidence.json").write_text(json.dumps({**index, "weather": "rain"}))
    assert directory.read(tmp_path).notes == ()
    (tmp_path / "evidence.json").write_text(json.dumps({**index, "format_version": 2}))
    with pytest.raises(BadInput, match="format_version is 2"):
        directory.read(tmp_path)


def test_a_collector_that_was_cut_short_is_a_note(tmp_path: Path) -> None:
    directory.write(example(tmp_path), tmp_path, complete=False)
    assert directory.read(tmp_path).notes == ("the collector was cut short: what it had by then is here",)


def test_what_was_withheld_leaves_the_rest_of_its_process_readable(tmp_path: Path) -> None:
    states: dict[str, dict[str, Any]] = {"password": {"running": 2}, "engine": {"running": 3}}
    process = Process("host", 7, beat=evidence_types.Beat(5, 1.0, 2.0, sequences={"secret": 4, "dp": 9}, states=states))
    directory.write(Evidence(str(tmp_path), "watch", "", 60.0, (process,)), tmp_path)
    [read] = directory.read(tmp_path).processes
    assert read.beat is not None and (read.beat.count, read.beat.states["engine"]) == (5, {"running": 3})
    assert read.beat.states.keys() == {"engine"} and read.beat.sequences["dp"] == 9


def test_a_dump_outside_the_directory_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    folder = tmp_path / "evidence"
    evidence = example(folder)
    (folder / "recorder" / "link.json").symlink_to(tmp_path / "secret.json")
    dumps = ("../secret.json", str(tmp_path / "secret.json"), "recorder/link.json", "\0", "x" * 5000)
    for dump in dumps:
        process = dataclasses.replace(evidence.processes[0], dump=dump)
        directory.write(dataclasses.replace(evidence, processes=(process,), dumps={"rank 9": dump}), folder)
        found = directory.read(folder)
        assert next(one for one in found.processes if one.pid == 7).dump == "" and found.dumps == {}
        assert found.notes


def test_a_dump_that_is_a_link_to_itself_is_missing(tmp_path: Path) -> None:
    evidence = example(tmp_path)
    for process in evidence.processes:
        (tmp_path / process.dump).unlink()
        (tmp_path / process.dump).symlink_to(Path(process.dump).name)
    read = directory.read(tmp_path)
    assert [process.dump for process in read.processes] == ["", ""] and len(read.notes) == 2


def test_a_bare_directory_of_dumps(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"entries": []}')
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x04N.")
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")
    (tmp_path / "README").write_text("dumps of Tuesday")
    found = directory.read(tmp_path)
    assert found.source == "dumps" and set(found.dumps) == {"rank0.json", "nccl_trace_rank_1", "nccl_trace_rank_2"}


def test_nothing_to_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty: there is no evidence in it"):
        directory.read(tmp_path)
    with pytest.raises(BadInput, match="no such file or directory"):
        directory.read(tmp_path / "nowhere")
    (tmp_path / "README").write_text("nothing")
    with pytest.raises(BadInput, match="holds neither evidence"):
        directory.read(tmp_path)


def test_two_processes_of_one_name_have_two_files(tmp_path: Path) -> None:
    processes = (Process("a/b", 1), Process("a_b", 1), Process("..", 1), Process("x" * 300, 1))
    evidence = Evidence(str(tmp_path), "live", "", 0.0, processes)
    directory.write(evidence, tmp_path)
    assert directory.read(tmp_path) == evidence and len(list((tmp_path / "processes").iterdir())) == 4


def test_every_field_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "evidence.md").read_text()
    kinds = [kind for kind in vars(evidence_types).values() if dataclasses.is_dataclass(kind)]
    assert len(kinds) >= 12
    for kind in kinds:
        for field in dataclasses.fields(kind):
            if (kind, field.name) != (Evidence, "path"):
                assert f"`{field.name}`" in page, f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("world", [10**15, 10**8, RANKS + 1, -1, 2**80])
def test_a_world_beyond_any_job_is_named_and_sizes_no_loop(tmp_path: Path, world: int) -> None:
    directory.write(example(tmp_path), tmp_path)
    index = json.loads((tmp_path / "evidence.json").read_text())
    (tmp_path / "evidence.json").write_text(json.dumps(index | {"expected_world": world}))
    evidence = directory.read(tmp_path)
    assert evidence.expected_world is None
    with pytest.raises(FormatError) as bound:
        bounded(world, RANKS, "expected_world")
    assert evidence.notes == (f"evidence.json: {bound.value}",)


@pytest.mark.slow
def test_the_largest_world_is_judged_at_once(tmp_path: Path) -> None:
    evidence = dataclasses.replace(example(tmp_path), expected_world=RANKS)
    verdict = judge.triage(evidence)
    assert verdict.verdict == "INSUFFICIENT"
    assert any("more" in missing and "nothing from rank" in missing for missing in verdict.missing)


@pytest.mark.parametrize(("world", "expected"), [(4, None), (None, 4), (4, 8)])
def test_a_rank_beyond_its_world_is_named_and_not_used(tmp_path: Path, world: int | None, expected: int | None) -> None:
    evidence = example(tmp_path)
    process = dataclasses.replace(evidence.processes[0], rank=999_999, world_size=world)
    evidence = dataclasses.replace(evidence, processes=(process, *evidence.processes[1:]), expected_world=expected)
    directory.write(evidence, tmp_path)
    reading = directory.read(tmp_path)
    assert reading.processes[0].rank is None and any("999,999 of a world of 4" in note for note in reading.notes)
    within = dataclasses.replace(process, rank=3)
    directory.write(dataclasses.replace(evidence, processes=(within, *evidence.processes[1:])), tmp_path)
    assert directory.read(tmp_path).processes[0].rank == 3
