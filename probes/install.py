"""The recorder of one process: start it, tell it what happens, close it.

    rec = probes.install.start(run_dir, role="actor", rank=0, world_size=1)
    with rec.span("rollout", step=3):
        ...
    rec.close()
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from probes import collectives, environment, shapes, tokens
from probes.format import EVENTS, TOKENS, Flat, Ragged
from probes.journal import Journal, RecordingError
from probes.spans import Span

__all__ = ["OFF", "Recorder", "RecordingError", "start"]


class Recorder:
    """Everything one process records. Threads may share it; a forked child must start its own (RuntimeError).

    Every method raises RecordingError when the record cannot be written.
    """

    def __init__(self, run_dir: str | os.PathLike[str], role: str, rank: int, world_size: int) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.]+", role):
            raise ValueError(f"role {role!r} names files: letters, digits, dots and underscores only")
        self.run_dir, self.role, self.rank, self.world_size = Path(run_dir), role, rank, world_size
        self._journal = _create(self.run_dir / EVENTS, f"{role}-{rank}-{os.getpid()}")
        self._tokens: tokens.TokenLog | None = None
        self._self_ns = 0
        self._closed = False

    @property
    def self_ns(self) -> int:
        """Nanoseconds spent inside this recorder so far, by all threads together."""
        return self._self_ns

    @property
    def path(self) -> Path:
        """The events file of this process."""
        return self._journal.path

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record one event of any kind; fields are JSON values (NaN and infinity become strings)."""
        began = time.monotonic_ns()
        try:
            self._journal.write(kind, **fields)
        finally:
            self._self_ns += time.monotonic_ns() - began

    def span(self, name: str, **fields: Any) -> Span:
        """A context manager that records one `span` event when it ends; `span.note(...)` adds fields."""
        return Span(self, name, fields)

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
        """Record shape, dtype and device of tensors; never reads a value. Sizes are in tokens, padded_tokens with the padding."""
        began = time.monotonic_ns()
        fields = shapes.describe_all(tensors)
        self._self_ns += time.monotonic_ns() - began
        self.event("shapes", step=step, phase=phase, tensors=fields, padded_tokens=padded_tokens,
                   real_tokens=real_tokens, longest=longest, samples=samples)  # fmt: skip

    def frame(
        self, kind: str, *, step: int, fields: Mapping[str, Any] | None = None, arrays: Mapping[str, Flat | Ragged]
    ) -> None:
        """Record one frame of arrays (`Flat.of`, `Ragged.of`) in the token log."""
        began = time.monotonic_ns()
        try:
            if self._closed:
                raise ValueError(f"{self.path} is closed: nothing more can be recorded to it")
            if self._tokens is None:
                self._tokens = tokens.TokenLog(self.run_dir / TOKENS / f"{self.path.stem}.bin")
            self._tokens.write(kind, step, self.role, self.rank, fields or {}, arrays)
        finally:
            self._self_ns += time.monotonic_ns() - began

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
        """Record the first and last n ids of a prompt and its output, their text, and the special ids that occur in them."""
        began = time.monotonic_ns()
        fields = tokens.boundaries(prompt, output, specials=specials, decode=decode, n=n)
        self._self_ns += time.monotonic_ns() - began
        self.event("boundaries", step=step, sample=sample, finish=finish, **fields)

    def weights(
        self, *, step: int, version: int, digests: Mapping[str, str], source: Literal["learner", "received"]
    ) -> None:
        """Record the digest of every tensor after a sync (`probes.weights.digests`), as sent or as received."""
        self.event("weights", step=step, version=version, source=source, digests=digests)

    def group(self, *, name: str, backend: str, rank: int, world_size: int, members: Iterable[int]) -> None:
        """Record a process group that was made by hand; `watch_groups` records those of torch.distributed."""
        collectives.record_group(self, name=name, backend=backend, rank=rank, world_size=world_size, members=members)

    def watch_groups(self) -> bool:
        """Record every torch.distributed group made from now on; False when torch.distributed is not loaded yet."""
        return collectives.watch(self)

    def environment(self) -> None:
        """Record this process's environment as it is now: call it again once torch and its libraries are loaded."""
        began = time.monotonic_ns()
        fields = environment.describe()
        self._self_ns += time.monotonic_ns() - began
        self.event("environment", **fields)

    def close(self, ok: bool = True, reason: str = "") -> None:
        """Write the `close` event, without which the recording counts as cut short; a second call does nothing."""
        if self._closed:
            return
        collectives.unwatch(self)
        frames, lost = (self._tokens.records, self._tokens.lost) if self._tokens else (0, 0)
        lost += self._journal.lost
        self.event("close", ok=ok, reason=reason, frames=frames, **({"lost": lost} if lost else {}))
        self._closed = True
        if self._tokens:
            self._tokens.close()
        self._journal.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(ok=kind is None, reason="" if kind is None else f"{kind.__name__}: {error}"[:500])


def start(run_dir: str | os.PathLike[str], *, role: str, rank: int = 0, world_size: int = 1) -> Recorder:
    """Begin this process's recording: makes the folders and a file of its own, and writes `open` and `environment`."""
    recorder = Recorder(run_dir, role, rank, world_size)
    recorder.event(
        "open", wall_ns=time.time_ns(), host=socket.gethostname(), pid=os.getpid(), ppid=os.getppid(), role=role,
        rank=rank, world_size=world_size, python=sys.version.split()[0], packages=environment.packages(),
        env=environment.variables(),
    )  # fmt: skip
    recorder.environment()
    recorder.watch_groups()
    return recorder


def _create(folder: Path, stem: str) -> Journal:
    """A journal that nobody else has: a container repeats its process ids, so a resumed run may meet its own names."""
    for attempt in range(1, 10_000):
        try:
            return Journal(folder / f"{stem}{f'-{attempt}' if attempt > 1 else ''}.jsonl")
        except FileExistsError:
            continue
    raise RecordingError(17, f"{folder} already holds ten thousand recordings called {stem}", str(folder))


class _Off(Recorder):
    """Records nothing: the other half of a probes on and off comparison."""

    def __init__(self) -> None:
        self.run_dir, self.role, self.rank, self.world_size = Path(os.devnull), "off", 0, 1
        self._self_ns, self._closed = 0, False

    @property
    def path(self) -> Path:
        return self.run_dir

    def event(self, kind: str, /, **fields: Any) -> None: ...
    def shapes(self, phase: str, tensors: Mapping[str, Any], **sizes: Any) -> None: ...
    def frame(self, kind: str, **content: Any) -> None: ...
    def boundaries(self, **content: Any) -> None: ...
    def watch_groups(self) -> bool:
        return False

    def environment(self) -> None: ...
    def close(self, ok: bool = True, reason: str = "") -> None: ...


OFF: Recorder = _Off()
