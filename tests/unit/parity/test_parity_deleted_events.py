"""One event removed from one side of a pair, with checksums, counts and index that fit: the pair does not pass.

The events are those that the recordings have, one of each kind, process and mode. By day every ninth of a recorded pair
is removed, at night all of either side.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded_pairs import recorded_pair
from recordings import Recording, pair, promise, put, scenario
from resealed import Place, drop_event, places

from harness.parity import judge
from harness.parity.audit import audit
from probes.format import SIDES
from scenarios.records import OF_EACH_PROCESS, OF_EACH_STEP

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
EVERY = 1 if NIGHT else 9
STEPS = 2
Change = Callable[[Recording], None]


def promising(*, ranks: int = 1, steps: int = STEPS) -> tuple[Recording, Recording]:
    plan = scenario(steps=steps)
    baseline, candidate = pair(plan=dataclasses.replace(plan, ppo=dataclasses.replace(plan.ppo, world_size=ranks)))
    return promise(baseline), promise(candidate)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one engine, with a lifted and a native stage."""
    return recorded_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two engines, with a native stage."""
    folder = tmp_path_factory.mktemp("pair")
    assert put(folder, *promising()).verdict == "EQUIVALENT"
    return folder


def passing(whole: Path, copy: Path, side: str, removed: list[Place]) -> Iterator[str]:
    """Yield the places whose event can be removed without a change of the verdict."""
    shutil.copytree(whole, copy)
    for place in removed:
        shutil.rmtree(copy / side)
        shutil.copytree(whole / side, copy / side)
        drop_event(copy / side, place)
        if judge(copy / "baseline", copy / "candidate").verdict == "EQUIVALENT":
            yield str(place)


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_no_event_of_a_recorded_pair_can_be_removed(side: str, recorded: Path, tmp_path: Path) -> None:
    assert judge(recorded / "baseline", recorded / "candidate").verdict == "EQUIVALENT"
    listed = places(recorded / side)
    assert len(listed) > 80
    removed = listed[SIDES.index(side) :: EVERY]
    assert not [*passing(recorded, tmp_path / "copy", side, removed)]


@pytest.fixture(scope="module")
def of_format_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without an index, checksums of files and promises."""
    folder = tmp_path_factory.mktemp("pair")
    runs = promising()
    for run in runs:
        run.manifest |= {"format_version": 3}
        for key in ("index", "records"):
            run.manifest.pop(key, None)
    assert put(folder, *runs).verdict == "EQUIVALENT"
    return folder


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES if NIGHT else SIDES[1:])
def test_no_event_of_a_pair_without_an_index_can_be_removed(side: str, of_format_3: Path, tmp_path: Path) -> None:
    listed = [place for place in places(of_format_3 / side) if not (place.kind == "span" and "rollout" in place.file)]
    assert len(listed) > 30
    assert not [*passing(of_format_3, tmp_path / "copy", side, listed)]


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_no_event_of_a_pair_of_two_engines_can_be_removed(side: str, written: Path, tmp_path: Path) -> None:
    listed = [place for place in places(written / side) if not (place.kind == "span" and "rollout" in place.file)]
    assert len(listed) > 30
    assert not [*passing(written, tmp_path / "copy", side, listed)]


PROMISES = [(role, kind) for role, kinds in OF_EACH_PROCESS.items() for kind in kinds]
PROMISES += [("trainer", kind) for kind in OF_EACH_STEP]


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(("role", "kind"), PROMISES)
def test_what_a_process_always_records_is_missing_where_both_runs_lost_it(role: str, kind: str, tmp_path: Path) -> None:
    """The events of one process of each run: of the native stage's engine, or so many that a step has none."""
    runs = promising()
    for run in runs:
        log = [log for log in run.logs.values() if log.role == role][-1 if role == "rollout" else 0]
        events = [event for event in log.events if event[0] == kind]
        kept = events[: STEPS - 1] if kind in OF_EACH_STEP and role == "trainer" else []
        log.events = [event for event in log.events if event[0] != kind or event in kept]
    verdict = put(tmp_path, *runs)
    assert verdict.verdict == "INCONCLUSIVE" and any(repr(kind) in line for line in verdict.missing)
    assert audit(tmp_path / "baseline").verdict == "INCONCLUSIVE"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"ranks": 2}, {"steps": 3}])
def test_whole_pairs_keep_their_promises(options: dict[str, int], tmp_path: Path) -> None:
    assert put(tmp_path, *promising(**options)).verdict == "EQUIVALENT"


def _call(run: Recording) -> None:
    run.logs["rollout"].event("call", name="generate", step=0, ok=True, message="", seconds=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "verdict"), [(2, "EQUIVALENT"), (1, "INCONCLUSIVE")])
def test_each_round_of_a_guided_rollout_is_one_call_more(calls: int, verdict: str, tmp_path: Path) -> None:
    baseline, candidate = promising()
    next(candidate.frames("rollout")).fields["rounds"] = 3
    for _ in range(calls):
        _call(candidate)
    assert put(tmp_path, baseline, candidate).verdict == verdict


def _own_group(run: Recording) -> None:
    run.logs["rollout"].event("group", name="tp", backend="gloo", rank=0, world_size=1, members=[0])


def _note(run: Recording) -> None:
    run.logs["trainer"].event("note", text="the heartbeat is off")


def _less(run: Recording) -> None:
    shapes = next(event for event in run.logs["trainer"].events if event[0] == "shapes")
    run.logs["trainer"].events.remove(shapes)


def _of_format_3(run: Recording) -> None:
    run.manifest |= {"format_version": 3, "index": False}
    _less(run)


def _of_other_settings(run: Recording) -> None:
    run.manifest["scenario"]["ppo"]["micro_batch_size"] = 16
    _less(run)


def _of_another_version(run: Recording) -> None:
    for event in run.events("open"):
        event["packages"] = {**event["packages"], "rlhf-harness": "0.1"}
    _less(run)


@pytest.mark.slow
@pytest.mark.parametrize("change", [_own_group, _note, _of_format_3, _of_other_settings, _of_another_version])
def test_runs_that_record_more_or_less_for_a_reason_pass(change: Change, tmp_path: Path) -> None:
    """An engine's own groups, remarks, and what another format, other settings and another version record."""
    baseline, candidate = pair(plan=scenario(steps=STEPS))
    change(candidate)
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


@pytest.mark.slow
def test_runs_of_the_same_settings_do_not_record_less(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=scenario(steps=STEPS))
    _less(candidate)
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"
