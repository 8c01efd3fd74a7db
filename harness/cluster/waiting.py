"""Waits for actors. A hang, a death or a full disk becomes one sentence for the user, within seconds."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cluster.side import Side
from harness.errors import BadInput, HarnessError, last_line
from harness.other_paths import disk_of
from harness.triage.collect import bounded
from harness.triage.watch import phase
from harness.triage.watch.guard import Guard
from probes import format as recording
from probes import redaction
from probes.files import write_whole
from reports.model import Verdict
from scenarios.engines import last_words
from scenarios.engines.engine_processes import alive, descendants
from scenarios.remote import SIGNATURE, TRACEBACK, ActorFailed, Future

# No single call of the built-in scenario takes a tenth of this. A call that does take so long is hung, and the run
# INCONCLUSIVE.
CALL_LIMIT_S = 600.0
# Texts in errors of a full disk, whoever reports it: Python, Rust (safetensors), the probes.
FULL_DISK = ("No space left on device", "os error 28", "Disk quota exceeded", "the disk is full", "the disk quota is")
NODE_GONE = ("raylet died", "node has died", "node is dead", "node was terminated")  # Ray's words for a lost node
REACH_S = 3.0  # chosen: seconds for a connection to another node; a lost SYN is sent again after 1 s
NODES_S = 10.0  # chosen: seconds for the list of nodes, which takes some ms
LOOK_S = 1.0  # seconds between two questions to the watchdog


class RunCut(HarnessError):
    """A run ended before its last step: an engine or a role died, a call hung, or the disk was full.

    What was recorded stays readable.
    """

    exit_code = 3

    def __init__(self, message: str, fix: str | None = None, triage: Verdict | None = None) -> None:
        super().__init__(message, fix=fix or "harness doctor   # of memory, /dev/shm and disks, which end processes")
        self.triage = triage  # the watchdog's verdict if the run hung


class Waiting:
    """Waits for futures of one cluster's actors. `tell`: called with (side, phase, step) when a step enters a phase."""

    def __init__(self, guard: Guard | None, tell: Callable[[Side, str, int], None]) -> None:
        self._guard = guard
        self._tell = tell
        self._raylets = _raylets()
        self._nodes = {node["NodeID"]: node for node in _nodes() if node["Alive"]}

    def result(self, future: Future, side: Side, doing: str, step: int | None = None) -> Any:
        """The value of the future. Errors of actors become sentences for the user. `step`: report its phases
        meanwhile."""
        place = f"{side.name} ({side.backend}), {doing}"
        try:
            return self._await(future, side, place, step)
        except RunCut as cut:
            # A lost node explains the symptom, and the user has to act on the node.
            if lost := self._lost():
                symptom = cut.message.removeprefix(f"{place}: ")
                raise RunCut(f"{place}: {lost}; it was seen by: {symptom}", fix=cut.fix, triage=cut.triage) from cut
            raise

    def _lost(self) -> str:
        """The node of a cluster of several that died since the start or cannot be reached, in words; empty without one.

        The effects of its end on others come sooner than Ray's own report, which takes up to half a minute.
        """
        if len(self._nodes) < 2:
            return ""
        try:
            now = {node["NodeID"]: node for node in bounded.start("nodes", _nodes).result(NODES_S)}
        except TimeoutError:
            return "the head node of the Ray cluster does not answer: its host died, or the network to it is cut"
        looks = {key: bounded.start("node", _unreachable, node) for key, node in self._nodes.items()}
        for key, node in self._nodes.items():
            why = "Ray calls it dead" if not now.get(key, {}).get("Alive") else looks[key].result()
            if why:
                where = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                return f"the Ray node on {where} is lost: {why}; its host died, or the network to it is cut"
        return ""

    def _await(self, future: Future, side: Side, place: str, step: int | None) -> Any:
        import ray.exceptions as failures

        deadline, reported_phase = time.monotonic() + CALL_LIMIT_S, ""
        try:
            while True:
                try:
                    return future.result(timeout=LOOK_S)
                except failures.GetTimeoutError as error:
                    self._look(place, side, deadline, error)
                    if step is not None and self._guard is not None:
                        now = phase.current(self._guard.directory, step)
                        if now not in ("", reported_phase):
                            reported_phase = now
                            self._tell(side, reported_phase, step)
        except failures.RuntimeEnvSetupError as error:
            raise RunCut(
                f"{place}: the interpreter could not be started: {last_line(error)}", fix="harness env check"
            ) from error
        except failures.RayTaskError as error:
            if isinstance(error.cause, ActorFailed):
                raise self._failure(error.cause, place, side) from error
            raise _traced(f"{place}: {last_line(error)}", str(error), side) from error
        except failures.OutOfDiskError as error:
            raise _full(place, f"the disk is full: {last_line(error)}", side) from error
        except (failures.RayActorError, failures.NodeDiedError, failures.LocalRayletDiedError) as error:
            raise RunCut(f"{place}: {self._death(side, error)}") from error
        except failures.RayError as error:
            raise RunCut(f"{place}: Ray: {last_line(error)}") from error

    def _failure(self, cause: ActorFailed, place: str, side: Side) -> HarnessError:
        """The error of an actor for the user: bad input if the user can fix it, else a run that was cut short."""
        if cause.kind in ("ParameterRefused", "PromptError", "ModelError", "CheckpointError"):
            return BadInput(cause.message, fix=cause.fix)
        if cause.kind == "RecordingError":
            return RunCut(f"{place}: {cause.message}", fix=free_space(side.run_dir))
        if any(words in cause.message for words in FULL_DISK):
            return _full(place, f"the disk is full: {last_line(Exception(cause.message))}", side)
        if "inline_container.cc" in cause.message:  # torch.save drops the system's error text
            return _full(place, "a checkpoint could not be written, most likely because the disk is full", side)
        if cause.kind in ("ActorDiedError", "RayActorError", "ActorUnavailableError"):
            return RunCut(f"{place}: {self._death(side, cause)}")
        message = f"{place}: {cause.kind}: {last_line(Exception(cause.message))}"
        return _traced(message, cause.trace, side, cause.fix)

    def _look(self, place: str, side: Side, deadline: float, error: Exception) -> None:
        """Raise RunCut if the guard found a hang, or if the call took longer than any sound one."""
        stall = self._guard.stall if self._guard is not None else None
        if stall is not None:
            raise RunCut(
                f"{place}: hung: {stall.verdict.reason}", fix=f"harness triage {stall.evidence}", triage=stall.verdict
            ) from error
        if time.monotonic() > deadline:
            raise RunCut(
                f"{place}: no answer in {CALL_LIMIT_S:.0f} s, the run is hung; its recording is in {side.run_dir}",
                fix=f"harness triage {shlex.quote(str(side.run_dir))}",
            ) from error

    def _death(self, side: Side, error: BaseException) -> str:
        """Which actor died, and why. What its session wrote before it ended says more than Ray does."""
        pid, who = re.search(r"^\s*pid: (\d+)", str(error), re.MULTILINE), "a process of the run"
        try:
            run = recording.Run(side.run_dir, strict=False)
            for event in run.events(kind="engine_died"):
                return f"{event['message']}; what was recorded until then is in {side.run_dir}"
            for event in run.events(kind="open"):
                if pid and event.get("pid") == int(pid[1]):
                    who = f"the {event.get('role')} process of rank {event.get('rank')} (pid {pid[1]})"
        except (recording.FormatError, OSError):
            pass
        actor_message = _last_words(error)
        is_node_gone = any(not alive(pid) for pid in self._raylets) or any(words in str(error) for words in NODE_GONE)
        if is_node_gone and not actor_message:  # an actor that reported its own end did not end with the node
            logs = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "session_latest" / "logs"
            return (
                "the Ray node of this run ended (its raylet process is gone), and its actors with it; its logs are in "
                f"{logs}, what was recorded until then is in {side.run_dir}"
            )
        # Ray continues with advice about its own options.
        reason = actor_message or last_line(error).partition(" Some common causes")[0].rstrip(".")
        return f"{who} died: {reason}; what was recorded until then is in {side.run_dir}"


