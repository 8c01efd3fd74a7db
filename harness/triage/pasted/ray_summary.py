"""Reads `ray summary tasks` and `ray summary actors`, as Ray 2.60 prints them, and the same in JSON, as
`ray.util.state.summarize_tasks()` returns it. A summary counts states by name and has no ids, nodes or ages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from harness.triage.evidence import RayActor, RayTask

METHOD = "ACTOR_TASK"  # the type of a task that is a call of an actor's method
SIGNS = (" STATE_COUNTS", '"state_counts"')
MAX_ROWS = 10_000  # names and states of one text
_HEAD = re.compile(r" +(FUNC_OR_)?CLASS_NAME +STATE_COUNTS(?: +TYPE)?\s*")
_ROW = re.compile(r" *\d{1,7} +(\S.{0,200}?) {2,}([A-Z_]{4,60}): (\d{1,9})(?: +([A-Z_]{8,30}))?\s*")
_MORE = re.compile(r" {5,}([A-Z_]{4,60}): (\d{1,9})\s*")  # another state of the row above

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class _Item(msgspec.Struct):
    state_counts: dict[str, Count]
    func_or_class_name: str | None = None
    class_name: str | None = None
    type: str = ""


class _Cluster(msgspec.Struct):
    summary: dict[str, _Item]


class _Summary(msgspec.Struct):
    cluster: _Cluster


def rows(text: str) -> Iterator[RayActor | RayTask]:
    """Yield a record for each name and state of the summaries in a text."""
    if not any(sign in text for sign in SIGNS):
        return
    if text.lstrip()[:1] == "{":
        yield from _of_json(text)
        return
    kind, name, type_of, count = "", "", "", 0
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            kind, name = "task" if head[1] else "actor", ""
        elif kind and (row := _ROW.fullmatch(line)):
            name, type_of, count = row[1], row[4] or "", count + 1
            yield _record(kind, name, row[2], int(row[3]), type_of)
        elif name and (more := _MORE.fullmatch(line)):
            count += 1
            yield _record(kind, name, more[1], int(more[2]), type_of)
        elif kind and line.strip():
            kind, name = "", ""
        if count >= MAX_ROWS:
            return


def is_json(head: bytes) -> bool:
    """Whether a file of JSON that begins so is a summary."""
    return b'"state_counts"' in head


def _of_json(text: str) -> Iterator[RayActor | RayTask]:
    try:
        summary = msgspec.json.decode(text, type=_Summary)
    except (msgspec.MsgspecError, RecursionError):  # other JSON, or damaged: nothing is recognised in it
        return
    for item in list(summary.cluster.summary.values())[:MAX_ROWS]:
        kind = "actor" if item.func_or_class_name is None else "task"
        for state, count in item.state_counts.items():
            yield _record(kind, item.func_or_class_name or item.class_name or "", state, count, item.type)


def _record(kind: str, name: str, state: str, count: int, type_of: str) -> RayActor | RayTask:
    identity = f"{name} {state}"
    if kind == "actor":
        return RayActor(identity, name, state, count=count)
    return RayTask(identity, name, state, 0.0, actor_id=name if type_of == METHOD else "", count=count)
