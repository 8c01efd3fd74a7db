"""After the job: completes the recording from what its processes recorded, and reports whether the hooks fired."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.triage.collect import beats
from probes.adapters import Adapter
from probes.format import JournalIndex, Run, encode_line, seal, write_manifest

# Ray ends a job's last processes after its driver has gone; some seconds were seen.
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Hooks:
    """What became of each hook, by symbol. `never`: no call -> when the table says that it is called (empty: in every
    job). `moved`: not where the table says. `off`: its reader failed -> why. `processes`: how many had hooks, of
    `journals` that recorded anything. `rollouts`: whether one was recorded."""

    version: str = ""
    processes: int = 0
    journals: int = 0
    rollouts: bool = False
    fired: dict[str, int] = field(default_factory=dict)
    never: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)

    @property
    def silent(self) -> list[str]:
        """Hooks that were not called although every job of this framework should call them."""
        return [symbol for symbol, when in self.never.items() if not when]


def finish(directory: Path, adapter: Adapter, exit_code: int) -> Hooks:
    """Close journals that the job's end left open, and add what the processes recorded about their job to run.json.

    Raises FormatError if the directory is no recording at all, and RecordingError if run.json cannot be written.
    """
    run = Run(directory, strict=False)
    if exit_code == 0 and run.incomplete:
        _close(run)
        run = Run(directory, strict=False)
    hooks = _hooks(run, adapter)
    fields = {**_process_fields(run, adapter, hooks), "exit_code": exit_code, "index": True}
    write_manifest(directory, {**run.manifest, **fields})
    if not run.incomplete:
        seal(directory)
    return hooks


def lines(hooks: Hooks, adapter: Adapter) -> Iterator[str]:
    """What the user should know about the hooks, one line each."""
    name = adapter.framework
    if not hooks.processes:
        return
    if not adapter.tested(hooks.version):
        first, end = adapter.versions
        yield f"{name} {hooks.version or 'of an unknown version'} is outside the tested range ({first} to before {end})"
    total = len(hooks.fired) + len(hooks.never) + len(hooks.moved)
    yield f"{len(hooks.fired)} of {total} hooks fired, in {hooks.processes} processes:"
    for symbol, count in sorted(hooks.fired.items()):
        yield f"  {count:>7,} × {symbol}"
    for symbol, when in sorted(hooks.never.items()):
        yield f"    never   {symbol}" + (f" ({when})" if when else ": every job should have called it")
    for symbol, why in sorted(hooks.moved.items()):
        yield f"    moved   {symbol}: {why}"
    for symbol, why in sorted(hooks.off.items()):
        yield f"    off     {symbol}: its probe failed and turned itself off: {why}"


def unrecorded(hooks: Hooks, adapter: Adapter) -> str:
    """Why the recording holds no rollout; empty where it holds one."""
    name = adapter.framework
    if hooks.rollouts:
        return ""
    if hooks.processes:
        silent = f": {', '.join(hooks.silent[:2])} never fired" if hooks.silent else ""
        return f"the hooks of {name} recorded no rollout{silent}"
    if hooks.journals:
        return f"no process of the job met a hook of {name}: it ended before it came to {name}, or it is no {name} job"
    return (
        f"no process of the job loaded the probes: it runs in another interpreter, overrides PYTHONPATH or its runtime "
        f"environment, or never imports {name}"
    )


def _hooks(run: Run, adapter: Adapter) -> Hooks:
    hook_events = list(run.events("hooks"))
    version = next((str(event.get("version")) for event in hook_events if event.get("version")), "")
    fired = Counter(str(event["hook"]) for event in run.events("span") if event.get("hook"))
    moved: dict[str, str] = {}
    for event in hook_events:
        moved |= {str(symbol): str(why) for symbol, why in (event.get("moved") or {}).items()}
    for event in hook_events:  # in another process its place was as the table says
        for symbol in event.get("installed") or ():
            moved.pop(symbol, None)
    never = {
        hook.symbol: hook.when
        for hook in adapter.hooks_of(version)
        if hook.symbol not in fired and hook.symbol not in moved
    }
    return Hooks(
        version=version,
        processes=len({event["pid"] for event in hook_events}),
        journals=len(run._journals),
        rollouts=any(True for _ in run.frames("rollout")),
        fired=dict(fired),
        never=never,
        moved={symbol: why for symbol, why in moved.items() if symbol not in fired},
        off={str(event.get("hook")): str(event.get("error")) for event in run.events("hook_off")},
    )


def _process_fields(run: Run, adapter: Adapter, hooks: Hooks) -> dict[str, Any]:
    """The keys of run.json that only the processes know."""
    configuration, missing = _configuration(run)
    fields = {"framework": adapter.framework, "framework_version": hooks.version, **configuration}
    for event in run.events("resume"):
        if isinstance(event.get("step"), int):  # every rank records it
            fields["resumed"] = {"step": event["step"], "path": str(event.get("path") or "")}
            break
    missing = {**adapter.missing, **missing}
    if "scenario" not in fields:
        missing["configuration"] = "no process recorded the resolved configuration"
    for symbol in hooks.silent:
        missing[symbol] = "its hook never fired, though every job should have called it"
    missing |= {symbol: f"its hook could not be put there: {why}" for symbol, why in hooks.moved.items()}
    missing |= {symbol: f"its probe turned itself off: {why}" for symbol, why in hooks.off.items()}
    hook_states = {"fired": hooks.fired, "never": hooks.never, "moved": hooks.moved, "off": hooks.off}
    return {**fields, "missing": [f"{what}: {why}" for what, why in missing.items()], "hooks": hook_states}


def _configuration(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """(The keys of run.json about the resolved configuration, what is missing of it -> why), of all processes."""
    fields: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for event in run.events("configuration"):
        scenario = {**(event.get("scenario") or {}), "framework": event.get("settings") or {}}
        fields = {
            "scenario": _merged(fields.get("scenario", {}), scenario), "backend": event.get("backend"),
            "seeds": {**fields.get("seeds", {}), **(event.get("seeds") or {})}, "sampling_mode": event.get("mode"),
        }  # fmt: skip
        missing |= event.get("missing") or {}
    return fields, missing


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merge two configurations: each of several processes may know a part of it."""
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _close(run: Run) -> None:
    """Close the journals of processes that have ended.

    Ray and the engines end their processes by signal after a job that succeeded as well as after one that failed. A
    torn journal stays open, and so does that of a process on another host that still has a heartbeat.
    """
    torn = {file for file, _ in run.torn}
    elsewhere = _Elsewhere(run.path)
    frames = Counter(frame.stem for frame in _frame_files(run))
    for journal in run._journals:
        if journal.name in run.incomplete and journal.name not in torn and _has_ended(journal, elsewhere):
            lines_there = sum(len(places) for places in journal.kinds.values())
            fields = {
                "ok": True, "reason": "", "frames": frames[journal.path.stem],
                "ended": "its process was ended with the job, which succeeded",
            }  # fmt: skip
            checksum = zlib.crc32(journal.path.read_bytes()) if journal.sealed else None
            with open(journal.path, "ab") as stream:
                stream.write(encode_line(lines_there, time.monotonic_ns(), "close", fields, before=checksum))


