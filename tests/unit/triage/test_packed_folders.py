"""Packed files are read as what they hold, wherever they lie: alone, in a folder, or an archive for each node."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import lzma
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from triage_evidence import rank

from harness.errors import BadInput
from harness.triage import archive, compressed, directory, pasted
from harness.triage.evidence import Evidence
from harness.triage.flight import synthesis
from harness.triage.pasted import opened_files, text
from harness.triage.run import triage

STACK = (
    'Process {pid}: python train.py\n\nThread {pid} (idle): "MainThread"\n'
    "    {op} (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:{line})\n"
)
PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def stack(number: int) -> str:
    return STACK.format(pid=2000 + number, op="all_reduce", line=12)


def ranks(words: list[Path]) -> set[str]:
    verdict = triage([str(word) for word in words])
    assert verdict.triage is not None
    return {node.label for node in verdict.triage.nodes}


def labels(*numbers: int) -> set[str]:
    return {f"rank {number}" for number in numbers}


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_packed_text_is_read_by_its_content(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rank_3.txt.{suffix}"
    file.write_bytes(PACKERS[suffix](stack(3).encode()))
    assert ranks([file]) == labels(3)


@pytest.mark.parametrize("suffix", PACKERS)
def test_several_packed_parts_are_one_text_and_a_cut_end_is_told(tmp_path: Path, suffix: str) -> None:
    pack = PACKERS[suffix]
    whole = pack(stack(1).encode()) + pack(stack(2).encode())
    (tmp_path / "whole").write_bytes(whole)
    (tmp_path / "cut").write_bytes(whole[:-9])
    evidence = pasted.evidence([str(tmp_path)])
    assert evidence is not None and {each.pid for each in evidence.processes} == {2001, 2002}
    assert [note for note in evidence.notes if "damaged" in note and "cut" in note]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.slow
def test_a_packed_bomb_is_bounded(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "FILE_BYTES", 1 << 20)
    file = tmp_path / "bomb"
    file.write_bytes(PACKERS[suffix](stack(1).encode() + b"x" * (8 << 20)))
    evidence = pasted.evidence([str(file)])
    assert evidence is not None and any("only its first 1 MiB" in note for note in evidence.notes)


def test_zstd_is_read_where_its_package_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = stack(3).encode()

    class Decompressor:
        def __init__(self, max_window_size: int) -> None:
            assert max_window_size

        def stream_reader(self, stream: io.BytesIO, read_across_frames: bool) -> io.BytesIO:
            assert read_across_frames and stream.read(4) == compressed.ZSTD
            return io.BytesIO(content)

    module = ModuleType("zstandard")
    vars(module).update(ZstdDecompressor=Decompressor, ZstdError=ValueError)
    file = tmp_path / "rank_3.txt.zst"
    file.write_bytes(compressed.ZSTD + b"packed")
    monkeypatch.setitem(sys.modules, "zstandard", module)
    assert ranks([file]) == labels(3)


def test_zstd_without_its_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    file = tmp_path / "job.tar.zst"
    file.write_bytes(compressed.ZSTD + b"packed")
    with pytest.raises(BadInput, match="zstandard") as error:
        triage([str(file)])
    assert f"zstd -d {file} " in (error.value.fix or "")
    with pytest.raises(BadInput, match="zstandard"):
        triage([str(tmp_path)])
    (tmp_path / "rank_0.txt").write_text(stack(0))
    assert any("zstandard" in line and "job.tar.zst" in line for line in triage([str(tmp_path)]).missing)


def _tar(file: Path, **members: str | bytes) -> Path:
    with tarfile.open(file, "w:gz") as tarred:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tarred.addfile(member, io.BytesIO(data))
    return file


def _zip(file: Path, **members: str) -> Path:
    with zipfile.ZipFile(file, "w") as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file


@pytest.mark.slow
def test_an_archive_for_each_node_in_a_folder_is_one_job(tmp_path: Path) -> None:
    (tmp_path / "racks").mkdir()
    _tar(tmp_path / "node0.tar.gz", rank_0=stack(0), rank_1=stack(1))
    _zip(tmp_path / "racks" / "node1.zip", rank_2=stack(2))
    (tmp_path / "rank_3.txt.xz").write_bytes(lzma.compress(stack(3).encode()))
    (tmp_path / "rank_4.txt").write_text(stack(4))
    assert ranks([tmp_path]) == labels(0, 1, 2, 3, 4)
    # The same folder, packed once more.
    assert ranks([Path(shutil.make_archive(str(tmp_path.parent / "all"), "gztar", tmp_path))]) == labels(0, 1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["gz", "tar"])
def test_packed_recorder_dumps_are_judged_together(tmp_path: Path, packed: str) -> None:
    simulated = synthesis.simulate(4, 40, synthesis.Fault("dead", rank=2, at=20))
    for number in range(4):
        name, content = f"nccl_trace_rank_{number}", synthesis.encoded(simulated, number)
        if packed == "gz":
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            _tar(tmp_path / f"node{number}.tgz", **{name: content})
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and [party.rank for party in verdict.triage.culprits] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_packed_evidence_of_each_node_is_one_job(tmp_path: Path, kind: str) -> None:
    sent = tmp_path / "sent"
    sent.mkdir()
    for number in range(2):
        evidence = Evidence("", "live", "", 0.0, processes=(dataclasses.replace(rank(number), host=f"node{number}"),))
        directory.write(evidence, tmp_path / f"node{number}")
        shutil.make_archive(str(sent / f"node{number}"), kind, tmp_path, f"node{number}")
    assert ranks([sent]) == labels(0, 1)
    alone = next(sent.iterdir())
    assert ranks([alone]) == labels(int(alone.name[4]))


@pytest.mark.slow
def test_what_is_refused_of_a_folder_of_archives_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank_4.txt").write_text(stack(4))
    _tar(tmp_path / "bad.tgz", **{"../out": stack(7)})
    (tmp_path / "torn.zip").write_bytes(_zip(tmp_path / "whole.zip", rank_5=stack(5)).read_bytes()[:-30])
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and {node.label for node in verdict.triage.nodes} == labels(4, 5)
    assert {name for name in ("bad.tgz", "torn.zip") if any(name in line for line in verdict.missing)} == {
        "bad.tgz", "torn.zip"}  # fmt: skip
    assert not (tmp_path.parent / "out").exists()


@pytest.mark.slow
def test_a_large_archive_that_nobody_named_is_left_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank_4.txt").write_text(stack(4))
    data = _tar(tmp_path / "data.tgz", rank_5=stack(5))
    monkeypatch.setattr(opened_files, "MAX_PACKED", 10)
    verdict = triage([str(tmp_path)])
    assert any("data.tgz" in line for line in verdict.missing) and verdict.triage is not None
    assert {node.label for node in verdict.triage.nodes} == labels(4)
    assert ranks([data]) == labels(5)


@pytest.mark.slow
def test_archives_of_a_folder_share_one_bound(tmp_path: Path) -> None:
    tars = [_tar(tmp_path / f"{number}.tgz", text=b"0" * 3_000_000) for number in range(3)]
    outcomes = archive.unpack_all(tars, archive.Room(bytes=7_000_000, files=9))
    assert [isinstance(outcome, BadInput) for outcome in outcomes] == [False, False, True]
    assert [isinstance(outcome, BadInput) for outcome in archive.unpack_all(tars, archive.Room(files=1))] == [
        False, True, True]  # fmt: skip


def test_a_checkpoint_is_no_archive_of_evidence(tmp_path: Path) -> None:
    """torch.save writes a zip."""
    (tmp_path / "rank_4.txt").write_text(stack(4))
    _zip(tmp_path / "model.pt", data="x" * 100)
    evidence = pasted.evidence([str(tmp_path)])
    assert evidence is not None and [each.rank for each in evidence.processes] == [4]
