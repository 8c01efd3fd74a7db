"""One process while its evidence comes in. Several threads add to it, and it can be frozen at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from harness.triage.collect import ray, roles
from harness.triage.collect.beats import Pulse
from harness.triage.collect.connections import Connections
from harness.triage.collect.journals import Recording, same_process
from harness.triage.collect.proc import Facts
from harness.triage.collect.scope import Cast
from harness.triage.evidence import EventLoop, LostThread, PipeReader, Process, Sample, SharedLock, Thread


class Draft:
    """What is known of a process so far. Lists only grow, and items and fields are replaced whole, so no lock is
    needed to read them."""

    def __init__(self, host: str, pid: int, pulse: Pulse | None) -> None:
        self.host, self.pid = host, pid
        self.pulse, self.recording = pulse, None
        self.facts = Facts(pid)
        self.samples: list[Sample] = []
        self.native: tuple[Thread, ...] = ()
        self.connections = Connections()
        self.writer = self.reader = self.feeder = 0
        self.readers: tuple[PipeReader, ...] = ()
        self.writers: tuple[int, ...] = ()
        self.fed = self.own_pipe = False
        self.wakers: tuple[int, ...] | None = None
        self.loops: tuple[EventLoop, ...] = ()
        self.sought: tuple[str, ...] = ()
        self.shared: tuple[str, ...] = ()
        self.touched: tuple[str, ...] = ()
        self.shared_lock: SharedLock | None = None
        self.forked_at = ""
        self.logged_threads: tuple[LostThread, ...] = ()
        self.dump = self.recorder_note = ""
        self.dump_taken_ns: int | None = None
        self.notes: list[str] = []
        self.doing = "its /proc files"  # the source being asked, for a note if time runs out; empty if all answered

    def learn(self, facts: Facts) -> None:
        """Store what /proc says, and drop a beat that an earlier process of this pid left."""
        self.facts = facts
        if not facts.ppid and not facts.argv:
            return
        if self.pulse and self.pulse.start_ticks not in (0, facts.start_ticks):
            self.pulse = None

    recording: Recording | None

    def remember(self, recording: Recording) -> None:
        """Store its journal, unless an earlier process of this pid wrote it."""
        facts, now_ns = self.facts, time.monotonic_ns()
        if same_process(recording.start_ticks, recording.opened_ns, facts.start_ticks, facts.age_s, now_ns):
            self.recording = recording

    @property
    def socket(self) -> str:
        return self.pulse.socket if self.pulse else ""

    @property
    def beat_tid(self) -> int:
        """Thread id of its heartbeat; 0 if it has none or none is known."""
        return self.pulse.beat.tid if self.pulse else 0

    @property
    def recorded_rank(self) -> int | None:
        """The global rank that the process itself reported; None unless it belongs to a world of several ranks."""
        if self.recording and self.recording.rank is not None:
            return self.recording.rank
        return self.pulse.rank if self.pulse and (self.pulse.world_size or 0) > 1 else None

    @property
    def uses_cuda(self) -> bool:
        """Whether it has a GPU driver open; False if that cannot be seen."""
        try:
            folder = f"/proc/{self.pid}/fd"
            return any(os.readlink(f"{folder}/{name}").startswith("/dev/nvidia") for name in os.listdir(folder))
        except OSError:  # it ended, or it is another user's
            return False

    def freeze(self, cluster: ray.Cluster | None = None, drafts_by_pid: Mapping[int, Draft] | None = None) -> Process:
        """Return the process as evidence. `cluster` names its actor; `drafts_by_pid` tell an inherited rank from its
        own."""
        facts = self.facts
        cluster = cluster or ray.Cluster()
        # Only the parent tells whether a rank is the process's own or inherited.
        parent = (drafts_by_pid or {}).get(facts.ppid)
        rank, world = self._rank(parent)
        error, error_age_s = self._error()
        # /proc has no environment of an ended process. The journal's is not used for its rank, which may be inherited.
        environ = facts.environ or (dict(self.recording.environ) if self.recording else {})
        notes = [*facts.notes, *self.notes, "" if self.dump else self.recorder_note]
        if self.doing and drafts_by_pid is not None:
            notes.append(f"{self.doing} could not be had in time")
        return Process(
            host=self.host,
            pid=self.pid,
            ppid=facts.ppid,
            command=facts.command,
            title=facts.title,
            role=self._role(cluster, parent),
            engine=roles.engine_of(facts),
            rank=rank,
            world_size=world,
            age_s=facts.age_s,
            exit_code=facts.exit_code,
            error=error or cluster.deaths.get((self.host, self.pid), ""),
            error_age_s=error_age_s,
            samples=tuple(self.samples),
            native=self.native,
            beat=self.pulse.beat if self.pulse else None,
            journal=self.recording.journal if self.recording else None,
            dump=self.dump,
            notes=tuple(dict.fromkeys(note for note in notes if note)),
            environ=environ,
            dump_taken_ns=self.dump_taken_ns,
            listening=self.connections.served,
            peers=self.connections.peers,
            unanswered=self.connections.unanswered,
            asked=self.connections.retried,
            writer=self.writer,
            writers=self.writers,
            reader=self.reader,
            readers=self.readers,
            forked=facts.forked,
            forked_at=self.forked_at,
            fed=self.fed,
            own_pipe=self.own_pipe,
            wakers=self.wakers,
            loops=self.loops,
            sought=self.sought,
            feeder=self.feeder,
            shared=self.shared,
            touched=self.touched,
            shared_lock=self.shared_lock,
            logged_threads=self.logged_threads,
        )

    def _rank(self, parent: Draft | None) -> tuple[int | None, int | None]:
        """(rank, world size): as it reported them, else from its environment, unless they are its parent's."""
        if self.recorded_rank is None:
            return roles.own_rank(self.facts, parent.facts if parent else None)
        if parent is not None and parent.recorded_rank == self.recorded_rank:
            return None, None  # a forked child, such as a loader worker, shares its parent's recording and is no rank
        world = self.recording.world_size if self.recording else None
        return self.recorded_rank, world or (self.pulse.world_size if self.pulse else None)

    def _error(self) -> tuple[str, float | None]:
        """The error in its heartbeat, and its age in seconds."""
        pulse = self.pulse
        if pulse is None or not pulse.error:
            return "", None
        # A process that has not ended failed at its last progress.
        return pulse.error, pulse.beat.age_s if pulse.beat.ended else pulse.beat.progress_age_s

    def _role(self, cluster: ray.Cluster, parent: Draft | None) -> str:
        beat_role = self.pulse.role if self.pulse else ""
        journal_roles = self.recording.roles if self.recording else ()
        telling = (role for role in journal_roles if role not in (beat_role, *roles.PLAIN))
        actor = cluster.classes.get((self.host, self.pid), "")
        role = roles.role_of(
            self.facts,
            journal=next(telling, ""),
            beat=beat_role,
            actor=actor,
            parent=parent.facts if parent is not None else None,
        )
        is_driver = bool({(self.host, self.pid), ("", self.pid)} & {*cluster.drivers})
        return "driver" if role == "process" and is_driver else role