def _nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster that this process has joined, including dead ones; none without a cluster."""
    import ray

    return list(ray.nodes()) if ray.is_initialized() else []


def _unreachable(node: dict[str, Any]) -> str:
    """Why a node's raylet cannot be reached; empty if it accepts a connection."""
    address = str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])
    try:
        socket.create_connection(address, timeout=REACH_S).close()
    except OSError as error:
        return f"its raylet cannot be reached ({error.strerror or error})"
    return ""


def _raylets() -> list[int]:
    """The raylets below this process: one on a cluster that we started, none on one that we joined."""
    pids = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it ended while we looked
            if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
                pids.append(pid)
    return pids


def _last_words(error: BaseException) -> str:
    """What the dead actor's processes wrote about their end; empty if its log is on another host or says nothing."""
    from ray._private.worker import global_worker

    actor = getattr(error, "actor_id", None) or next(iter(re.findall(r"actor_id: ([0-9a-f]+)", str(error))), "")
    if not actor or global_worker.node is None:
        return ""
    for log in Path(global_worker.node.get_logs_dir_path()).glob("worker-*.err"):
        if f"{SIGNATURE} {actor}" in log.read_text("utf-8", "replace"):
            return last_words.root_cause({log.with_suffix(".out"): 0, log: 0})
    return ""


def _traced(message: str, trace: str, side: Side, fix: str = "") -> RunCut:
    """The error that an actor raised. Its traceback is kept beside the recording."""
    path = side.run_dir / TRACEBACK
    try:
        write_whole(path, redaction.text(trace, 0).encode())
    except OSError:  # the sentence itself must not be lost
        return RunCut(message, fix=fix)
    fix = fix or f"tail {shlex.quote(str(path))}   # and harness doctor"
    return RunCut(f"{message}; its traceback is in {path}", fix=fix)


def _full(place: str, what: str, side: Side) -> RunCut:
    return RunCut(f"{place}: {what}; what was recorded until then is in {side.run_dir}", fix=free_space(side.run_dir))


def free_space(run: Path) -> str:
    """The fix for a recording that could not be written."""
    return f"{disk_of(run)}   # free space, or run again with another --out"
