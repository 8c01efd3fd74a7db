"""Ports for meetings that begin later: none that the kernel would lend to somebody else meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scenarios import ports


def test_a_port_lies_below_those_that_are_lent_and_is_free() -> None:
    first = int(ports.RANGE.read_text().split()[0])
    for port in {ports.free_port() for _ in range(20)}:
        assert port < first
        with socket.socket() as one:
            one.bind(("", port))


def test_one_that_somebody_listens_on_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one:
        one.bind(("", 0))
        one.listen()
        taken = one.getsockname()[1]
        monkeypatch.setattr(ports, "LOWEST", taken)
        (tmp_path / "range").write_text(f"{taken + 2} 60999\n")
        monkeypatch.setattr(ports, "RANGE", tmp_path / "range")
        assert taken not in {ports.free_port() for _ in range(20)}
        (tmp_path / "range").write_text(f"{taken + 1} 60999\n")  # no other is left: whichever the kernel gives
        assert ports.free_port() != taken


def test_without_the_kernels_range_its_default_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RANGE", Path("/nowhere"))
    assert ports.LOWEST <= ports.free_port() < 32_768
