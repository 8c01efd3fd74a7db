"""Starts or joins a Ray cluster, places every actor in the interpreter of its environment, and leaves no process
behind.

On a cluster that we started, everything below this process is ours. The process is made the reaper of orphaned
grandchildren, so that engine processes whose actor died are still found, and teardown ends them by pid. On a cluster
that we joined, only our own actors are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cluster import ray_token
from harness.cluster.fork_servers import ForkServers, Preload
from harness.cluster.ray_output import quiet_in_vain, warnings_aside, warnings_dropped
from harness.cluster.ray_start import FIND_GCS, RAY_PORT, job, lean, on_loopback
from harness.errors import HarnessError, Terminated
from scenarios.engines.engine_processes import alive, descendants
from scenarios.ports import free_port, refused
from scenarios.remote import Host, Remote
from scenarios.settings import Placement
from scenarios.shared_memory import Segments

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TERM_GRACE_S = 3.0  # chosen: seconds between SIGTERM and SIGKILL
SWEEPS = 5  # rounds of ending what a command left: a process may fork while others are ended
# On a cluster that we start, the actors share the cores, and Ray only counts them. On another cluster each actor asks
# for one core.
OWN_CLUSTER_CPUS, OWN_ACTOR_CPUS, JOINED_ACTOR_CPUS = 16, 0.125, 1.0

# A raylet waits 15 s for its agents to report which ports they found free, and then dies. On a busy machine this
# happens in one of some tens of starts.
STARTS = 3
NAMESPACE = "rlhf-harness"  # of the actors that are kept up
# Of a path to a socket Linux takes 107 bytes (unix(7)); vLLM's is its directory and a UUID.
LONGEST_SCRATCH = 60
SHARE = 0.001  # amount of the resource that a placement names: it only says where
ROUNDS = 1e-6  # tolerance in cores: shares are added in floating point
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
PLACEMENT_S = 180.0  # seconds; the group is made in one second, or within minutes beside other jobs


class LaunchFailed(HarnessError):
    """The cluster, or an actor on it, could not be started."""


@dataclass(frozen=True)
class Seat:
    """Where one actor runs: interpreter, environment variables, share of a GPU, and bundle of the placement group."""

    python: str
    env: dict[str, str]
    gpus: float = 0.0
    bundle: int | None = None


class Cluster:
    """A context manager around one Ray cluster.

    `address`: join that cluster instead of starting one. `ours`: we started the cluster to join (`harness up`).
    `preload`: what the actors of a cluster that is started here import before they are forked.
    `fork_sockets`: the fork servers of the cluster to join, by interpreter.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        ours: bool = False,
        preload: Sequence[Preload] = (),
        fork_sockets: Mapping[str, str] | None = None,
    ) -> None:
        self._address = address
        self._forks = ForkServers(() if address else preload, fork_sockets)
        self._ours = ours or address is None
        self._before: set[int] = set()
        self._segments = Segments()
        self._actors: list[Any] = []
        self._placement: Any = None
        self._logs = ""  # folder of Ray's logs, for a cluster that we started
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Cluster:
        _become_reaper()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without bytecode every process compiles its imports again: transformers took 11 s of CPU time instead of 4.5
        # s.
        os.environ["PYTHONDONTWRITEBYTECODE"] = ""
        # Ray gives its workers niceness 15. Beside any other load the learners would crawl, and timings would mean
        # nothing.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # `uv run` would replace the interpreter that each actor asks for
        # (ray/_private/runtime_env/uv_runtime_env_hook.py).
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        if self._address:
            _reachable(self._address)
            ray_token.authenticate()
        self._forks.start()
        self._before = set(descendants(os.getpid()))
        on_term = signal.getsignal(signal.SIGTERM)
        starts = 1 if self._address else STARTS
        for start in range(1, starts + 1):
            try:
                self._begin()
                break
            except (ModuleNotFoundError, LaunchFailed):
                self._forks.end()
                raise
            except Exception as error:  # Ray raises four unrelated types here, which mean the same to the user
                self._end_processes()
                if start < starts:
                    continue
                self._forks.end()
                what = f"joined at {self._address}" if self._address else "started"
                raise LaunchFailed(
                    f"the Ray cluster could not be {what}: {_first_line(error)}",
                    fix=FIND_GCS,
                ) from error
            except BaseException as error:  # an interrupt: no `__exit__` follows an `__enter__` that raises
                self._forks.end()
                self._end_processes()
                if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # of Ray's handler, in ray.init
                    raise Terminated() from error
                raise
        warnings_aside()
        if self._ours:
            self._scratch = _scratch()
        if threading.current_thread() is threading.main_thread():
            # ray.init installs its own handler, which ends the process with a stack dump and leaves its children
            # behind.
            signal.signal(signal.SIGTERM, on_term)
        return self

    def _begin(self) -> None:
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": job()}
        if not self._ours:
            with quiet_in_vain():
                ray.init(address=self._address, **options)
            if ray_token.unwanted():
                raise LaunchFailed(
                    f"the Ray cluster at {self._address} has no token, and this process sends one: no actor starts",
                    fix="export RAY_AUTH_MODE=disabled",
                )
            return
        # "local": a new cluster even if `ray start` or RAY_ADDRESS offers one.
        settings: dict[str, Any] = {"num_cpus": OWN_CLUSTER_CPUS, "include_dashboard": False}
        with on_loopback(), lean():
            context: Any = ray.init(
                address=self._address or "local", namespace=NAMESPACE, **({} if self._address else settings), **options
            )  # fmt: skip
        self._logs = "" if self._address else context.address_info["session_dir"]

    def __exit__(self, *exc: object) -> None:
        import ray

        warnings_dropped()
        self._segments.look(self._started())
        with contextlib.suppress(Exception):  # teardown continues whatever Ray says: ending the pids below counts
            for handle in self._actors:
                ray.kill(handle)
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._forks.end()
        if not self._address:
            self._end_processes()
        self._segments.unlink_unused()
        if self._scratch is not None:
            self._scratch.cleanup()
        failed = exc[0] is not None and not isinstance(exc[1], KeyboardInterrupt)
        if self._logs and not failed:  # the logs of a failed run are kept
            _remove_session(Path(self._logs))
        if self._ours and not os.environ.get(COMPILED):
            with contextlib.suppress(OSError):  # torch makes it at its import; with code in it, it is found again
                os.rmdir(_compiled_code())

    @property
    def fork_sockets(self) -> dict[str, str]:
        return dict(self._forks.sockets)

    @property
    def actor_cpus(self) -> float:
        return OWN_ACTOR_CPUS if self._ours else JOINED_ACTOR_CPUS

    def gpus(self) -> float:
        import ray

        return float(ray.cluster_resources().get("GPU", 0.0))

    def reserve(self, bundles: list[dict[str, float]], places: Sequence[str], say: Callable[[str], None]) -> None:
        """Make one placement group for the run, with each bundle at its place: a label, a resource, or empty for any
        node.

        Actors refer to their bundle. `say` is told if the cluster is too small but may still grow. Raises LaunchFailed
        if the cluster cannot hold the run.
        """
        import ray
        from ray.util.placement_group import placement_group

        total = float(ray.cluster_resources().get("CPU", 0.0))
        cpus, gpus = (sum(bundle.get(what, 0.0) for bundle in bundles) for what in ("CPU", "GPU"))
        demand = f"{len(places)} processes (each engine, and each rank of each role) of {cpus:g} cores"
        demand += f" and {gpus:g} GPUs together" if gpus else " together"
        if cpus > total + ROUNDS and self._ours:
            raise LaunchFailed(
                f"a Ray cluster on this machine holds {int(total * len(places) / cpus)} processes, and this run has "
                f"{len(places)}: each engine is one, and each rank of each role of the learner",
                fix="lower ppo.world_size and engine.engines   # or --address HOST:PORT, of a Ray cluster",
            )
        if cpus > total + ROUNDS:
            say(f"waiting for nodes: the run asks for {demand}, and the cluster has {total:g} cores")
        labels = [Placement.label(place) for place in places]
        placed = [placed_at(bundle, place) for bundle, place in zip(bundles, places, strict=True)]
        selected = {"bundle_label_selector": labels} if any(labels) else {}
        self._placement = placement_group(placed, strategy="PACK", **selected)
        try:
            ray.get(self._placement.ready(), timeout=PLACEMENT_S)
        except ray.exceptions.GetTimeoutError as error:
            have = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            raise LaunchFailed(
                f"the cluster cannot hold {demand}: it has {total:g} cores, and free are {have}",
                fix=f"{ray_token.command('ray status')}   # add nodes, or lower ppo.world_size and engine.engines",
            ) from error

    def offering(self, place: str) -> list[str]:
        """The sorted hosts of live nodes that have a label or offer a resource. Raises LaunchFailed if there are
        none."""
        import ray

        live = [node for node in ray.nodes() if node["Alive"]]
        if Placement.label(place):
            what, option = f"has the label {place!r}", f"--labels {shlex.quote(place)}"
            offers = [{f"{key}={value}" for key, value in node["Labels"].items()} for node in live]
        else:
            what, option = f"offers the resource {place!r}", f"--resources '{{\"{place}\": 1}}'"
            offers = [{name for name, amount in node["Resources"].items() if amount} for node in live]
        suitable = (node for node, has in zip(live, offers, strict=True) if place in has)
        hosts = sorted({str(node["NodeManagerHostname"]) for node in suitable})
        if not hosts:
            offered = sorted(
                offer for offer in set().union(*offers) if not offer.startswith(("node:__", "ray.io/node-id="))
            )
            here = ", and --address HOST:PORT here: no node joins the cluster of this run" if self._ours else ""
            raise LaunchFailed(
                f"no node of the cluster {what} that placement asks for; there are {', '.join(offered) or 'none'}",
                fix=f"ray start --address HOST:PORT {option}   # on the node{here}",
            )
        return hosts

    def check_shared(self, folders: Sequence[Path]) -> None:
        """Raise LaunchFailed if a process was placed on a node that does not have these folders of ours.

        Every process writes its own recording into the run's directory, and reads the model from the harness's home.
        """
        import ray
        from ray.util.placement_group import placement_group_table
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = ray.get_runtime_context().get_node_id()
        remote_nodes = {*placement_group_table(self._placement)["bundles_to_node_id"].values()} - {here}
        hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        seat = driver_seat()
        folders = [*dict.fromkeys(folder if folder.is_dir() else folder.parent for folder in folders)]
        if not remote_nodes:
            return
        with contextlib.ExitStack() as marks:
            files = [str(marks.enter_context(_mark(folder))) for folder in folders]
            looks = {}
            for node in remote_nodes:
                place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
                runtime = {"py_executable": shlex.quote(seat.python), "env_vars": seat.env}
                task = ray.remote(_missing).options(num_cpus=0, scheduling_strategy=place, runtime_env=runtime)
                looks[hosts[node]] = task.remote(files)
            for host, look in looks.items():
                try:
                    missing = ray.get(look, timeout=PLACEMENT_S)
                except ray.exceptions.RayError as error:
                    raise LaunchFailed(
                        f"{host} cannot run the harness: {_first_line(error)}",
                        fix="install it at the same path on every node: harness doctor --address HOST:PORT",
                    ) from error
                if missing:
                    folder = Path(missing[0]).parent
                    raise LaunchFailed(
                        f"{folder} is not shared with {host}, where a part of this run was placed: what is recorded "
                        "there would be missing here",
                        fix="put --out and HARNESS_HOME on a file system that every node has at the same path",
                    )

    def rendezvous(self, seat: Seat) -> tuple[str, int]:
        """The address and a free port of the node of `seat`, where the ranks of a data-parallel group meet."""
        import ray

        task = ray.remote(_rendezvous).options(num_cpus=0, **self._strategy(seat))
        address: tuple[str, int] = ray.get(task.remote())
        return address

    def _strategy(self, seat: Seat) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self._placement is None or seat.bundle is None:
            return {}
        return {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._placement, placement_group_bundle_index=seat.bundle
            )
        }

    @staticmethod
    def named(name: str) -> Remote:
        """The actor of that name. Raises ValueError if it has ended."""
        import ray

        return Remote(ray.get_actor(name, namespace=NAMESPACE))

    def adopt(self, name: str, urgent: tuple[str, ...] = ()) -> Remote:
        """The actor of that name, which from now on ends with this process. Raises ValueError if it has ended."""
        handle = self.named(name).handle
        self._actors.append(handle)
        return Remote(handle, urgent)

    def actor(
        self, target: str, seat: Seat, *args: Any, urgent: tuple[str, ...] = (), name: str = "", **kwargs: Any
    ) -> Remote:
        """Start one actor of class `target` ("module:Class"). Returns at once; errors of its start come with the first
        call.

        An actor with a `name` stays up when this process ends, as long as the cluster does.
        """
        import ray

        outlives = bool(name and self._address)  # it outlives this process and its temporary folder
        scratch_env = {} if self._scratch is None or outlives else _temporary(self._scratch.name)
        options: dict[str, Any] = {
            "num_cpus": self.actor_cpus,
            "num_gpus": seat.gpus,
            "max_restarts": 0,
            "runtime_env": {"py_executable": self._forks.command(seat.python), "env_vars": scratch_env | seat.env},
        }
        options |= self._strategy(seat)
        if name:
            options |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        decorate: Any = ray.remote
        remote = decorate(concurrency_groups={"urgent": 1})(Host) if urgent else decorate(Host)
        handle = remote.options(**options).remote(target, *args, **kwargs)
        if not name:
            self._actors.append(handle)
        return Remote(handle, urgent)

    def _end_processes(self) -> None:
        end(self._started())

    def _started(self) -> list[int]:
        """The processes below this one that were not there before the cluster."""
        return [pid for pid in descendants(os.getpid()) if pid != os.getpid() and pid not in self._before]


