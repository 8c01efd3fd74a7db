"""What a look at a job costs as the job grows: four times the processes take four times as long, not sixteen times.

The bar is the middle of the two, eight: what is larger than the processor's cache has been seen to take six times.
The processes are files of a made-up /proc, with beats, sockets and one table of connections that all of them share.
Asserted are ratios of processor time within one run.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.triage.collect import connections, proc, traffic
from harness.triage.watch.observe import Kernel, Observer, Stat
from harness.triage.watch.progress import Progress

pytestmark = pytest.mark.benchmark
FEW, MANY, BAR = 1_000, 4_000, 8.0
ROUNDS, AT_MOST = 3, 15
STALL_S = 10.0
NOBODYS = 10_000_000  # pids from here on, above the kernel's largest: none of them is this process's own


def spent(work: Callable[[int], None]) -> dict[int, float]:
    """Processor seconds of both sizes, the best of some rounds, interleaved: the machine may be busy.

    What else the machine does only adds to a time, so the best of more rounds is nearer to the truth: there are more
    of them while the ratio is above the bar. What grows with the square stays at sixteen however many there are.
    """
    best = {FEW: float("inf"), MANY: float("inf")}
    for turn in range(AT_MOST):
        if turn >= ROUNDS and best[MANY] <= BAR * best[FEW]:
            break
        for count in best:
            began = time.process_time()
            work(count)
            best[count] = min(best[count], time.process_time() - began)
    return best


def shown(what: str, best: dict[int, float], capsys: pytest.CaptureFixture[str]) -> float:
    ratio = best[MANY] / best[FEW]
    with capsys.disabled():
        print(
            f"\n{what}: {FEW:,} processes {best[FEW] * 1000:.0f} ms, {MANY:,} {best[MANY] * 1000:.0f} ms, {ratio:.1f}x"
        )
    return ratio


def test_a_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Children of one launcher that all wait for Ray: nobody is suspected alone, so everybody is asked for together."""
    looks = {}
    for count in (FEW, MANY):
        folder = tmp_path / str(count)
        (folder / "beats").mkdir(parents=True)
        pids = range(NOBODYS, NOBODYS + count)
        for pid in pids:
            beat = {"host": socket.gethostname(), "pid": pid, "start_ticks": pid, "count": 5, "progress_ns": 1,
                    "wait": "ray", "rank": pid - NOBODYS}  # fmt: skip
            (folder / "beats" / f"{pid}.json").write_text(json.dumps(beat))
        there = {2: Stat(2, 1, "S", 0.0, 2), **{pid: Stat(pid, 2, "S", 0.0, pid) for pid in pids}}
        kernel = Kernel(lambda there=there: there, lambda pid: ("python",), main_cpu_s=lambda pid: 0.0)
        looks[count] = Observer(folder, (2,), kernel=kernel)

    def ticks(count: int) -> None:
        progress, found = Progress(STALL_S), None
        for now in range(0, 20, 4):
            found = progress.feed(replace(looks[count](), at_s=float(now)))
        assert found is not None and len(found.suspects) == count

    assert shown("five ticks", spent(ticks), capsys) <= BAR


def test_connections_and_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process listens and has one connection, all in one network namespace, whose tables list everybody's."""
    for count in (FEW, MANY):
        made_up(tmp_path / str(count), count)

    def look(count: int) -> None:
        monkeypatch.setattr(connections, "PROC", tmp_path / str(count))
        sockets = connections.Sockets(time.process_time)  # neighbours take wall time, and tables age by it
        for pid in range(1, count + 1):
            assert sockets.of(pid)[:2] == ((f"127.0.0.1:{pid}",), (f"127.0.0.1:{pid}",))

    assert shown("connections of all", spent(look), capsys) <= BAR

    def counted(count: int) -> None:
        """The kernel's answer is as long as the job is large; 10 µs a connection, as it was measured to take."""

        def all_of(family: int) -> list[tuple[bool, traffic.Connection]]:
            until = time.process_time() + count * 10e-6
            while time.process_time() < until:
                pass
            return [(False, traffic.Connection(pid, (pid, pid), 1, 0.0)) for pid in range(2 * count)]

        monkeypatch.setattr(connections, "PROC", tmp_path / str(count))
        monkeypatch.setattr(proc, "PROC", tmp_path / str(count))
        monkeypatch.setattr(traffic, "_all", all_of)
        monkeypatch.setattr(traffic, "_kept", traffic.NO_ANSWER)
        monkeypatch.setattr(time, "monotonic", time.process_time)
        assert all(proc.look(pid).net_bytes == 2 for pid in range(1, count))

    assert shown("a look at all", spent(counted), capsys) <= BAR


def made_up(place: Path, count: int) -> None:
    """A /proc of so many processes: their state, a listening socket, a connection, and the tables that all share."""
    shared = place / "net"
    shared.mkdir(parents=True)
    rows = ["  sl  local_address rem_address   st ..."]
    for pid in range(1, count + 1):
        here = f"0100007F:{pid:04X}"
        rows.append(f"{pid}: {here} 00000000:0000 0A 0:0 0:0 0 0 0 {2 * pid} 1 0 100 0 0 10 0")
        rows.append(f"{pid}: 0100007F:FFFF {here} 01 0:0 0:0 0 0 0 {2 * pid + 1} 1 0 20 4 30 10 -1")
    (shared / "tcp").write_text("\n".join(rows) + "\n")
    stat = " ".join(["S", "1", *["0"] * 17, "7", *["0"] * 31])
    for pid in range(1, count + 1):
        own = place / str(pid)
        (own / "fd").mkdir(parents=True)
        (own / "ns").mkdir()
        (own / "stat").write_text(f"{pid} (python) {stat}")
        os.symlink(shared, own / "net")
        os.symlink("net:[4026531840]", own / "ns" / "net")
        os.symlink(f"socket:[{2 * pid}]", own / "fd" / "3")
        os.symlink(f"socket:[{2 * pid + 1}]", own / "fd" / "4")
