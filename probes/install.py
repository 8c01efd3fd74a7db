"""The recorder of one process: start it, tell it what happens, close it.

rec = probes.install.start(run_dir, role="actor", rank=0, world_size=1)
with rec.span("rollout", step=3):
    ...
rec.close()
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from probes import collectives, environment, memory, shapes, tokens
from probes.errors import RecordingError
from probes.format import EVENTS, FORMAT_VERSION, TOKENS, Flat, Ragged, identity_of
from probes.identity import started
from probes.journal import Journal
from probes.lines import without_none
from probes.spans import Span, error_text

MOST_BESIDE = 64  # most names in a close event; a job of thousands of processes would write thousands in each

__all__ = ["OFF", "Recorder", "RecordingError", "live", "start"]


class Recorder:
    """Everything that one process records; made by `start`. Threads may share it.

    Every method raises RecordingError when its record cannot be written (earlier records stay readable, and later
    ones may be tried), RuntimeError in a forked child, which must start its own recorder, and ValueError after
    `close`.
    """

    def __init__(self, run_dir: str | os.PathLike[str], role: str, rank: int, world_size: int) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.]+", role):
            raise ValueError(f"role {role!r} names files: use letters, digits, dots and underscores")
        self.run_dir, self.role, self.rank, self.world_size = Path(run_dir), role, rank, world_size
        # The id of the run and the checksum of its run.json; empty where the directory has none yet.
        self.run, self.manifest = identity_of(run_dir)
        self._journal = _create(self.run_dir, f"{role}-{rank}-{os.getpid()}")
        self._tokens: tokens.TokenLog | None = None
        self._lock = threading.Lock()
        self._self_ns = 0
        self.running: dict[int, Span] = {}  # open spans, which the heartbeat shows
        # Functions that describe the process's state at any moment, by name. The heartbeat's thread calls them, so
        # they must not block. `t_ns` (monotonic) among their fields says when the state was true.
        self.states: dict[str, Callable[[], Mapping[str, Any]]] = {}

    @property
    def self_ns(self) -> int:
        """Return the nanoseconds spent in this recorder so far, summed over all threads."""
        return self._self_ns

    @property
    def path(self) -> Path:
        """Return the events file of this process."""
        return self._journal.path

    @property
    def events(self) -> int:
        """Return how many events this process has recorded."""
        return self._journal.records

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Count the time of work that only serves the recording, such as digests of weights, in `self_ns`."""
        began = time.monotonic_ns()
        try:
            yield
        finally:
            spent = time.monotonic_ns() - began
            self._self_ns += spent  # computed first, so that no other thread's sum can be lost

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record one event. Fields are JSON values (NaN and infinity become strings); none may be called seq, t_ns or
        kind.
        """
        began = time.monotonic_ns()
        try:
            self._journal.write(kind, fields)
        finally:
            spent = time.monotonic_ns() - began  # not `own_time`, which takes a microsecond more
            self._self_ns += spent

    def span(self, name: str, **fields: Any) -> Span:
        """Return a context manager that records one `span` event when it ends; its `note(...)` adds fields."""
        return Span(self, name, fields)

    def memory(self) -> dict[str, int]:
        """Return the memory of this process now, as fields to record (`probes.memory.in_use`)."""
        began = time.monotonic_ns()
        fields = memory.in_use()
        self._self_ns += time.monotonic_ns() - began
        return fields

    def shapes(
        self,
        phase: str,
        tensors: Mapping[str, Any],
        *,
        step: int | None = None,
        padded_tokens: int | None = None,
        real_tokens: int | None = None,
        longest: int | None = None,
        samples: int | None = None,
    ) -> None:
        """Record shape, dtype and device of tensors, never a value. The sizes are in tokens."""
        began = time.monotonic_ns()
        described = shapes.describe_all(tensors)
        spent = time.monotonic_ns() - began  # not `own_time`: between two passes its code has left the caches
        self._self_ns += spent
        self.event("shapes", step=step, phase=phase, tensors=described, padded_tokens=padded_tokens,
                   real_tokens=real_tokens, longest=longest, samples=samples)  # fmt: skip

    def frame(
        self, kind: str, *, step: int, arrays: Mapping[str, Flat | Ragged], fields: Mapping[str, Any] | None = None
    ) -> None:
        """Record one frame of arrays (`Flat.of`, `Ragged.of`) in the token log."""
        self._journal.check()
        with self.own_time():
            with self._lock:
                if self._tokens is None:
                    self._tokens = tokens.TokenLog(self.run_dir / TOKENS / f"{self.path.stem}.bin", self.run)
            self._tokens.write(kind, step, self.role, self.rank, fields or {}, arrays)

    def boundaries(
        self,
        *,
        step: int,
        sample: int,
        prompt: Any,
        output: Any,
        finish: str,
        specials: Iterable[int] = (),
        decode: Callable[[list[int]], str] | None = None,
        n: int = 8,
    ) -> None:
        """Record the first and last n ids of a prompt and its output, their text, and the special ids in them."""
        with self.own_time():
            fields = tokens.boundaries(prompt, output, specials=specials, decode=decode, n=n)
        self.event("boundaries", step=step, sample=sample, finish=finish, **fields)

    def weights(
        self, *, step: int, version: int, digests: Mapping[str, str], source: Literal["learner", "received"]
    ) -> None:
        """Record the digest of every tensor after a sync (`probes.weights.digests`), as sent or as received."""
        self.event("weights", step=step, version=version, source=source, digests=digests)

    def group(self, *, name: str, backend: str, rank: int, world_size: int, members: Iterable[int]) -> None:
        """Record a process group that was made by hand. `watch_groups` records those of torch.distributed."""
        collectives.record_group(self, name=name, backend=backend, rank=rank, world_size=world_size, members=members)

    def watch_groups(self) -> bool:
        """Record every torch.distributed group from now on. Return False where torch.distributed is not loaded yet.

        `start` calls it. Call it again where torch is imported after that.
        """
        return collectives.watch(self)

    def environment(self) -> None:
        """Record this process's environment as it is now. `start` does so; call it again once torch is loaded."""
        with self.own_time():
            fields = environment.describe()
        self.event("environment", **fields)

    def close(self, ok: bool = True, reason: str = "") -> None:
        """Write the `close` event; a recording without one counts as cut short. A second call does nothing."""
        if self._journal.closed:
            return
        collectives.unwatch(self)
        _live.discard(self)
        log = self._tokens
        lost = self._journal.lost + (log.lost if log else 0)
        counts = {
            "frames": log.records if log else 0,
            "frame_kinds": log.kinds if log else {},
            "events": self._journal.kinds,
            "beside": _beside(self.path),
            "self_ns": self.self_ns,
            **without_none(lost=lost or None),
        }
        try:
            self.event("close", ok=ok, reason=reason, **counts)
        finally:
            if log:
                log.close()
            self._journal.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(ok=error is None, reason=error_text(error))
        except RecordingError:
            if error is None:
                raise  # otherwise the exception under way is more important


