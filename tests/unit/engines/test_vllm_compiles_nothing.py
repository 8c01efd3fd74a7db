"""vLLM in eager mode on a CPU compiles nothing, although the compiler's switch was read before the engine is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.config as compiler

from scenarios.engines.vllm import engine

pytestmark = pytest.mark.slow  # the first use of torch.compile


def test_a_compiled_function_runs_as_it_is_once_the_engine_switched_the_compiler_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "0")
    monkeypatch.setattr(compiler, "disable", False)
    compiled: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    doubled = torch.compile(lambda row: row * 2, backend=backend)
    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0] and len(compiled) == 1
    engine._compile_nothing()
    halved = torch.compile(lambda row: row / 2, backend=backend)
    assert halved(torch.ones(2)).tolist() == [0.5, 0.5] and len(compiled) == 1