def placed_at(bundle: dict[str, float], place: str) -> dict[str, float]:
    """The bundle with a share of the resource that a placement names, unless it asks for that resource itself, such as
    CPU.

    A label is no resource, so it adds nothing.
    """
    return bundle if not place or Placement.label(place) else {place: SHARE} | bundle


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """End every process that is started within the context when it exits.

    Processes that leave their session or outlive their parent become children of this process, the reaper of orphans.
    """
    _become_reaper()
    before = set(descendants(os.getpid()))
    try:
        yield
    finally:
        for _ in range(SWEEPS):
            survivors = [pid for pid in descendants(os.getpid()) if pid not in before]
            if not survivors:
                break
            end(survivors)


def end(pids: list[int], grace_s: float = TERM_GRACE_S) -> None:
    """End these processes and those below them by pid: SIGTERM, a short grace, SIGKILL; and reap those that are our
    children."""
    everyone = {pid for root in pids for pid in descendants(root) if pid != os.getpid()}
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)
        deadline = time.monotonic() + grace_s
        while any(alive(pid) for pid in everyone) and time.monotonic() < deadline:
            time.sleep(0.02)
    for pid in everyone:
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(pid, os.WNOHANG)


def _scratch() -> tempfile.TemporaryDirectory[str] | None:
    """A folder for the temporary files of a cluster's actors; None if socket paths in it would be too long.

    SGLang leaves a socket behind at each start, and vLLM a file.
    """
    made = tempfile.TemporaryDirectory(prefix="rlhf-", ignore_cleanup_errors=True)
    if len(made.name) <= LONGEST_SCRATCH:
        return made
    made.cleanup()
    return None


