"""Checks the configuration that a job records for traps, as soon as it is recorded and without stopping the job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.doctor.outcome import Item, Unseen
from harness.frameworks.examine import SETTINGS, items, trapped
from harness.frameworks.spec import Framework
from probes import limits
from probes.format import EVENTS, FormatError, Run
from probes.lines import decode_json
from probes.plugins import PluginError
from reports.doctor_model import Hazard

POLL_S = 0.5  # seconds between two looks at the journals of a running job
_CONFIGURATION, _ENVIRONMENT, _HOOKS = "configuration", "environment", "hooks"
_WANTED = tuple(f'"kind":"{kind}"'.encode() for kind in (_CONFIGURATION, _ENVIRONMENT, _HOOKS))


class Configured:
    """Runs beside a job and reports the traps in the first configuration that one of its processes records."""

    def __init__(self, framework: Framework, directory: Path, say: Callable[[str], None]) -> None:
        self._framework, self._directory, self._say = framework, directory, say
        self._read: dict[Path, int] = {}  # journal -> bytes that were read of it
        self._events: dict[Path, dict[str, Mapping[str, Any]]] = {}
        self._told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="configuration", daemon=True)

    def __enter__(self) -> Configured:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look(last=True)

    def _watch(self) -> None:
        while not self._told and not self._ended.wait(POLL_S):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Read what is new. The environment is recorded after the configuration and is waited for, except at the
        `last` look."""
        for file in () if self._told else sorted((self._directory / EVENTS).glob("*.jsonl")):
            self._take(file)
            events = self._events.get(file, {})
            if _CONFIGURATION in events and (_ENVIRONMENT in events or last):
                self._told = True
                for item in _of(self._framework, events):
                    if isinstance(item, Hazard):
                        line = f"{item.check}: {item.what} ({item.measured}): {item.why}"
                        self._say(f"{line}; fix: {item.fix}" if item.fix else line)
                return

    def _take(self, file: Path) -> None:
        try:
            with limits.open_file(file) as stream:
                stream.seek(self._read.get(file, 0))
                lines = stream.read().splitlines(keepends=True)
        except OSError:  # its folder does not exist yet
            return
        for line in lines:
            if not line.endswith(b"\n"):  # the line is being written
                break
            self._read[file] = self._read.get(file, 0) + len(line)
            if any(kind in line for kind in _WANTED):
                event = decode_json(line)
                self._events.setdefault(file, {}).setdefault(str(event["kind"]), event)


def of_recording(framework: Framework, directory: Path) -> list[Item] | None:
    """The traps in a finished recording's configuration; None if no process recorded one."""
    try:
        run = Run(directory, strict=False)
    except FormatError:
        return None
    for event in run.events(_CONFIGURATION):
        process = {_CONFIGURATION: event}
        for kind in (_ENVIRONMENT, _HOOKS):
            of_process = (later for later in run.events(kind) if later["pid"] == event["pid"])
            if first := next(of_process, None):
                process[kind] = first
        return _of(framework, process)
    return None


def _of(framework: Framework, events: Mapping[str, Mapping[str, Any]]) -> list[Item]:
    """The traps in what one process recorded: its configuration, its environment, and the framework's version."""
    variables = (events.get(_ENVIRONMENT) or {}).get("env") or {}
    try:
        settings = framework.configured(events[_CONFIGURATION], variables)
    except PluginError as error:
        return items(SETTINGS, [Unseen(str(error))])
    return trapped(framework, settings, str((events.get(_HOOKS) or {}).get("version") or ""))
