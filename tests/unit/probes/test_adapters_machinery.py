"""Hooks on a framework: what they record, what they leave alone, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters_support as support
import pytest
from adapters_support import Noted, at_work, hook, module

from harness.frameworks.spec import frameworks
from probes.adapters.calls import Call
from probes.adapters.imports import Finder
from probes.adapters.table import Adapter, Hook
from probes.format import Run, write_manifest


def recorded(folder: Path) -> Run:
    write_manifest(folder, {})
    return Run(folder)


def spans(folder: Path) -> list[dict[str, Any]]:
    return list(recorded(folder).events("span"))


def test_a_call_is_a_span_with_its_step_and_its_reader_sees_arguments_and_result(tmp_path: Path) -> None:
    seen, before = Noted(), Noted()
    generate = hook(
        "trainer:Trainer.generate", span="rollout", step="self.state.step", record=seen, before=before
    )  # fmt: skip
    with at_work(tmp_path / "src", tmp_path / "run", generate):
        trainer = module("trainer").Trainer()
        assert trainer.generate([4]) == [[4, 4]]
        [call] = seen.calls
        assert (call.arguments["prompts"], call.arguments["n"], call.result) == ([4], 2, [[4, 4]])
        assert call.owner is trainer and before.calls == seen.calls
    [span] = spans(tmp_path / "run")
    assert (span["name"], span["step"], span["ok"]) == ("rollout", 3, True)
    assert span["hook"] == "little_rlhf.trainer:Trainer.generate"


def test_a_function_stays_what_it_was(tmp_path: Path) -> None:
    names = ("generate", "score", "agenerate", "stream", "astream", "static", "clsm", "held", "inherited")
    hooks = [hook(f"trainer:Trainer.{name}") for name in names]
    with at_work(tmp_path / "src", tmp_path / "run", *hooks) as machinery:
        cls = module("trainer").Trainer
        trainer = cls()
        assert not machinery.moved
        assert cls.generate.marked == "by the framework" and list(inspect.signature(cls.generate).parameters) == [
            "self", "prompts", "n",
        ]  # fmt: skip
        assert inspect.iscoroutinefunction(cls.agenerate) and asyncio.run(trainer.agenerate(2)) == 4
        stream = trainer.stream()
        assert inspect.isgeneratorfunction(cls.stream) and next(stream) == 1 and stream.send("sent") == "sent"
        with pytest.raises(StopIteration) as ended:
            next(stream)
        assert ended.value.value == "end"

        async def every() -> list[int]:
            return [item async for item in trainer.astream()]

        assert inspect.isasyncgenfunction(cls.astream) and asyncio.run(every()) == [1, 2]
        assert cls.static(5) == 5 and cls.clsm(6) == ("Trainer", 6) and trainer.score([1]) == 1
        with trainer.held() as held:
            assert held is trainer
        assert trainer.inherited(1) == ("inherited", 1) and module("base").Base().inherited(2) == ("inherited", 2)
    fired = [span["hook"].rpartition(".")[2] for span in spans(tmp_path / "run")]
    assert fired == ["agenerate", "stream", "astream", "static", "clsm", "score", "held", "inherited"]


def test_a_function_is_hooked_before_anybody_can_take_it_by_name(tmp_path: Path) -> None:
    with at_work(tmp_path / "src", tmp_path / "run", hook("early:helper")):
        import little_rlhf  # type: ignore[import-not-found]

        assert little_rlhf.helper(1) == 2  # `from little_rlhf.early import helper` in the package itself
    assert len(spans(tmp_path / "run")) == 1


def test_a_module_that_is_there_already_is_hooked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    support.write(tmp_path / "other")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    trainer = module("trainer").Trainer()
    with at_work(tmp_path / "src", tmp_path / "run", hook("trainer:Trainer.generate")) as machinery:
        assert machinery.installed == ["little_rlhf.trainer:Trainer.generate"] and trainer.generate([1])
    assert len(spans(tmp_path / "run")) == 1


def test_two_finders_see_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seen_twice.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[tuple[str, int]] = []
    finders = [
        Finder(["seen_twice"], lambda module, name=name: seen.append((name, module.value)))  # type: ignore[misc]
        for name in ("inner", "outer")
    ]
    for one in finders:
        one.install()
    try:
        importlib.import_module("seen_twice")
    finally:
        for one in finders:
            one.remove()
        sys.modules.pop("seen_twice", None)
    assert sorted(seen) == [("inner", 1), ("outer", 1)]


def test_the_jobs_own_exception_passes_and_is_recorded(tmp_path: Path) -> None:
    seen = Noted()
    fails = hook("trainer:Trainer.fails", record=seen)
    with at_work(tmp_path / "src", tmp_path / "run", fails), pytest.raises(ValueError, match="its own error"):
        module("trainer").Trainer().fails()
    [span] = spans(tmp_path / "run")
    assert span["ok"] is False and span["error"] == "ValueError: its own error" and not seen.calls


def _twice(stream: Any) -> None:
    """The first two items of an async generator, without a loop: asyncio's keeps exceptions itself."""
    for _ in range(2):
        with contextlib.suppress(StopIteration):
            stream.__anext__().send(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("raises", lambda ended: None), ("raises_in_stream", list), ("raises_later", lambda begun: begun.send(None)),
        ("raises_in_astream", _twice),
    ],
)  # fmt: skip
def test_the_jobs_exception_is_kept_nowhere(tmp_path: Path, name: str, run: Callable[[Any], Any]) -> None:
    """A job that runs out of memory and tries again with less needs what the frames below held at once."""
    noted: list[weakref.ref[Any]] = []
    with at_work(tmp_path / "src", tmp_path / "run", hook(f"trainer:Trainer.{name}", record=Noted())):
        trainer = module("trainer").Trainer()
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(ValueError):
                run(getattr(trainer, name)(lambda local: noted.append(weakref.ref(local))))
            assert noted[0]() is None
        finally:
            gc.enable()
    [span] = spans(tmp_path / "run")
    assert span["ok"] is False and span["error"] == "ValueError: its own error"


