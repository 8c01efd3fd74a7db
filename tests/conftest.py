"""Fixtures of the slow tests: the helpers beside the unit tests, the built-in models, and where recordings go."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest import runner

# One thread for NumPy: the other threads of OpenBLAS spin after each small matrix product, which was 60 of the 150 ms
# of CPU time that judging a small pair with a native stage took. OpenBLAS reads the variable when it is loaded; the
# processes that tests start do not get it.
with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401

# No test depends on timing: an example may take as long as a busy machine makes it take. By day few examples, the same
# ones every time, so that a change is not refused for what was there before it; at night (.ci/nightly) many others.
hypothesis.settings.register_profile(
    "day", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], derandomize=True, max_examples=25
)
hypothesis.settings.register_profile(
    "nightly", hypothesis.settings.get_profile("day"), derandomize=False, max_examples=500
)
hypothesis.settings.load_profile(os.environ.get("TEST_PROFILE", "day"))
# With torch, SciPy and thousands of tests loaded, collections of garbage took 10 % of all processor time.
gc.set_threshold(50_000, 20, 20)
NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="run a part of the test files alone, as 1/2 (tests/support/in_parts.py)")


def pytest_unconfigure() -> None:
    from kept_folders import until_the_end

    until_the_end.close()


SLOW_AS_A_WHOLE = re.compile(r"^pytestmark = pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no test file without a test that is chosen, nor one of another part."""
    if not _is_test_file(collection_path):
        return None
    part = _files_of_the_part(config)
    return _is_left_out(collection_path, config) or (part is not None and collection_path not in part) or None


def _is_test_file(path: Path) -> bool:
    return path.suffix == ".py" and path.name.startswith("test_")


def _is_left_out(file: Path, config: pytest.Config) -> bool:
    """Where slow tests are left out, a file that is slow as a whole; where they alone run, one that has none."""
    if config.option.markexpr == "not slow":
        return bool(SLOW_AS_A_WHOLE.search(file.read_text()))
    return config.option.markexpr == "slow" and not _is_integration(file) and "mark.slow" not in file.read_text()


def _files_of_the_part(config: pytest.Config) -> frozenset[Path] | None:
    """The test files of `--part`; None where all run."""
    if config.option.part is None:
        return None
    if PART not in config.stash:
        import in_parts

        folders = [Path(config.invocation_params.dir, argument) for argument in config.args]
        files = [file for folder in folders for file in folder.rglob("test_*.py") if not _is_left_out(file, config)]
        config.stash[PART] = in_parts.part_of(files, config.option.part)
    return config.stash[PART]


