"""A Ray cluster of one node on each host of the laboratory (harness/planted/hangs/hosts.py)."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from waiting import until

from harness.planted.hangs.hosts import ADDRESSES, NAMES, Hosts

RAY_PORT = 6379
# By host: a custom resource, and the label role, that its node alone has.
RAY_RESOURCES = ("learner", "engine", "candidate", "spare")


@contextlib.contextmanager
def ray_cluster(hosts: Hosts, root: Path, *environs: Mapping[str, str]) -> Iterator[str]:
    """The address of a Ray cluster of one node on each host, the head on the first, with temporary files of their own.
    `environs`: variables of each host's `ray start`. At the end all hosts are ended."""
    address = f"{ADDRESSES[0]}:{RAY_PORT}"
    with tempfile.TemporaryDirectory(prefix="rh", dir="/tmp", ignore_cleanup_errors=True) as files:  # sockets: short
        try:
            for host, resource in enumerate(RAY_RESOURCES[: len(hosts.names)]):
                log = root / f"ray-{NAMES[host]}.log"
                head = ["--head", "--port", str(RAY_PORT), "--include-dashboard", "false"]
                offered = json.dumps({resource: 16})
                hosts.start(
                    host,
                    [str(Path(sys.executable).with_name("ray")), "start", *(["--address", address] if host else head),
                     "--node-ip-address", ADDRESSES[host], "--num-cpus", "16", "--resources", offered,
                     "--labels", f"role={resource}",
                     "--object-store-memory", "80000000", "--temp-dir", f"{files}/{NAMES[host]}",
                     "--disable-usage-stats", "--block"],
                    log, RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0",
                    **(environs[host] if environs else {}),
                )  # fmt: skip
                until(lambda: "Ray runtime started" in log.read_text(), 60, lambda: log.read_text()[-2000:])  # noqa: B023
            yield address
        finally:
            hosts.end()
