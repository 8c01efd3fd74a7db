"""Damage to the files of a pair: whatever is flipped, cut, exchanged or deleted, the verdict is not EQUIVALENT."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kept_folders import kept_folder
from recorded_pairs import recorded_pair
from recordings import Recording, make, pair, promise, put, scenario

from harness.parity import judge
from probes.format import encode_manifest, read_manifest

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
EXAMPLES = int(os.environ.get("TEST_CHANGES", 2_000 if NIGHT else 25))
EXAMPLES_OF_A_REAL_PAIR = int(os.environ.get("TEST_CHANGES_REAL", 300 if NIGHT else 5))
SEEDS = st.integers(0, 2**32 - 1)


@functools.cache
def sound() -> Path:
    """A pair that is EQUIVALENT, with a native stage and all records that its manifests promise."""
    folder = kept_folder("pair-")
    plan = scenario(steps=2)
    for side in ("baseline", "candidate"):
        promise(make(side, plan)).write(folder / side)
    assert judge(folder / "baseline", folder / "candidate").verdict == "EQUIVALENT"
    return folder


@functools.cache
def recorded() -> Path:
    """A pair that a command recorded, with its lifted and its native stage."""
    folder = recorded_pair(kept_folder("pair-"))
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


def delete_processes(folder: Path, chance: random.Random) -> None:
    """All files of some processes, of one side or of both."""
    for side in chance.choice([["baseline"], ["candidate"], ["baseline", "candidate"]]):
        stems = sorted({path.stem for path in files(folder / side) if path.suffix != ".json"})
        gone = set(chance.sample(stems, chance.randint(1, len(stems))))
        for path in files(folder / side):
            if path.stem in gone:
                path.unlink()


def copy_process(folder: Path, chance: random.Random) -> None:
    """The files of a process under a new name, in its own recording or in the other."""
    side, other = chance.choice(["baseline", "candidate"]), chance.choice(["baseline", "candidate"])
    source = chance.choice([path for path in files(folder / side) if path.suffix == ".jsonl"])
    name = f"{source.stem.rpartition('-')[0]}-{chance.randrange(10**5, 10**6)}"
    for path in files(folder / side):
        if path.stem == source.stem:
            shutil.copy(path, folder / other / path.parent.name / f"{name}{path.suffix}")


def edit_manifest(folder: Path, chance: random.Random) -> None:
    """A key or a value of run.json, anywhere in it, with a checksum that fits."""
    run = chance.choice([path.parent for path in files(folder) if path.name == "run.json"])
    manifest = read_manifest(run)
    places = list(places_of(manifest))
    holder, key = chance.choice(places)
    value = holder.pop(key) if isinstance(holder, dict) else holder[key]
    what = chance.choice(["removed", "misspelt", "another"])
    if what == "misspelt":
        holder[f"{key}x"] = value
    elif what == "another":
        others = [None, 10**9, 1e9, 2.5, -1, "x", [], {}, True]
        holder[key] = chance.choice([other for other in others if repr(other) != repr(value)])
    (run / "run.json").write_bytes(encode_manifest(manifest))


def places_of(value: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, part in value.items():
        yield value, key
        if isinstance(part, dict):
            yield from places_of(part)


Damage = Callable[[Path, random.Random], None]
DAMAGES: tuple[Damage, ...] = (
    flip, cut, leave_out, exchange_lines, exchange_files, delete, delete_processes, copy_process, edit_manifest
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damage=st.sampled_from(DAMAGES), seed=SEEDS)
@example(damage=delete, seed=0)
@example(damage=exchange_files, seed=0)
def test_no_damage_passes(damage: Damage, seed: int) -> None:
    no_damage_passes(sound(), damage, seed)


@pytest.mark.slow
@settings(max_examples=EXAMPLES_OF_A_REAL_PAIR, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damage=st.sampled_from(DAMAGES), seed=SEEDS)
@example(damage=delete_processes, seed=0)
def test_no_damage_of_a_real_pair_passes(damage: Damage, seed: int) -> None:
    no_damage_passes(recorded(), damage, seed)


def no_damage_passes(pair: Path, damage: Damage, seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(pair, Path(place) / "pair"))
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
    return promise(baseline), promise(candidate)


@pytest.mark.night
@pytest.mark.slow
def test_a_kind_of_event_that_was_promised_and_is_absent_is_missing(tmp_path: Path) -> None:
    for kind in promising()[0].manifest["records"]:
        if kind == "open":
            continue
        baseline, candidate = promising()
        candidate.drop(kind)
        verdict = put(tmp_path / kind, baseline, candidate)
        assert verdict.verdict == "INCONCLUSIVE" and repr(kind) in verdict.reason + " ".join(verdict.missing), kind


@pytest.mark.slow
def test_settings_that_nobody_reads_are_said_and_those_that_are_absent(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    rollout = candidate.manifest["scenario"]["rollout"]
    rollout["samples_per_promps"] = rollout.pop("samples_per_prompt")
    verdict = put(tmp_path, baseline, candidate)
    assert any("scenario.rollout.samples_per_promps" in line for line in verdict.missing)
    assert any("scenario.rollout.samples_per_prompt" in line for line in verdict.missing)
    assert not any("baseline's run.json" in line for line in verdict.missing)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("steps", 1e9), ("steps", 2.5), ("seed", 0.5)])
def test_counts_of_earlier_formats_are_whole_numbers_too(key: str, value: float, tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.manifest |= {"format_version": 3, "index": False}
    candidate.manifest["scenario"][key] = value
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and f"scenario.{key}" in verdict.reason


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "events/rollout-0-5002.jsonl", "tokens/rollout-0-5002.bin"])
def test_a_pipe_in_the_place_of_a_file_is_not_read(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound(), tmp_path / "pair"))
    (folder / "candidate" / name).unlink()
    os.mkfifo(folder / "candidate" / name)
    verdict = judge(folder / "baseline", folder / "candidate")
    assert verdict.verdict in ("INCONCLUSIVE", "ERROR") and "not a regular file" in str(verdict)


@pytest.mark.slow
def test_journals_of_one_run_that_changed_names_are_noticed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound(), tmp_path / "pair")) / "candidate" / "events"
    first, second = sorted(folder.iterdir())[:2]
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    assert judge(tmp_path / "pair/baseline", tmp_path / "pair/candidate").verdict == "INCONCLUSIVE"


@pytest.mark.slow
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


def test_of_a_run_that_ended_before_it_recorded_anything_one_sentence_is_said(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    baseline.logs.clear()
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)
    [about_baseline] = [line for line in (verdict.reason, *verdict.evidence, *verdict.missing) if "baseline" in line][
        :1
    ]
    assert about_baseline == "the baseline recorded nothing: it has a run.json, and no process of it wrote an event"
    assert not any("dropped" in line for line in (verdict.account, *verdict.missing))