PART = pytest.StashKey[frozenset[Path]]()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Where slow tests are left out, do not make the cases of a slow test: they were more than half of all cases."""
    if collector.config.option.markexpr != "not slow":
        return None
    marks = getattr(obj, "pytestmark", ())
    return [] if isinstance(marks, list) and any(mark.name == "slow" for mark in marks) else None


def _of_the_night(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """What is marked `night`, and of a test that is marked `by_day(N)` all cases but N, which are spread over all."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        by_day = item.get_closest_marker("by_day")
        if item.get_closest_marker("night"):
            yield item
        elif by_day is not None:
            cases.setdefault((item.nodeid.partition("[")[0], by_day.args[0]), []).append(item)
    for (_, number), of_one_test in cases.items():
        chosen = {place * len(of_one_test) // number for place in range(number)}
        yield from (item for place, item in enumerate(of_one_test) if place not in chosen)


@pytest.hookimpl(tryfirst=True)  # before `-m slow` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of `integration/` is slow. By day the tests of the night are skipped: what they show is shown in part by a
    shorter one beside them, or by the main job, as that an environment draws."""
    for item in items:
        if _is_integration(item.path):
            item.add_marker(pytest.mark.slow)
    for item in _of_the_night(items) if not NIGHT else ():
        item.add_marker(pytest.mark.skip(reason="at night only: TEST_PROFILE=nightly"))
    items.sort(key=functools.partial(_turn, _turns(items)))


def _turns(items: list[pytest.Item]) -> dict[Path, float]:
    """When each file has its turn, in [0, 1]: those of `integration/`, which wait for half of their time, come evenly
    between the others, which compute. So the workers share two cores well."""
    waiting, computing = list[Path](), list[Path]()
    for path in dict.fromkeys(item.path for item in items):
        (waiting if _is_integration(path) else computing).append(path)
    return {path: place / len(paths) for paths in (waiting, computing) for place, path in enumerate(paths)}


def _turn(turns: dict[Path, float], item: pytest.Item) -> tuple[bool, float]:
    """Engines first: their files take longest, and at the end no worker waits for one that has just begun."""
    return item.get_closest_marker("engines") is None, turns[item.path]


def _is_integration(path: Path) -> bool:
    return path.parent.name == "integration"


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a worker of pytest-xdist report of a test what the result and `--durations` show: its call, and whatever
    else failed, was skipped or took 5 ms. The other four messages were a fifth of what a trivial test costs."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runner.runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= 0.005:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_collection_finish() -> None:
    """Freeze what imports and collection made: garbage collections, and Python's end, took 4 s a process over it."""
    gc.freeze()
    _collected.update(sys.modules)


_collected: set[str] = set()


@pytest.fixture
def imported_by_collection() -> frozenset[str]:
    """The modules that were loaded when the last test was collected."""
    return frozenset(_collected)


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The built-in policy and reward model of seed 0, as settings of a role: about 15 s on one core."""
    from scenarios import models

    home = tmp_path_factory.mktemp("models")
    return {"policy": str(models.build(0, home)), "reward": str(models.build_reward(0, home))}


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for recordings that several tests of a session judge; HARNESS_TEST_RECORDINGS keeps them."""
    kept = os.environ.get("HARNESS_TEST_RECORDINGS")
    return Path(kept) if kept else tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="session")
def _fixes() -> Iterator[Any]:
    import printed_recorder

    with printed_recorder.recording() as recorder:
        yield recorder


@pytest.fixture(scope="session")
def _answers() -> Iterator[MutableSequence[Any]]:
    import headlines

    with headlines.answers() as made:
        yield made


@pytest.fixture(scope="session")
def _heartbeats() -> Iterator[MutableSequence[Any]]:
    """The heartbeats that were made in this process since the list was last cleared."""
    from probes.heartbeat import Heartbeat

    made: list[Heartbeat] = []
    begin = Heartbeat.__init__

    @functools.wraps(begin)
    def noted(heart: Heartbeat, *args: Any, **options: Any) -> None:
        made.append(heart)
        begin(heart, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "__init__", noted)
        yield made


@pytest.fixture(autouse=True)
def _whatever_a_test_is_about(
    _fixes: Any, _answers: MutableSequence[Any], _heartbeats: MutableSequence[Any]
) -> Iterator[None]:
    """What holds in every test; in one fixture, since three cost thousands of small tests seconds.

    What a test teaches the scrubber to withhold ends with it: a value of one test may be a word of another. Every
    answer that the harness makes begins with a line of few words, and `harness explain` knows all that it names.
    Every fix that is made for the first time is read as tests/support/printed_judge.py reads it. A heartbeat that a
    test leaves open ends with it: by its file a later test would take this process for one that is watched.
    """
    import headlines

    from probes import redaction

    before = redaction._secrets, redaction._known_pattern
    redaction._secrets, redaction._known_pattern = {}, None
    redaction._cached.cache_clear()
    redaction._harmless.clear()
    _answers.clear()
    yield
    redaction._secrets, redaction._known_pattern = before
    while _heartbeats:
        if (heart := _heartbeats.pop()).__dict__.get("_fd", -1) >= 0:
            heart.close()
    faults = _fixes.faults()
    assert not headlines.too_long(_answers), f"first lines of more than {headlines.headline.MOST} words"
    assert not headlines.unexplained(_answers), "the family of these causes lists no such detail"
    assert not headlines.unnamed(_answers), "harness explain refuses these names"
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of commands that leave a report beside their verdict: its charts are most of what it costs."""
    from reports.sections import charts

    monkeypatch.setattr(charts, "charts", lambda parity, sheet: [])


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handlers of SIGTERM and SIGHUP that were in place before the command line put its own there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine threads that wait for each other take a hundred times as long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