def test_a_call_that_raises_has_a_reader_of_its_own(tmp_path: Path) -> None:
    finished, failed = Noted(), Noted()
    fails = hook("trainer:Trainer.fails", record=finished, failed=failed)
    with at_work(tmp_path / "src", tmp_path / "run", fails), pytest.raises(ValueError, match="its own error"):
        module("trainer").Trainer().fails()
    [call] = failed.calls
    assert call.error == "ValueError: its own error" and call.result is None and finished.calls == []


def test_an_exception_without_a_text_passes_as_it_is(tmp_path: Path) -> None:
    with at_work(tmp_path / "src", tmp_path / "run", hook("trainer:Trainer.raises_unspeakably")):
        trainer = module("trainer")
        with pytest.raises(trainer.Unspeakable):
            trainer.Trainer().raises_unspeakably()


def test_a_recording_that_is_off_keeps_nothing(tmp_path: Path) -> None:
    hooks = hook("trainer:Trainer.generate", record=Noted()), hook("trainer:Trainer.score")
    with at_work(tmp_path / "src", tmp_path / "run", *hooks) as machinery:
        trainer, journal = module("trainer").Trainer(), machinery.journal()
        for name in ("generate", "score"):
            machinery.job.memory["tensor"] = object()
            trainer.generate([1])
            assert journal is not None and (journal.off or machinery.job.memory)
            journal.off = "the disk is full"
            getattr(trainer, name)([1])
            assert machinery.job.memory == {}


@pytest.mark.parametrize("part", ["record", "before", "step"])
def test_a_probe_that_fails_turns_itself_off_and_the_job_goes_on(tmp_path: Path, part: str) -> None:
    tries: list[int] = []

    def broken(call: Call) -> None:
        tries.append(1)
        raise LookupError("another version keeps it elsewhere")

    given: dict[str, Any] = {part: "self.state.nothing" if part == "step" else broken}
    good = Noted()
    hooks = hook("trainer:Trainer.generate", **given), hook("trainer:Trainer.score", record=good)
    with at_work(tmp_path / "src", tmp_path / "run", *hooks):
        trainer = module("trainer").Trainer()
        assert [trainer.generate([1]) for _ in range(3)] == [[[1, 1]]] * 3
        assert trainer.score([1]) == 1
    run = recorded(tmp_path / "run")
    [off] = run.events("hook_off")
    assert off["hook"] == "little_rlhf.trainer:Trainer.generate" and "LookupError" in off["error"]
    assert len(tries) == (0 if part == "step" else 1) and len(good.calls) == 1
    assert len(list(run.events("span"))) == 4  # its spans go on


