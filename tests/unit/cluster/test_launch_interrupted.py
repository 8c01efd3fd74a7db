"""Ctrl-C while a Ray cluster starts: `__exit__` does not run then, and what was started must not stay."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from harness.cluster import launch
from harness.cluster.launch import Cluster
from harness.errors import Terminated
from scenarios.engines.engine_processes import alive


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()


def test_an_interrupt_while_the_cluster_starts_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    def interrupted(self: Cluster) -> NoReturn:
        started.append(subprocess.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt), Cluster():
        pass
    assert len(started) == 1 and not alive(started[0].pid)


@pytest.mark.parametrize(("code", "error"), [(15, Terminated), (3, SystemExit)])
def test_an_end_by_rays_own_handler_is_an_end_by_sigterm(
    code: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray exits with the number of the signal, which is no exit code of a command."""

    def interrupted(self: Cluster) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(Cluster, "_begin", interrupted)
    with pytest.raises(error), Cluster():
        pass


@pytest.mark.parametrize(("error", "kept"), [(None, False), (KeyboardInterrupt, False), (ValueError, True)])
def test_ray_leaves_its_session_only_of_a_run_that_failed(
    error: type[BaseException] | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that the user ended, nobody reads the logs: each takes megabytes of TMPDIR."""
    session, latest, code = tmp_path / "ray" / "session", tmp_path / "ray" / "session_latest", tmp_path / "code"

    def begun(self: Cluster) -> None:
        session.mkdir(parents=True)
        latest.symlink_to(session)
        code.mkdir()  # torch makes it at its import
        self._logs = str(session)

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(launch, "_compiled_code", lambda: str(code))

    monkeypatch.setattr(Cluster, "_begin", begun)
    with contextlib.suppress(KeyboardInterrupt, ValueError), Cluster():
        if error is not None:
            raise error
    assert session.exists() is kept
    assert latest.parent.exists() is kept and not code.exists()


def test_what_others_have_in_the_folder_of_sessions_stays(tmp_path: Path) -> None:
    mine, theirs, latest = (tmp_path / name for name in ("mine", "theirs", "session_latest"))
    mine.mkdir()
    theirs.mkdir()
    latest.symlink_to(theirs)
    launch._remove_session(mine)
    assert not mine.exists() and theirs.exists() and latest.is_symlink()


def test_compiled_code_stays_where_it_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    (code / "kernel").mkdir(parents=True)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(launch, "_compiled_code", lambda: str(code))
    monkeypatch.setattr(Cluster, "_begin", lambda self: None)
    with Cluster():
        pass
    assert (code / "kernel").exists()
