"""Reads what Ray's command line prints of a cluster: `ray list actors`, `tasks` and `placement-groups`, `ray status`;
and what Ray writes to a log about requests that no node can fulfil.

Lists are read as table, YAML and JSON (forms of Ray 2.60). A list has states, nodes and, with --detail, what is asked
for, and no ages or callers, so it shows who waits for a node, and not for how long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from harness.triage.communicators import MAX_PID
from harness.triage.evidence import RayActor, RayDemand, RayGroup, RayTask
from harness.triage.pasted import ray_summary
from harness.triage.pasted.ray_summary import METHOD

STATUS = "Autoscaler status: "
INFEASIBLE, UNSCHEDULED = "No available node types can fulfill ", "resource request cannot be scheduled right now: "
SIGNS = (" ACTOR_ID ", " TASK_ID ", "-   actor_id: ", "-   task_id: ", '"actor_id"', '"task_id"', STATUS, INFEASIBLE,
         UNSCHEDULED, " PLACEMENT_GROUP_ID ", "-   placement_group_id: ", '"placement_group_id"')  # fmt: skip
NO_NODE_TYPE = "no node type of the cluster has enough"
LATEST = 20  # lines at the end of a log; a warning before them may be about a request that has got its node since
MAX_ROWS = 20_000  # of all lists; `ray list` prints 100, and at most 10,000
MAX_NODE = 12  # digits of a node's id that are kept
MAX_DEMANDS = 100  # shapes of requests; those of real jobs have some ten
_MEMBERS = '"actor_id"', '"task_id"', '"placement_group_id"'
_ITEM = re.compile(r"-   (\w{1,40}): (.{0,1000})")  # yaml.dump with an indentation of four
_KEY = re.compile(r"    (\w{1,40}): (.{0,1000})")
_RESOURCES = "    required_resources:"  # the amounts are below it, indented once more
_AMOUNT = re.compile(r"        ([\w:./-]{1,100}): (\d{1,15}(?:\.\d{1,15})?)")
# Ids have 32 digits, if nobody shortened them.
_ACTOR_STATE = "ALIVE|DEAD|DEPENDENCIES_UNREADY|PENDING_CREATION|RESTARTING"  # of Ray's custom_types
_ACTOR = re.compile(rf" *\d{{1,7}} +([0-9a-f]{{8,32}}) +(\S.{{0,200}}?) +({_ACTOR_STATE}) +[0-9a-f]{{8}}\b")
# Its node and its pid, behind a name that may be of any words. Without a node it has no pid, or 0.
_ACTOR_PLACE = re.compile(r"  ([0-9a-f]{4,56}) +([1-9]\d{0,9})(?: |$)")
_TASK = re.compile(
    r" *\d{1,7} +([0-9a-f]{48}) +\d{1,7} +(\S.{0,200}?) +([A-Z_]{3,60}) +[0-9a-f]{8}\b"
    r"(?: +(?P<actor>[0-9a-f]{32}))?(?: +(?P<type>[A-Z_]{8,30})\b)?"
)
_PLACE = re.compile(r" ([0-9a-f]{56})\b(?: +[0-9a-f]{56}\b)?(?: +(\d{1,10})\b)?")  # node, worker, its pid
_DEMAND = re.compile(r" (\{.{1,300}\}(?: \* \d{1,7})?(?: \(\w{1,30}\))?): (\d{1,9}\+? pending [\w/ ]{1,60})")

# "CPU" and "GPU", and not the indented amounts of each node that `ray status -v` adds.
_TOTAL = re.compile(r" (\d{1,15}(?:\.\d{1,15})?)/(\d{1,15}(?:\.\d{1,15})?) ([\w:./-]{1,100})(?: \(.{1,200}\))?")
_BUNDLE = re.compile(r"(\{[^{}]{1,300}\})(?: ?\* ?(\d{1,7}))?")
_ASKED = re.compile(r"'([\w:./-]{1,100})': (\d{1,15}(?:\.\d{1,15})?)")
_MEMORY = ("memory", "object_store_memory")  # printed in GiB, and asked for in bytes
_WARNING = re.compile(
    rf"(?:{INFEASIBLE}(?P<kind>resource|placement group) requests?(?: \(detail=.{{0,300}}?\):)?|{UNSCHEDULED})"
    r" ?(?P<what>\{.{1,500}\}(?:\*\d{1,7})?)"
)
_GROUP = re.compile(r" *\d{1,7} +([0-9a-f]{8,64}) +(?:(\S{1,200}) +)?[0-9a-f]{8} +([A-Z]{4,20}) *")

Name = Annotated[str, msgspec.Meta(max_length=1_000)]
Amounts = Annotated[dict[Name, Annotated[float, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=100)]
Pid = Annotated[int, msgspec.Meta(ge=0, le=MAX_PID)]


class _Row(msgspec.Struct):
    """A row of a list. Both lists have `state`; an actor's row has no `task_id`."""

    state: Name
    actor_id: Name | None = None
    task_id: Name | None = None
    placement_group_id: Name | None = None
    class_name: Name | None = None
    name: Name | None = None
    pid: Pid | None = None
    worker_pid: Pid | None = None
    node_id: Name | None = None
    type: Name | None = None
    required_resources: Amounts | None = None

    @property
    def resources(self) -> tuple[tuple[str, float], ...]:
        return tuple(sorted((self.required_resources or {}).items()))

    @property
    def node(self) -> str:
        return (self.node_id or "")[:MAX_NODE]