def _beside(journal: Path) -> list[str]:
    """Return the names of the other events files, first those that follow this one by name, at most MOST_BESIDE.

    A reader uses them to notice a file that is gone.
    """
    try:
        names = sorted(name for name in os.listdir(journal.parent) if name.endswith(".jsonl"))
    except OSError:  # the folder was removed
        return []
    place = names.index(journal.name) if journal.name in names else 0
    return [*names[place + 1 :], *names[:place]][:MOST_BESIDE]


def start(
    run_dir: str | os.PathLike[str], *, role: str, rank: int = 0, world_size: int = 1, groups: bool = True
) -> Recorder:
    """Begin this process's recording in a file of its own, with an `open` and an `environment` event.

    Makes the folders. `groups`: record process groups too. Raises RecordingError when nothing can be written there,
    ValueError for a role that cannot be part of a file name.
    """
    recorder = Recorder(run_dir, role, rank, world_size)
    try:
        with recorder.own_time():
            fields = environment.describe()
        recorder.event(
            "open", wall_ns=time.time_ns(), host=socket.gethostname(), pid=os.getpid(), ppid=os.getppid(),
            start_ticks=started(), role=role, rank=rank, world_size=world_size, python=sys.version.split()[0],
            packages=fields["packages"], env=fields["env"], format=FORMAT_VERSION,
            **({"run": recorder.run, "manifest": recorder.manifest} if recorder.run else {}),
        )  # fmt: skip
        recorder.event("environment", **fields)
        if groups:
            recorder.watch_groups()
    except BaseException:
        recorder._journal.close()
        raise
    _live.add(recorder)
    return recorder


def live() -> list[Recorder]:
    """Return the open recorders of this process, without those of the process that it was forked from."""
    pid = os.getpid()
    return [recorder for recorder in list(_live) if recorder._journal._pid == pid]


_live: set[Recorder] = set()


def _create(run_dir: Path, stem: str) -> Journal:
    """Make a journal under a name that is free. Containers repeat process ids, so a resumed run may find its own old
    files.
    """
    for number in range(1, 10_000):
        name = stem if number == 1 else f"{stem}-{number}"
        if (run_dir / TOKENS / f"{name}.bin").exists():
            continue
        try:
            return Journal(run_dir / EVENTS / f"{name}.jsonl")
        except FileExistsError:
            continue
    raise RecordingError(errno.EEXIST, f"{run_dir} already holds ten thousand recordings called {stem}", str(run_dir))


class _Off(Recorder):
    """A recorder that records nothing, for comparing runs with and without probes."""

    def __init__(self) -> None:
        self.run_dir, self.role, self.rank, self.world_size = Path(os.devnull), "off", 0, 1
        self._self_ns = 0
        self.running = {}

    @property
    def path(self) -> Path:
        return self.run_dir

    @property
    def events(self) -> int:
        return 0

    @contextmanager
    def own_time(self) -> Iterator[None]:
        yield

    def event(self, kind: str, /, **fields: Any) -> None: ...
    def shapes(self, phase: str, tensors: Mapping[str, Any], **sizes: Any) -> None: ...
    def frame(self, kind: str, **content: Any) -> None: ...
    def boundaries(self, **content: Any) -> None: ...
    def environment(self) -> None: ...
    def memory(self) -> dict[str, int]:
        return {}

    def close(self, ok: bool = True, reason: str = "") -> None: ...
    def watch_groups(self) -> bool:
        return False


OFF: Recorder = _Off()