def _frame_files(run: Run) -> Iterator[Path]:
    for log in run._logs:
        for _ in log.extents:
            yield log.path


class _Elsewhere:
    """Processes of other hosts, known only by their heartbeats. The heartbeats are read once, when first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._silent: set[tuple[str, int]] | None = None

    def ended(self, host: str, pid: int) -> bool:
        """Whether it had a heartbeat that has stopped."""
        if self._silent is None:
            time.sleep(PATIENCE_S / 2)  # give Ray time to end the last of them
            before = self._counts()
            time.sleep(PATIENCE_S / 2)
            after = self._counts()
            self._silent = {process for process, count in before.items() if after.get(process) == count}
        return (host, pid) in self._silent

    def _counts(self) -> dict[tuple[str, int], int]:
        pulses, _ = beats.read(self.directory, time.monotonic_ns())
        return {process: pulse.beat.count for process, pulse in pulses.items()}


def _has_ended(journal: JournalIndex, elsewhere: _Elsewhere) -> bool:
    """Whether the process of a journal has ended. Waits for one that is about to end."""
    host, pid = str(journal.opening.get("host")), int(journal.opening["pid"])
    if host != os.uname().nodename:
        return elsewhere.ended(host, pid)
    until = time.monotonic() + PATIENCE_S
    while _runs(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