def test_a_symbol_that_moved_is_said_and_the_others_are_hooked(tmp_path: Path) -> None:
    hooks = hook("trainer:Trainer.gone"), hook("trainer:Nobody.x"), hook("trainer:State.step"), hook("early:helper")
    with at_work(tmp_path / "src", tmp_path / "run", *hooks):
        module("trainer")
        assert module("early").helper(1) == 2
    told = list(recorded(tmp_path / "run").events("hooks"))[-1]
    assert told["installed"] == ["little_rlhf.early:helper"]
    moved = [symbol.partition(":")[2] for symbol in told["moved"]]
    assert sorted(moved) == ["Nobody.x", "State.step", "Trainer.gone"]
    assert told["moved"]["little_rlhf.trainer:Trainer.gone"] == "Trainer has no gone"


def test_rays_actor_class_is_hooked_inside(tmp_path: Path) -> None:
    seen = Noted()
    with at_work(tmp_path / "src", tmp_path / "run", hook("actor:Rollout.rollout", record=seen)):
        actor = module("actor")
        assert actor.Rollout.__ray_metadata__.modified_class().rollout([1]) == [1, 7]
        assert seen.calls[0].arguments["prompt"] == [1]


@pytest.mark.slow
def test_a_hooked_method_that_is_pickled_by_value_runs_where_no_probe_is(tmp_path: Path) -> None:
    """As Ray sends an actor class to a worker: the wrapper may take nothing of ours along."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    with at_work(tmp_path / "src", tmp_path / "run", hook("actor:Rollout.rollout")):
        cls = module("actor").Rollout.__ray_metadata__.modified_class
        cls.__module__ = "__main__"
        del sys.modules["little_rlhf.actor"]
        data = cloudpickle.dumps(cls)
    program = "import pickle, sys; sys.stdout.write(repr(pickle.load(sys.stdin.buffer)().rollout([1])))"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = Path(cloudpickle.__file__).parents[2]
    code = f"import sys; sys.path = [one for one in sys.path if 'main' not in one] + [{str(folder)!r}]; {program}"
    answer = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, env=bare, cwd=tmp_path)
    assert answer.stdout == b"[1, 7]", answer.stderr.decode()


def test_what_a_reader_calls_is_not_the_jobs(tmp_path: Path) -> None:
    def reads(call: Call) -> None:
        call.owner.score([1, 2])

    hooks = hook("trainer:Trainer.generate", record=reads), hook("trainer:Trainer.score")
    with at_work(tmp_path / "src", tmp_path / "run", *hooks):
        module("trainer").Trainer().generate([1])
    assert [span["name"] for span in spans(tmp_path / "run")] == ["Trainer.generate"]


def test_a_readers_time_is_the_recordings_own(tmp_path: Path) -> None:
    def slow(call: Call) -> None:
        sum(range(200_000))
        call.recorder.event("note", text="read")

    with at_work(tmp_path / "src", tmp_path / "run", hook("trainer:Trainer.generate", record=slow)) as machinery:
        trainer = module("trainer").Trainer()
        journal = machinery.journal()
        assert journal is not None
        before = journal.recorder.self_ns if journal.recorder else 0
        trainer.generate([1])
        assert journal.recorder is not None and journal.recorder.self_ns - before > 500_000


def test_a_full_disk_ends_the_recording_and_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder can be made here")
    with at_work(tmp_path / "src", tmp_path / "run", hook("trainer:Trainer.generate", record=Noted())):
        assert module("trainer").Trainer().generate([1]) == [[1, 1]]


def test_versions_are_compared_as_numbers() -> None:
    one = support.adapter(
        Hook("m:old", until="1.2"), Hook("m:new", since="1.2"), Hook("m:ever"), versions=("1.9", "1.16")
    )
    assert [one.tested(version) for version in ("1.8.9", "1.9.0", "1.15.3", "1.16", "2.0", "")] == [
        False, True, True, False, False, False,
    ]  # fmt: skip
    assert one.tested("1.15.0rc1") and one.tested("1.15.1.post2")
    names = [[hook.path[0] for hook in one.hooks_of(version)] for version in ("1.1", "1.2.0", "")]
    assert names == [["old", "ever"], ["new", "ever"], ["old", "new", "ever"]]


@pytest.mark.parametrize("adapter", [one.adapter for one in frameworks().values()], ids=lambda one: one.framework)
def test_a_table_is_well_formed(adapter: Adapter) -> None:
    symbols = [one.symbol for one in adapter.hooks]
    assert len(set(symbols)) == len(symbols) and adapter.versions[0] and adapter.versions[1]
    assert all(one.symbol.count(":") == 1 and 1 <= len(one.path) <= 2 for one in adapter.hooks)
    assert any(one.record for one in adapter.hooks) and any(not one.when for one in adapter.hooks)
    json.dumps(dict(adapter.missing)), pickle.dumps(adapter.roles)
