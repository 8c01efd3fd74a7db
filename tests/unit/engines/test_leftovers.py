"""What an earlier run left in an engine's process is found; what every run does is not."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from scenarios.engines import coupling, leftovers
from scenarios.engines.hf import engine

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(2, 2)
        self.register_buffer("angles", torch.ones(2))


class Thing:
    def __init__(self) -> None:
        self.seed, self.path, self.group = 1, "/model/first", None

    def generate(self) -> None: ...


@pytest.fixture(autouse=True)
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_noted", {})
    monkeypatch.setattr(leftovers, "_random", [])


def test_a_second_look_at_what_is_the_same_finds_nothing() -> None:
    model, thing = Model(), Thing()

    def look() -> list[str]:
        return [
            *leftovers.of_process(), *leftovers.of_model(model), *leftovers.of_methods("it", thing),
            *leftovers.of_settings("it", thing, thing.path),
        ]  # fmt: skip

    assert look() == []
    with torch.no_grad():
        model.projection.weight.add_(1)  # a sync replaces weights
    thing.path, thing.group = "/model/second", object()  # type: ignore[assignment]
    assert look() == []


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m: setattr(m, "projection", torch.nn.Sequential(m.projection)), "module projection"),
        (lambda m: m.projection.register_forward_hook(lambda *given: None), "module projection"),
        (lambda m: setattr(m.projection, "forward", lambda rows: rows), "module projection"),
        (lambda m: m.angles.mul_(2), "buffer angles"),
        (lambda m: m.register_parameter("more", torch.nn.Parameter(torch.ones(1))), "parameter more"),
    ],
)
def test_a_change_of_the_model_is_found(change: Callable[[Any], Any], words: str) -> None:
    model = Model()
    assert leftovers.of_model(model) == []
    change(model)
    [line] = leftovers.of_model(model)
    assert line.startswith("the model's ") and words in line and line.endswith("changed")


def test_a_patched_function_is_found_and_named_wherever_it_was_put(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leftovers.of_process() == []
    original = coupling.choose
    monkeypatch.setattr(engine, "choose", functools.wraps(original)(lambda *given: original(*given)))
    assert leftovers.of_process() == ["code scenarios.engines.hf.engine.choose changed"]
    monkeypatch.undo()


def test_a_patched_method_of_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leftovers.of_process() == []
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, rows: rows)
    [line] = leftovers.of_process()
    assert "torch.nn.modules.linear.Linear.forward" in line


def test_a_wrapper_around_another_function_is_another_wrapper() -> None:
    def wrapped(function: Any) -> Any:
        return lambda: function()

    assert leftovers.codes(wrapped(os.getpid)) != leftovers.codes(wrapped(lambda: 1))
    assert leftovers.codes(wrapped(lambda: 1)) != leftovers.codes(wrapped(lambda: 2))


def test_variables_and_switches_are_found_and_generators_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leftovers.of_process() == []
    first = random.random(), torch.rand(1).item()
    assert leftovers.of_process() == []
    assert (random.random(), torch.rand(1).item()) == first
    monkeypatch.setenv("VLLM_LEFTOVER", "1")
    assert leftovers.of_process() == ["the variable VLLM_LEFTOVER changed"]
    monkeypatch.delenv("VLLM_LEFTOVER")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        [line] = leftovers.of_process()
        assert line.startswith("torch's ") and "precision of products" in line
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_and_methods_of_an_object_are_found() -> None:
    thing = Thing()
    assert leftovers.of_settings("it", thing, "/model/first") == leftovers.of_methods("it", thing) == []
    thing.seed = 2
    thing.generate = lambda: None  # type: ignore[method-assign]
    assert leftovers.of_settings("it", thing, "/model/first") == ["it's setting seed changed"]
    assert leftovers.of_methods("it", thing) == ["it's method generate changed"]
