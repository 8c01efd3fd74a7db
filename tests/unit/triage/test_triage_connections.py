"""Sockets of processes, from tables that are read once for everybody who is looked at meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.triage.collect import connections, traffic

LISTENING = "0: 00000000:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 {inode} 1 0 100 0 0 10 0"
CONNECTED = "1: 0100007F:{port:04X} 0100007F:{peer:04X} 01 0:0 0:0 0 0 0 {inode} 1 0 20 4 30 10 -1"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(connections, "PROC", tmp_path)
    return tmp_path


def process(proc: Path, pid: int, inodes: list[int], rows: list[str], space: str = "net:[1]") -> None:
    for name in ("fd", "net", "ns"):
        (proc / str(pid) / name).mkdir(parents=True)
    for inode in inodes:
        os.symlink(f"socket:[{inode}]", proc / str(pid) / "fd" / str(inode))
    (proc / str(pid) / "net" / "tcp").write_text("\n".join(["sl", *rows, ""]))
    if space:
        os.symlink(space, proc / str(pid) / "ns" / "net")


SERVER = LISTENING.format(port=80, inode=7)
ENDS = [CONNECTED.format(port=80, peer=4000, inode=8), CONNECTED.format(port=4000, peer=80, inode=9)]


def test_one_table_serves_all_processes_of_a_namespace(proc: Path) -> None:
    now = [0.0]
    process(proc, 1, [7, 8], [SERVER, *ENDS])
    process(proc, 2, [9], [], space="net:[1]")  # its own file is not read while the table of the other is fresh
    sockets = connections.Sockets(lambda: now[0])
    assert sockets.of(1)[:2] == (("0.0.0.0:80", "127.0.0.1:80"), ())  # its client is not whom it asks
    assert sockets.of(2)[:2] == ((), ("127.0.0.1:80",))
    (proc / "2" / "net" / "tcp").write_text("sl\n" + CONNECTED.format(port=5000, peer=81, inode=9) + "\n")
    now[0] = traffic.KEPT_S + 0.01
    assert sockets.of(2)[:2] == ((), ("127.0.0.1:81",))


@pytest.mark.parametrize("space", ["net:[2]", ""])
def test_another_namespace_has_tables_of_its_own(proc: Path, space: str) -> None:
    process(proc, 1, [7], [SERVER])
    process(proc, 2, [7], [LISTENING.format(port=81, inode=7)], space=space)
    sockets = connections.Sockets(lambda: 0.0)
    assert [sockets.of(pid)[0] for pid in (1, 2, 1)] == [("0.0.0.0:80",), ("0.0.0.0:81",), ("0.0.0.0:80",)]


def test_data_that_is_not_acknowledged_is_told_with_both_ends(proc: Path) -> None:
    """Sent again three times. The controls: sent again once, a window that is closed, and nothing on its way."""
    row = "1: 0100007F:{port:04X} 0200007F:0050 01 {queue} {timer}:0000025E {sent:08X} 0 0 {port} 1 0 20 4 30 10 -1"
    said = [("60:0", "01", 3), ("60:0", "01", 1), ("60:0", "04", 5), ("0:0", "00", 0)]
    rows = [
        row.format(port=port, queue=queue, timer=timer, sent=sent) for port, (queue, timer, sent) in enumerate(said, 1)
    ]
    process(proc, 1, [1, 2, 3, 4], rows)
    assert connections.Sockets(lambda: 0.0).of(1).unanswered == ("127.0.0.1:1 127.0.0.2:80",)


def test_a_connection_that_is_asked_for_again_and_again_is_told(proc: Path) -> None:
    """Sent again twice. The controls: sent again once, and one that is established."""
    row = "1: 0100007F:{port:04X} 0200007F:{port:04X} {state} 1:0 01:0000025E {sent:08X} 0 0 {port} 1 0 20 4 30 10 -1"
    rows = [
        row.format(port=port, state=state, sent=sent)
        for port, state, sent in ((1, "02", 2), (2, "02", 1), (3, "01", 2))
    ]
    process(proc, 1, [1, 2, 3], rows)
    assert connections.Sockets(lambda: 0.0).of(1).retried == ("127.0.0.2:1",)


def test_what_cannot_be_read_is_empty(proc: Path) -> None:
    process(proc, 1, [7], ["cut"])
    sockets = connections.Sockets(lambda: 0.0)
    assert sockets.of(1) == sockets.of(99) == connections.Connections()


def test_two_looks_never_share_an_answer() -> None:
    assert traffic.kept_s(0.0) == traffic.KEPT_S and traffic.kept_s(10.0) == traffic.KEPT_MOST_S < 1.5 / 2
