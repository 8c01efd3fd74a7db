"""The index of a recording: whatever file is deleted, added or exchanged after a run has ended, no verdict passes."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from recorded_pairs import recorded_pair
from recordings import make, scenario, stage
from resealed import drop_events, drop_frames, reseal

from harness.parity import judge
from harness.parity.audit import audit
from probes.format import INDEX, LIFTED, Run, encode_manifest, read_manifest, seal

SIDES = ("baseline", "candidate")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair as `harness parity` records it, with a native stage."""
    folder = tmp_path_factory.mktemp("recorded")
    for side in SIDES:
        make(side, scenario(steps=2)).write(folder / side)
    assert judge(folder / "baseline", folder / "candidate").verdict == "EQUIVALENT"
    return folder


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair in half precision, with its lifted stage."""
    folder, plan = tmp_path_factory.mktemp("lifted"), scenario(steps=2, dtype="bfloat16", max_tokens=48)
    for side in SIDES:
        recording = make(side, plan)
        recording.stage = stage(side, plan)
        recording.write(folder / side)
    assert judge(folder / "baseline", folder / "candidate").verdict == "EQUIVALENT"
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair that `harness parity` recorded."""
    return recorded_pair(tmp_path_factory.mktemp("real"))


@pytest.fixture(params=["recorded", *(pytest.param(name, marks=pytest.mark.night) for name in ("lifted", "real"))])
def pair(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def copied(pair: Path, folder: Path) -> Path:
    return Path(shutil.copytree(pair, folder))


def passing(folder: Path, sides: set[str]) -> list[str]:
    """What the judge says of the pair and of these sides alone, where it is more than that nothing can be judged."""
    alone = [audit(folder / side).verdict for side in sides]
    verdicts = [judge(folder / "baseline", folder / "candidate").verdict, *alone]
    return [verdict for verdict in verdicts if verdict not in ("INCONCLUSIVE", "ERROR")]


def processes(side: Path) -> list[list[Path]]:
    """The files of each process of a side, those of its lifted stage among them."""
    files = defaultdict(list)
    for file in sorted(side.rglob("*")):
        if file.suffix in (".jsonl", ".bin"):
            files[file.parent.parent, file.stem].append(file)
    return list(files.values())


def deletions(pair: Path) -> Iterator[tuple[set[str], list[Path]]]:
    """(sides, files): each file, each process, the native stage and each process on both sides."""
    both = []
    for name in SIDES:
        for file in sorted(file for file in (pair / name).rglob("*") if file.is_file()):
            yield {name}, [file]
        of_processes = processes(pair / name)
        for files in of_processes:
            yield {name}, files
        late = [file for files in of_processes for file in files if file.stem.startswith("trainer-1-")]
        late += [file for files in of_processes for file in files if file.stem.endswith("-2")]
        yield {name}, late or of_processes[0]
        both.append(of_processes)
    for files, others in zip(*both, strict=True):
        yield set(SIDES), [*files, *others]


def pairs_of_processes(pair: Path) -> Iterator[tuple[set[str], list[Path]]]:
    for first, second in combinations(processes(pair / "candidate"), 2):
        yield {"candidate"}, [*first, *second]


def delete_each(pair: Path, folder: Path, cases: Iterator[tuple[set[str], list[Path]]]) -> None:
    for number, (sides, files) in enumerate(cases):
        damaged = copied(pair, folder / str(number))
        for file in files:
            (damaged / file.relative_to(pair)).unlink()
        assert passing(damaged, sides) == [], [str(file.relative_to(pair)) for file in files]
        shutil.rmtree(damaged)


@pytest.mark.night
@pytest.mark.slow
def test_no_file_can_be_deleted(pair: Path, tmp_path: Path) -> None:
    delete_each(pair, tmp_path, deletions(pair))


@pytest.mark.night
@pytest.mark.slow
def test_no_two_processes_can_be_deleted(recorded: Path, tmp_path: Path) -> None:
    delete_each(recorded, tmp_path, pairs_of_processes(recorded))


@pytest.mark.slow
@pytest.mark.parametrize("sides", [("baseline",), ("candidate",), SIDES])
def test_a_lifted_stage_cannot_be_deleted(lifted: Path, sides: tuple[str, ...], tmp_path: Path) -> None:
    folder = copied(lifted, tmp_path / "pair")
    for side in sides:
        shutil.rmtree(folder / side / LIFTED)
    assert passing(folder, set(sides)) == []


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("sides", [("candidate",), SIDES])
@pytest.mark.parametrize("kind", ["engine_stats", "group", "native", "native_score", "repeat"])
def test_no_kind_of_records_can_be_deleted(real: Path, kind: str, sides: tuple[str, ...], tmp_path: Path) -> None:
    folder = copied(real, tmp_path / "pair")
    for side in sides:
        drop_events(folder / side, kind)
        drop_frames(folder / side, kind)
    assert passing(folder, set(sides)) == []


@pytest.mark.slow
def test_a_run_without_a_native_stage_lacks_none_of_its_frames(real: Path, tmp_path: Path) -> None:
    folder = copied(real, tmp_path / "pair")
    for side in SIDES:
        for file in [*(folder / side).glob("*/rollout-*-2.*"), *(folder / side).glob("*/trainer-1-*")]:
            file.unlink()
        reseal(folder / side)
    assert passing(folder, set(SIDES))[0] == "EQUIVALENT"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["trainer-0", "rollout-0", "trainer-1"])