def _remove_session(session: Path) -> None:
    """Remove a session of Ray, the link to the latest one where that was it, and their folder where nothing else is in
    it."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.parent / "session_latest"
    with contextlib.suppress(OSError):
        if os.readlink(latest) == str(session):
            latest.unlink()
        session.parent.rmdir()


def _compiled_code() -> str:
    """The folder in which torch keeps compiled code, for all users' processes."""
    return f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"


def _temporary(folder: str) -> dict[str, str]:
    """Variables of a process with its temporary files in `folder`.

    torch's compiled code stays where it is found again (`torch._inductor.runtime.cache_dir_utils`).
    """
    return {"TMPDIR": folder, COMPILED: os.environ.get(COMPILED, _compiled_code())}


def driver_seat(gpus: float = 0.0, bundle: int | None = None) -> Seat:
    """The light environment of controller and learner: this interpreter."""
    root = str(Path(__file__).resolve().parents[2])
    return Seat(
        sys.executable,
        {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": ""},
        gpus,
        bundle,
    )


_RESOLVED_BY_RAY = ("auto", "local", "")


def _reachable(address: str) -> None:
    """Raise LaunchFailed for an address at which nothing listens: Ray itself would try for minutes.

    Names that Ray resolves (auto) are left to Ray.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon and address not in _RESOLVED_BY_RAY:
        raise LaunchFailed(f"the Ray cluster at {address} could not be joined: the address has no port",
                           fix=f"--address {address}:{RAY_PORT}   # the port of ray start")  # fmt: skip
    if colon and port.isdigit() and (why := refused(host, int(port), 5)):
        raise LaunchFailed(f"the Ray cluster at {address} could not be joined: {why}", fix=FIND_GCS)


@contextlib.contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """A file in a folder, for as long as another node looks for it."""
    handle, name = tempfile.mkstemp(prefix=".shared-", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        os.unlink(name)


def _missing(files: list[str]) -> list[str]:
    return [file for file in files if not os.path.exists(file)]


def _rendezvous() -> tuple[str, int]:
    import ray

    return str(ray.util.get_node_ip_address()), free_port()


def _become_reaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
