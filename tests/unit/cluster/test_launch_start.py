"""A cluster of our own is started again when Ray's own processes were not ready in time."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from harness.cluster import launch
from harness.cluster.launch import Cluster, LaunchFailed


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What ray.init was called with; it fails as often as `failures` says."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        calls.append(options)
        if len(calls) <= int(os.environ["FAILURES"]):
            raise ConnectionError("the raylet died\nand more")
        return SimpleNamespace(address_info={"session_dir": ""})

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(launch, "_become_reaper", lambda: None)
    monkeypatch.setattr(launch, "_reachable", lambda address: None)
    monkeypatch.setattr(launch.ray_token, "authenticate", lambda: None)
    monkeypatch.setattr(Cluster, "_end_processes", lambda self: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return calls


def test_a_start_that_fails_is_tried_again(begun: list[dict[str, Any]]) -> None:
    os.environ["FAILURES"] = str(launch.STARTS - 1)
    before = signal.getsignal(signal.SIGTERM)
    with Cluster():
        assert len(begun) == launch.STARTS and all(one["address"] == "local" for one in begun)
    assert threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is before


def test_after_some_it_is_said_in_a_sentence(begun: list[dict[str, Any]]) -> None:
    os.environ["FAILURES"] = "100"
    with pytest.raises(LaunchFailed, match=r"could not be started: the raylet died$"), Cluster():
        pass
    assert len(begun) == launch.STARTS


def test_somebody_elses_cluster_is_asked_once(begun: list[dict[str, Any]]) -> None:
    os.environ["FAILURES"] = "100"
    with pytest.raises(LaunchFailed, match=r"127\.0\.0\.1:6379"), Cluster("127.0.0.1:6379"):
        pass
    assert len(begun) == 1
