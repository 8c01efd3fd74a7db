"""Damage to the files of a pair: whatever is flipped, cut, exchanged or deleted, the verdict is not EQUIVALENT."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from recordings import Recording, make, pair, put, scenario

from harness.parity import judge

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
EXAMPLES = 2_000 if NIGHT else 25
SEEDS = st.integers(0, 2**32 - 1)


@functools.cache
def sound() -> Path:
    """A pair that is EQUIVALENT, with a native stage and all records that its manifests promise."""
    folder = Path(tempfile.mkdtemp(prefix="pair-"))
    plan = scenario(steps=2)
    for side in ("baseline", "candidate"):
        recording = make(side, plan)
        recording.manifest["records"] = sorted({kind for log in recording.logs.values() for kind, _ in log.events})
        recording.write(folder / side)
    assert judge(folder / "baseline", folder / "candidate").verdict == "EQUIVALENT"
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(folder: Path, chance: random.Random) -> None:
    file = chance.choice(files(folder))
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(content))


def cut(folder: Path, chance: random.Random) -> None:
    file = chance.choice(files(folder))
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content.rstrip()))])


def leave_out(folder: Path, chance: random.Random) -> None:
    """A run of bytes, or whole lines, from the middle of a file."""
    file = chance.choice(files(folder))
    content = file.read_bytes()
    start, stop = sorted(chance.sample(range(len(content.rstrip()) + 1), 2))
    file.write_bytes(content[:start] + content[stop:])


def exchange_lines(folder: Path, chance: random.Random) -> None:
    file = chance.choice([path for path in files(folder) if path.suffix == ".jsonl"])
    lines = file.read_bytes().splitlines(keepends=True)
    first, second = chance.sample(range(len(lines)), 2)
    lines[first], lines[second] = lines[second], lines[first]
    file.write_bytes(b"".join(lines))


def exchange_files(folder: Path, chance: random.Random) -> None:
    """Two files of one kind, of both sides or of one."""
    suffix = chance.choice([".json", ".jsonl", ".bin"])
    first, second = chance.sample([path for path in files(folder) if path.suffix == suffix], 2)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def delete(folder: Path, chance: random.Random) -> None:
    chance.choice(files(folder)).unlink()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip, cut, leave_out, exchange_lines, exchange_files, delete
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damage=st.sampled_from(DAMAGES), seed=SEEDS)
@example(damage=delete, seed=0)
@example(damage=exchange_files, seed=0)
def test_no_damage_passes(damage: Callable[[Path, random.Random], None], seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(sound(), Path(place) / "pair"))
        damage(folder, random.Random(seed))
        verdict = judge(folder / "baseline", folder / "candidate")
        assert verdict.verdict in ("INCONCLUSIVE", "ERROR"), (damage.__name__, seed, verdict.reason)


@pytest.mark.slow
def test_every_deleted_file_is_missed() -> None:
    for file in files(sound()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(sound(), Path(place) / "pair"))
            (folder / file.relative_to(sound())).unlink()
            assert judge(folder / "baseline", folder / "candidate").verdict != "EQUIVALENT", file


def promising() -> tuple[Recording, Recording]:
    baseline, candidate = pair(native=False)
    for side in (baseline, candidate):
        side.manifest["records"] = sorted({kind for log in side.logs.values() for kind, _ in log.events})
    return baseline, candidate


@pytest.mark.slow
def test_a_kind_of_event_that_was_promised_and_is_absent_is_missing(tmp_path: Path) -> None:
    for kind in promising()[0].manifest["records"]:
        if kind == "open":
            continue
        baseline, candidate = promising()
        candidate.drop(kind)
        verdict = put(tmp_path / kind, baseline, candidate)
        assert verdict.verdict == "INCONCLUSIVE" and repr(kind) in verdict.reason + " ".join(verdict.missing), kind


def test_kinds_and_keys_that_nobody_reads_are_said(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.logs["trainer"].event("bounlaries", step=0)
    candidate.manifest["stepc"] = 8
    next(candidate.events("data"))["prompst"] = "00"
    next(candidate.events("boundaries"))["finich"] = "stop"
    verdict = put(tmp_path, baseline, candidate)
    assert any("boundaries.finich, data.prompst" in line for line in verdict.missing)
    assert not any("baseline" in line and "not read" in line for line in verdict.missing)
    assert any("bounlaries" in line for line in verdict.missing)
    assert any("stepc" in line for line in verdict.missing)


@pytest.mark.parametrize("name", ["run.json", "events/rollout-0-5002.jsonl", "tokens/rollout-0-5002.bin"])
def test_a_pipe_in_the_place_of_a_file_is_not_read(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound(), tmp_path / "pair"))
    (folder / "candidate" / name).unlink()
    os.mkfifo(folder / "candidate" / name)
    verdict = judge(folder / "baseline", folder / "candidate")
    assert verdict.verdict in ("INCONCLUSIVE", "ERROR") and "not a regular file" in str(verdict)


def test_journals_of_one_run_that_changed_names_are_noticed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound(), tmp_path / "pair")) / "candidate" / "events"
    first, second = sorted(folder.iterdir())[:2]
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    assert judge(tmp_path / "pair/baseline", tmp_path / "pair/candidate").verdict == "INCONCLUSIVE"


def test_kinds_and_names_of_frames_that_nobody_reads_are_said(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    log = candidate.logs["rollout"]
    for frame in candidate.frames("rollout"):
        frame.fields["finich"] = frame.fields.pop("finish")
        frame.arrays["logprop"] = frame.arrays["logprob"]
    log.frames.append(dataclasses.replace(log.frames[0], kind="roll0ut"))
    verdict = put(tmp_path, baseline, candidate)
    assert any("rollout.finich, rollout.logprop" in line for line in verdict.missing)
    assert any("frames of kinds" in line and "roll0ut" in line for line in verdict.missing)
    assert not any("baseline" in line and "not read" in line for line in verdict.missing)
