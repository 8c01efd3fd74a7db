"""An engine that fails in a session: one sentence with its root cause, and no pointer to another message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios import session
from scenarios.engines import last_words
from scenarios.engines.engine_interface import EngineError
from scenarios.engines.make import EngineOptions
from scenarios.session import EngineSession
from scenarios.settings import Scenario

POINTER = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
CORES = "AssertionError: not enough cores for 2 ranks"


@pytest.mark.parametrize(
    ("reason", "log", "sentence"),
    [
        (POINTER, f"(Worker_TP1 pid=3) {CORES}\nRuntimeError: {POINTER}\n", f"vLLM 1 did not start: {CORES}"),
        ("Initialization failed. Please see the error messages above.", f"{CORES}\n", f"vLLM 1 did not start: {CORES}"),
        ("Rank 1 scheduler died during initialization (exit code: 1). If exit code is -9", f"{CORES}\n",
         f"vLLM 1 did not start: {CORES}"),
        ("no such model", f"{CORES}\n", f"vLLM 1 did not start: no such model. Its own last words: {CORES}"),
        (CORES, f"{CORES}\n", f"vLLM 1 did not start: {CORES}"),
        ("no such model", "", "vLLM 1 did not start: no such model"),
        (POINTER, f"RuntimeError: {POINTER}\n", "vLLM 1 did not start: its log does not say why ({log})"),
        ("", f"{CORES}\n", f"vLLM 1 did not start: {CORES}"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_start_is_told_by_its_root_cause(
    reason: str, log: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "worker.err"
    written.write_text("ValueError: of an engine before\n")

    def failing(*_: Any, **__: Any) -> Any:
        with written.open("a") as file:
            file.write(log)
        raise EngineError("vLLM 1 did not start", reason)

    monkeypatch.setattr(session, "make_engine", failing)
    monkeypatch.setattr(last_words, "own_output", lambda: [written])
    with pytest.raises(EngineError) as failed:
        EngineSession("vllm", "model", Scenario().to_json(), EngineOptions("cpu"))
    assert str(failed.value) == sentence.format(log=written)


def test_an_engine_that_dies_in_a_call_is_told_by_its_root_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM raises a pointer before the watch thread has seen the death."""
    written = tmp_path / "worker.err"
    written.write_text("ready\n")

    class Engine:
        def info(self) -> Any:
            return type("Info", (), {"pids": ()})

        def flush(self) -> None:
            with written.open("a") as file:
                file.write(f"(Worker_TP1 pid=3) {CORES}\n")
            raise RuntimeError("EngineCore encountered an issue. See stack trace (above) for the root cause.")

        def rescore(self, sequences: Any) -> Any:
            raise LookupError("of the engine's own")

    monkeypatch.setattr(session, "make_engine", lambda *_, **__: Engine())
    monkeypatch.setattr(last_words, "own_output", lambda: [written])
    live = EngineSession("vllm", "model", Scenario().to_json(), EngineOptions("cpu"))
    with pytest.raises(EngineError, match=f"^vllm failed in flush: {CORES}$"):
        live.flush()
    with pytest.raises(LookupError, match=r"^of the engine's own$"):
        live.rescore([])
