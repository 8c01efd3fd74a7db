"""No run.json takes another's place unnoticed: journals name the one that they began with, the index the last one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recorded_pairs import recorded_pair
from recordings import make, scenario

from harness.parity import judge
from harness.parity.audit import audit
from probes import install
from probes.format import INDEX, MANIFEST, FormatError, Run, encode_manifest, read_manifest, seal, write_manifest

SIDES = ("baseline", "candidate")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two pairs of the same settings."""
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("first", "second"):
        for side in SIDES:
            recording = make(side, scenario(steps=2), native=False)
            recording.manifest["started"] = f"2026-11-28 of the {name}"
            recording.write(folder / name / side)
        assert judge(*(folder / name / side for side in SIDES)).verdict == "EQUIVALENT"
    return folder / "first", folder / "second"


def unnoticed(pair: Path) -> list[str]:
    verdicts = [judge(*(pair / side for side in SIDES)).verdict, audit(pair / "candidate").verdict]
    return [verdict for verdict in verdicts if verdict not in ("INCONCLUSIVE", "ERROR")]


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("resealed", [False, True])
@pytest.mark.parametrize("renamed", [False, True])
def test_the_run_json_of_another_run(pairs: tuple[Path, Path], resealed: bool, renamed: bool, tmp_path: Path) -> None:
    """Of the same settings, whole. `renamed`: with the id of the run that it is put into."""
    pair = Path(shutil.copytree(pairs[0], tmp_path / "pair"))
    run, manifest = pair / "candidate", read_manifest(pairs[1] / "candidate")
    if renamed:
        manifest["id"] = read_manifest(run)["id"]
    (run / MANIFEST).write_bytes(encode_manifest(manifest))
    if resealed:
        seal(run)
    assert unnoticed(pair) == []
    assert MANIFEST in {name for name, _ in Run(run, strict=False).torn} or not renamed


@pytest.mark.slow
def test_the_run_json_of_another_run_in_a_recorded_pair(tmp_path: Path) -> None:
    """As a command wrote it, before journals named their run.json: the id of the run tells."""
    pair = recorded_pair(tmp_path)
    for name in (MANIFEST, INDEX):
        shutil.copy(pair / "baseline" / name, pair / "candidate" / name)
    assert unnoticed(pair) == []
    seal(pair / "candidate")
    assert unnoticed(pair) == []


@pytest.mark.slow
def test_an_edited_run_json_is_noticed_though_all_checksums_fit(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    for number, change in enumerate(
        ({"index": False}, {"records": ["open"]}, {"command": "x"}, {"earlier": ["0" * 64]})
    ):
        pair = Path(shutil.copytree(pairs[0], tmp_path / str(number)))
        run = pair / "candidate"
        (run / MANIFEST).write_bytes(encode_manifest(read_manifest(run) | change))
        seal(run)
        assert unnoticed(pair) == [], change


@pytest.mark.slow
def test_a_whole_pair_with_run_json_written_again_passes(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    pair = Path(shutil.copytree(pairs[0], tmp_path / "pair"))
    for side in SIDES:
        for note in ("a", "b"):
            write_manifest(pair / side, {**read_manifest(pair / side), "command": note})
    assert unnoticed(pair) == ["EQUIVALENT", "SOUND"]


@pytest.mark.slow
def test_a_process_names_the_run_json_that_it_began_with(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "a"})
    install.start(tmp_path, role="actor").close()
    write_manifest(tmp_path, {"command": "b", "index": True})
    install.start(tmp_path, role="critic").close()
    write_manifest(tmp_path, {"command": "c", "index": True})
    seal(tmp_path)
    assert Run(tmp_path).complete
    (tmp_path / MANIFEST).write_bytes(encode_manifest(read_manifest(tmp_path) | {"earlier": []}))
    seal(tmp_path)
    assert [name for name, _ in Run(tmp_path, strict=False).torn] == [MANIFEST]


def test_a_process_that_began_before_its_run_json_names_none(tmp_path: Path) -> None:
    install.start(tmp_path, role="actor").close()
    write_manifest(tmp_path, {})
    assert Run(tmp_path).complete


@pytest.mark.slow
@pytest.mark.parametrize("name", [MANIFEST, INDEX])
@pytest.mark.parametrize("change", [
    lambda data: data[:-1], lambda data: data + b"\n", lambda data: data + b" ", lambda data: b" " + data,
    lambda data: data.replace(b"\n}\n", b"}\n"), lambda data: data.replace(b'"checksum": ', b'"checksum":'),
    lambda data: data.replace(b',\n  "checksum"', b', "checksum"'),
])  # fmt: skip
def test_every_byte_of_a_json_file_has_a_meaning(change: object, name: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, {"index": True})
    install.start(tmp_path, role="actor").close()
    seal(tmp_path)
    file = tmp_path / name
    assert Run(tmp_path).complete
    changed = change(file.read_bytes())  # type: ignore[operator]
    assert changed != file.read_bytes()
    file.write_bytes(changed)
    if name == INDEX:
        assert [place for place, why in Run(tmp_path).torn if "checksum" in why] == [INDEX]
    else:
        with pytest.raises(FormatError, match="checksum"):
            Run(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2**64, -(2**80), 10**400])
@pytest.mark.parametrize(("kind", "where"), [("learner", "step"), ("open", "ppid"), ("sampling", "canonical")])
def test_a_number_of_more_than_64_bits_in_an_event_is_damage(
    number: int, kind: str, where: str, tmp_path: Path
) -> None:
    recording = make("baseline", scenario(steps=2), native=False)
    event = next(recording.events(kind))
    event[where] = {"nested": [number]} if where == "canonical" else number
    verdict = audit(recording.write(tmp_path / "run"))
    assert verdict.verdict == "INCONCLUSIVE" and "hexadecimal digits" in str(verdict)


def test_a_number_of_64_bits_in_an_event_is_none(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=2), native=False)
    next(recording.events("open"))["ppid"] = 2**63 - 1
    assert audit(recording.write(tmp_path / "run")).verdict == "SOUND"


@pytest.mark.parametrize("number", [2**64, -(2**80)])
def test_a_number_of_more_than_64_bits_in_a_frame_is_damage(number: int, tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=2), native=False)
    recording.frame("rollout", 1).fields["rounds"] = number
    verdict = audit(recording.write(tmp_path / "run"))
    assert verdict.verdict == "INCONCLUSIVE" and "hexadecimal digits" in str(verdict)
