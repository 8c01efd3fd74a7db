"""A Ray cluster of two nodes on this machine that knows nothing of the harness, as one that was there before a job."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 300
# Workers inherit these from their node, not from the job: what jobs/openrlhf_ppo.sh says for a CPU, on every node.
NODE = {
    "FRAMEWORKS_CPU": "openrlhf", "DS_ACCELERATOR": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2",
    "VLLM_LOGGING_LEVEL": "WARNING", "RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false",
    "RAY_worker_niceness": "0", "RAY_worker_register_timeout_seconds": "900", "RAY_agent_register_timeout_ms": "900000",
    "RAY_AUTH_MODE": "token",
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """`environ`: with which a job joins it. `raylets`: process ids, the head's first; parents of their workers."""

    environ: dict[str, str]
    raylets: tuple[int, int]


@contextmanager
def two_nodes(python: str, *, gpus: tuple[int, int] = (3, 2), second: Sequence[str] = (), plant: str = "") -> Iterator[
    Cluster
]:  # fmt: skip
    """Two raylets with so many logical GPUs each. `second`: words before the second one's command."""
    ray = str(Path(python).with_name("ray"))
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder, _free() as port:
        elsewhere = Path(folder) / "elsewhere"
        elsewhere.mkdir()
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("RLHF_", "RAY_"))}
        extensions = str(Path(python).parents[1] / "torch_extensions")
        environ = {**bare, **NODE, "TORCH_EXTENSIONS_DIR": extensions, "FRAMEWORKS_PLANT": plant}
        options = ["--num-cpus", "8", "--node-ip-address", "127.0.0.1", "--disable-usage-stats", "--block"]
        head = ["--head", "--port", str(port), "--temp-dir", f"{folder}/ray", "--include-dashboard", "false"]
        starts = [[ray, "start", *head], [*second, ray, "start", "--address", f"127.0.0.1:{port}"]]
        nodes: list[subprocess.Popen[bytes]] = []
        try:
            for number, (words, own) in enumerate(zip(starts, gpus, strict=True)):
                log = Path(folder) / f"node-{number}.log"
                with open(log, "wb") as stream:
                    words += ["--num-gpus", str(own), *options]
                    nodes.append(subprocess.Popen(words, env=environ, cwd=elsewhere, stdout=stream, stderr=stream))
                _wait(log, nodes[-1])
            joining = {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "token"}
            yield Cluster(joining, (_raylet(nodes[0].pid), _raylet(nodes[1].pid)))
        finally:
            for node in reversed(nodes):
                node.terminate()  # with --block it ends its processes
                node.wait(60)


@contextmanager
def _free() -> Iterator[int]:
    with socket.socket() as one:
        one.bind(("", 0))
        port = int(one.getsockname()[1])
    yield port


def _wait(log: Path, node: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while b"Ray runtime started" not in log.read_bytes():
        assert node.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.5)


def _raylet(pid: int) -> int:
    """The raylet among the children of `ray start`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    [found] = [int(one) for one in children if b"/raylet/raylet" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return found
