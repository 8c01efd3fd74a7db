"""Reads what Ray's command line prints of a cluster: `ray list actors`, `ray list tasks` and `ray status`.

Lists are read as table, YAML and JSON (forms of Ray 2.60). A list has states and no ages, hosts or callers, so it shows
who waits for a node, and not for how long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from harness.triage.communicators import MAX_PID
from harness.triage.evidence import RayActor, RayDemand, RayTask

STATUS = "Autoscaler status: "
SIGNS = (" ACTOR_ID ", " TASK_ID ", "-   actor_id: ", "-   task_id: ", '"actor_id"', '"task_id"', STATUS)
MAX_ROWS = 20_000  # of all lists; `ray list` prints 100, and at most 10,000
MAX_DEMANDS = 100  # shapes of requests; those of real jobs have some ten
_MEMBERS = '"actor_id"', '"task_id"'
_ITEM = re.compile(r"-   (\w{1,40}): (.{0,1000})")  # yaml.dump with an indentation of four
_KEY = re.compile(r"    (\w{1,40}): (.{0,1000})")
_ACTOR = re.compile(
    r" *\d{1,7} +([0-9a-f]{32}) +(\S.{0,200}?) +([A-Z_]{4,40}) +[0-9a-f]{8}\b(?:.{0,300}? (\d{1,10})(?: |$))?"
)
_TASK = re.compile(r" *\d{1,7} +([0-9a-f]{48}) +\d{1,7} +(\S.{0,200}?) +([A-Z_]{3,60}) +[0-9a-f]{8}\b")
_DEMAND = re.compile(r" (\{.{1,300}\}(?: \* \d{1,7})?(?: \(\w{1,30}\))?): (\d{1,9}\+? pending [\w/ ]{1,60})")

Name = Annotated[str, msgspec.Meta(max_length=1_000)]
Pid = Annotated[int, msgspec.Meta(ge=0, le=MAX_PID)]


class _Row(msgspec.Struct):
    """A row of a list. Both lists have `state`; an actor's row has no `task_id`."""

    state: Name
    actor_id: Name | None = None
    task_id: Name | None = None
    class_name: Name | None = None
    name: Name | None = None
    pid: Pid | None = None
    worker_pid: Pid | None = None


@dataclass
class Lists:
    """Takes texts. `actors`, `tasks`: by their id, the last state of each. `texts`: how many had a list or a status."""

    actors: dict[str, RayActor] = field(default_factory=dict)
    tasks: dict[str, RayTask] = field(default_factory=dict)
    demands: dict[str, RayDemand] = field(default_factory=dict)
    texts: int = 0

    def feed(self, text: str) -> None:
        """Take the text of one file."""
        if not any(sign in text for sign in SIGNS):
            return
        rows = list(_of_json(text) if text.lstrip()[:1] == "[" else _of_text(text, self.demands))
        for row in rows:
            self._add(row)
        self.texts += bool(rows) or STATUS in text

    def __len__(self) -> int:
        return len(self.actors) + len(self.tasks) + len(self.demands)

    def _add(self, row: _Row) -> None:
        if len(self) > MAX_ROWS:
            return
        if row.task_id is not None:
            self.tasks[row.task_id] = RayTask(
                row.task_id, row.name or "", row.state, 0.0, pid=row.worker_pid or 0, actor_id=row.actor_id or ""
            )
        elif row.actor_id is not None:
            name = row.name or row.class_name or ""
            self.actors[row.actor_id] = RayActor(row.actor_id, name, row.state, pid=row.pid or 0)


def _of_json(text: str) -> Iterator[_Row]:
    if not any(member in text for member in _MEMBERS):
        return
    try:
        yield from msgspec.json.decode(text, type=list[_Row])
    except (msgspec.MsgspecError, RecursionError):  # another list, or a damaged one: nothing is recognised in it
        return


def _of_text(text: str, demands: dict[str, RayDemand]) -> Iterator[_Row]:
    item: dict[str, str] = {}
    for line in text.splitlines():
        if begin := _ITEM.fullmatch(line):
            yield from _of_yaml(item)
            item = {begin[1]: begin[2]}
        elif item and (pair := _KEY.fullmatch(line)):
            item[pair[1]] = pair[2]
        elif task := _TASK.match(line):
            yield _Row(task[3], task_id=task[1], name=task[2])
        elif actor := _ACTOR.match(line):
            yield _Row(actor[3], actor_id=actor[1], class_name=actor[2], pid=_pid(actor[4] or ""))
        elif (demand := _DEMAND.fullmatch(line)) and len(demands) < MAX_DEMANDS:
            demands[demand[1]] = RayDemand(demand[1], demand[2])
    yield from _of_yaml(item)


def _of_yaml(item: dict[str, str]) -> Iterator[_Row]:
    values: dict[str, Any] = {key: _scalar(value) for key, value in item.items()}
    values |= {key: _pid(values.get(key) or "") for key in ("pid", "worker_pid")}
    try:
        yield msgspec.convert(values, _Row)
    except msgspec.ValidationError:  # an item of another list
        return


def _scalar(value: str) -> str | None:
    if value in ("null", "''", '""'):
        return None
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _pid(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) <= 10 and int(digits) <= MAX_PID else None