@dataclass
class Lists:
    """Takes texts. `actors`, `tasks`: by their id, the last state of each. `texts`: how many had a list or a status."""

    actors: dict[str, RayActor] = field(default_factory=dict)
    tasks: dict[str, RayTask] = field(default_factory=dict)
    demands: dict[str, RayDemand] = field(default_factory=dict)
    groups: dict[str, RayGroup] = field(default_factory=dict)
    texts: int = 0

    def feed(self, text: str) -> None:
        """Take the text of one file."""
        summarised = 0
        for record in ray_summary.rows(text):
            table: dict[str, Any] = self.tasks if isinstance(record, RayTask) else self.actors
            table[record.task_id if isinstance(record, RayTask) else record.actor_id] = record
            summarised += 1
        self.texts += bool(summarised)
        if not any(sign in text for sign in SIGNS):
            return
        demands = len(self.demands)
        rows = list(_of_json(text) if text.lstrip()[:1] == "[" else _of_text(text, self.demands))
        for row in rows:
            self._add(row)
        self.texts += bool(rows) or STATUS in text or len(self.demands) > demands

    def __len__(self) -> int:
        return len(self.actors) + len(self.tasks) + len(self.demands) + len(self.groups)

    def _add(self, row: _Row) -> None:
        if len(self) > MAX_ROWS:
            return
        if row.task_id is not None:
            # The task that creates an actor has the actor's id too.
            method = row.actor_id if row.type in (METHOD, None) else None
            self.tasks[row.task_id] = RayTask(
                row.task_id, row.name or "", row.state, 0.0, host=row.node, pid=row.worker_pid or 0,
                actor_id=method or "", resources=row.resources,
            )  # fmt: skip
        elif row.placement_group_id is not None:
            self.groups[row.placement_group_id] = RayGroup(row.placement_group_id, row.name or "", row.state)
        elif row.actor_id is not None:
            name = row.name or row.class_name or ""
            self.actors[row.actor_id] = RayActor(
                row.actor_id, name, row.state, host=row.node, pid=row.pid or 0, resources=row.resources
            )


def _of_json(text: str) -> Iterator[_Row]:
    if not any(member in text for member in _MEMBERS):
        return
    try:
        yield from msgspec.json.decode(text, type=list[_Row])
    except (msgspec.MsgspecError, RecursionError):  # another list, or a damaged one: nothing is recognised in it
        return


def _of_text(text: str, demands: dict[str, RayDemand]) -> Iterator[_Row]:
    """Yield the rows of tables and of YAML in a text. What `ray status` and a log say of requests joins `demands`."""
    lines = text.splitlines()
    item = _Item()
    for line in lines:
        if _ITEM.fullmatch(line):
            yield from _of_yaml(item.fields)
            item = _Item()
        if not item.takes(line) and (row := _of_table(line)) is not None:
            yield row
    yield from _of_yaml(item.fields)
    _add_demands(lines, STATUS in text, demands)
    _add_warnings(lines, demands)