# Of a pid that a user has named, and that left nothing of itself.
NOT_HERE = "no process {pid} is on this host: it has ended, or runs elsewhere"


def absent(local_cast: Cast, recordings: Mapping[tuple[str, int], Recording]) -> Iterator[Process]:
    """Yield processes that the scope or the watch directory names and that are not on this host: ended, or
    elsewhere."""
    local_keys = {(local_cast.host, pid) for pid in local_cast.pids}
    named = dict.fromkeys(
        [*((local_cast.host, pid) for pid in local_cast.ended), *local_cast.pulses, *local_cast.journals]
    )
    for host, pid in named:
        if (host, pid) in local_keys:
            continue
        draft = Draft(host, pid, local_cast.pulses.get((host, pid)))
        draft.doing, draft.recording = "", recordings.get((host, pid))
        if host == local_cast.host:
            draft.samples.append(Sample(0.0, "gone"))
            recorded = draft.pulse is not None or draft.recording is not None
            draft.notes.append(f"process {pid} has ended" if recorded else NOT_HERE.format(pid=pid))
            if draft.recording is not None and draft.recording.opened_ns:  # it began shortly before that
                age_s = max(0.0, (time.monotonic_ns() - draft.recording.opened_ns) / 1e9)
                ticks, ppid = draft.recording.start_ticks, draft.recording.ppid
                draft.facts = Facts(pid, ppid, age_s=age_s, start_ticks=ticks)
        else:
            draft.notes.append(f"it runs on {host}, where nobody looked: run `harness triage {pid}` there")
        yield draft.freeze()