def test_a_copy_under_a_new_name_is_not_read(recorded: Path, which: str, tmp_path: Path) -> None:
    folder = copied(recorded, tmp_path / "pair")
    for kind, suffix in (("events", ".jsonl"), ("tokens", ".bin")):
        for file in sorted((folder / "candidate" / kind).glob(f"{which}-*{suffix}"))[-1:]:
            shutil.copy(file, file.with_name(f"{which}-9999{suffix}"))
    verdict = judge(folder / "baseline", folder / "candidate")
    assert verdict.verdict == "INCONCLUSIVE" and "did not write it" in verdict.reason + " ".join(verdict.missing)
    assert verdict.causes == []


def test_without_an_index_a_copy_is_told_by_when_its_process_began(tmp_path: Path) -> None:
    folder = make("baseline", scenario(steps=2))
    folder.manifest["index"] = False
    run = folder.write(tmp_path / "run")
    events = len(list(Run(run).events()))
    for kind, suffix in (("events", ".jsonl"), ("tokens", ".bin")):
        file = sorted((run / kind).glob("rollout-*"))[-1]
        shutil.copy(file, file.with_name(f"rollout-0-9999{suffix}"))
    recording = Run(run, strict=False)
    assert [(name, "copy of" in why) for name, why in recording.torn] == [("events/rollout-0-9999.jsonl", True)]
    assert len(list(recording.events())) == events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), ""),
        (lambda file: file.write_text("{"), "not JSON"),
        (lambda file: file.write_text("[]"), "checksum"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b'"bytes": 1', b'"bytes": 2')), "checksum"),
        (lambda file: file.write_bytes(encode_manifest({"files": []})), "lists no files"),
        (lambda file: file.write_bytes(encode_manifest({"files": {}, "run": "other"})), "another run"),
        (lambda file: os.truncate(file, 2 << 30), "more than 64 MiB"),
    ],
)  # fmt: skip
def test_an_index_that_is_gone_or_damaged_is_told(damage: object, words: str, recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded / "candidate", tmp_path / "run"))
    assert Run(run).complete
    damage(run / INDEX)  # type: ignore[operator]
    recording = Run(run)
    assert not recording.complete and recording.unsealed == (not words)
    assert any(name == INDEX and words in why for name, why in recording.torn) == bool(words)
    assert audit(run).verdict == "INCONCLUSIVE"


def test_a_run_that_was_cut_short_is_said_to_be_that(tmp_path: Path) -> None:
    recording = make("baseline", scenario(steps=2), native=False)
    recording.logs["actor"].closed = False
    run = recording.write(tmp_path / "run")
    (run / INDEX).unlink()
    assert "has no close event" in audit(run).reason


@pytest.mark.slow
def test_an_edited_run_json_is_told_though_its_checksum_fits(recorded: Path, tmp_path: Path) -> None:
    for number, change in enumerate(({"index": False}, {"format_version": 3}, {"records": ["open"]}, {"command": "x"})):
        run = Path(shutil.copytree(recorded / "candidate", tmp_path / str(number)))
        (run / "run.json").write_bytes(encode_manifest(read_manifest(run) | change))
        assert audit(run).verdict == "INCONCLUSIVE", change


@pytest.mark.slow
def test_recordings_without_an_index_say_what_may_go_unseen(tmp_path: Path) -> None:
    for side in SIDES:
        recording = make(side, scenario(steps=2), native=False)
        recording.manifest["index"] = False
        recording.write(tmp_path / side)
    verdict = judge(tmp_path / "baseline", tmp_path / "candidate")
    assert verdict.verdict == "EQUIVALENT" and sum("no index" in line for line in verdict.missing) == 2
    assert [(limit.kind, limit.items) for limit in verdict.reservations if limit.kind == "recording"] == [
        ("recording", [*SIDES])
    ]
    assert verdict.strict.exit_code == 3


@pytest.mark.slow
def test_an_indexed_pair_passes_without_a_word_on_lost_records(recorded: Path) -> None:
    verdict = judge(recorded / "baseline", recorded / "candidate")
    assert "recording" not in [limit.kind for limit in verdict.reservations]


@pytest.mark.slow
def test_an_index_is_renewed_with_run_json(recorded: Path, tmp_path: Path) -> None:
    from probes.format import write_manifest

    run = Path(shutil.copytree(recorded / "candidate", tmp_path / "run"))
    write_manifest(run, read_manifest(run) | {"side": "candidate", "command": "again"})
    assert Run(run).complete
    seal(run)
    assert Run(run).complete