@dataclass
class _Item:
    """An item of a YAML list, as far as its lines were read. `amounts`: of its resources, while their lines last."""

    fields: dict[str, Any] = field(default_factory=dict)
    amounts: dict[str, float] | None = None

    def takes(self, line: str) -> bool:
        """Take a line of the item; return whether it is one."""
        if begin := _ITEM.fullmatch(line):
            self.fields[begin[1]] = _scalar(begin[2])
        elif self.fields and line.rstrip() == _RESOURCES:
            self.fields["required_resources"] = self.amounts = {}
        elif self.amounts is not None and (amount := _AMOUNT.fullmatch(line)):
            self.amounts[amount[1]] = float(amount[2])
        elif self.fields and (pair := _KEY.fullmatch(line)):
            self.fields[pair[1]], self.amounts = _scalar(pair[2]), None
        else:
            return False
        return True


def _of_table(line: str) -> _Row | None:
    """The row of a table of `ray list` that a line is; None for another line."""
    if task := _TASK.match(line):
        node, pid = _place(line[task.end() :])
        return _Row(task[3], task_id=task[1], name=task[2], actor_id=task["actor"], type=task["type"],
                    node_id=node, worker_pid=pid)  # fmt: skip
    if actor := _ACTOR.match(line):
        place = _ACTOR_PLACE.search(line, actor.end())
        node, pid = (place[1], _pid(place[2])) if place else (None, None)
        return _Row(actor[3], actor_id=actor[1], class_name=actor[2], pid=pid, node_id=node)
    if group := _GROUP.fullmatch(line):
        return _Row(group[3], placement_group_id=group[1], name=group[2])
    return None


def _add_demands(lines: Sequence[str], is_status: bool, demands: dict[str, RayDemand]) -> None:
    """Add the requests that `ray status` lists as pending, with what the cluster lacks for each, or has in use."""
    matches = [total for line in lines if (total := _TOTAL.fullmatch(line))] if is_status else []
    totals = {total[3]: float(total[2]) for total in matches}
    used = {total[3]: float(total[1]) for total in matches}
    for demand in filter(None, map(_DEMAND.fullmatch, lines)):
        if len(demands) < MAX_DEMANDS:
            what, pending = demand[1], demand[2]
            lacking = _lacking(what, totals)
            demands[what] = RayDemand(what, pending, lacking, "" if lacking else _in_use(what, totals, used))


def _add_warnings(lines: Sequence[str], demands: dict[str, RayDemand]) -> None:
    """Add the requests of which the last lines of a log say that no node can fulfil them, or none can now."""
    for warning in filter(None, map(_WARNING.search, lines[-LATEST:])):
        if len(demands) < MAX_DEMANDS:
            several = "placement groups" if warning["kind"] == "placement group" else "requests"
            lacking = NO_NODE_TYPE if warning["kind"] else ""
            pending = several if lacking else f"{several} that cannot be scheduled now"
            demands.setdefault(warning["what"], RayDemand(warning["what"], pending, lacking))


def _lacking(request: str, totals: Mapping[str, float]) -> str:
    """Of what a whole cluster has less than one request asks for, as a sentence; empty if its totals are not known. The
    bundles of a placement group are asked for together."""
    for name, amount in _amounts(request).items() if totals else ():
        total = totals.get(name, 0.0)
        if amount > total and name not in _MEMORY:
            return f"the cluster has {f'{total:g}' if total else 'no'} {name}"
    return ""


def _in_use(request: str, totals: Mapping[str, float], used: Mapping[str, float]) -> str:
    """Of what too little is free now for one request, as a sentence; empty if there is enough, or nothing says so."""
    for name, amount in _amounts(request).items():
        if name in totals and amount > totals[name] - used[name] and name not in _MEMORY:
            return f"{used[name]:g} of {totals[name]:g} {name} are in use"
    return ""


def _amounts(request: str) -> dict[str, float]:
    """Resource -> how much all bundles of a request ask for."""
    amounts: dict[str, float] = {}
    for bundle, count in _BUNDLE.findall(request):
        for name, amount in _ASKED.findall(bundle):
            amounts[name] = amounts.get(name, 0.0) + float(amount) * int(count or 1)
    return amounts


def _place(columns: str) -> tuple[str | None, int | None]:
    """The node of a row of a table, and the pid of the worker."""
    place = _PLACE.search(columns)
    return (place[1], _pid(place[2] or "")) if place else (None, None)


def _of_yaml(item: dict[str, Any]) -> Iterator[_Row]:
    values = item | {key: _pid(item.get(key) or "") for key in ("pid", "worker_pid")}
    if not isinstance(values.get("required_resources"), dict):  # {} of a list that asks for nothing
        values["required_resources"] = None
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
