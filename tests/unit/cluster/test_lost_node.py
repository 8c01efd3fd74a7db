"""A run that is cut short because a node of its cluster was lost names the host; any other says what it said."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import waiting
from harness.cluster.waiting import RunCut, Waiting
from scenarios.ports import free_port
from scenarios.remote import ActorFailed


class Failed:
    """A call whose actor failed with its peer's end."""

    def result(self, timeout: float | None = None) -> Any:
        import ray.exceptions

        raise ray.exceptions.RayTaskError("sync", "", ActorFailed("SyncFailed", "connection closed by peer"))

    def done(self) -> bool:
        return True


def node(name: str, port: int, *, alive: bool = True) -> dict[str, Any]:
    where = {"NodeManagerHostname": name, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
    return {"NodeID": name, "Alive": alive, **where}


def cut(monkeypatch: pytest.MonkeyPatch, folder: Path, *looks: list[dict[str, Any]]) -> str:
    """What a run says that is cut short; `looks`: the nodes at its start and at its end."""
    told = iter(looks)
    monkeypatch.setattr(waiting, "_nodes", lambda: next(told))
    side: Any = SimpleNamespace(name="baseline", backend="hf", run_dir=folder)
    with pytest.raises(RunCut) as raised:
        Waiting(None, lambda *said: None).result(Failed(), side, "step 0")
    return raised.value.message


def test_the_host_that_was_lost_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        here, away = node("hosta", raylet.getsockname()[1]), node("hostb", free_port())
        message = cut(monkeypatch, tmp_path, [here, away], [here, away])
        assert message.startswith("baseline (hf), step 0: the Ray node on hostb (127.0.0.1) is lost"), message
        assert "cannot be reached (Connection refused)" in message and "connection closed by peer" in message
        both = node("hostb", raylet.getsockname()[1])
        dead = node("hostb", raylet.getsockname()[1], alive=False)
        assert "hostb (127.0.0.1)" in cut(monkeypatch, tmp_path, [here, both], [here, dead])


def test_a_run_whose_nodes_are_all_there_says_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        here, other, old = node("hosta", port), node("hostb", port), node("hostc", free_port(), alive=False)
        for nodes in ([here, other], [here, other, old], [here]):
            message = cut(monkeypatch, tmp_path, nodes, nodes)
            assert "is lost" not in message and "connection closed by peer" in message
