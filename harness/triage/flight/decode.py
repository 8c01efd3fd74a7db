"""Decodes a dump into a Flight: torch's JSON by typed decoding, its pickle by an unpickler that refuses every global.

Measured on dumps of 2,000 operations with 9 frames each, on a busy machine: unpickling in C 2.2 µs per operation, the
columns 2.3 µs. Reading from BytesIO is three times slower than through a BufferedReader, which can peek.
"""

from __future__ import annotations

import ast
import gc
import io
import pickle
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NoReturn

import msgspec

from harness.triage.evidence import Frame, Group
from harness.triage.flight import torchcomms
from harness.triage.flight.flight import COUNTED, MAX_DUMP_BYTES, Flight, FlightError, NotADump, Status, integers
from harness.triage.flight.operations import Kind
from probes.errors import FormatError
from probes.limits import RANKS, WHOLE, bounded, check_whole

FRAMES = 64  # frames kept of a stack, innermost first
_FIELDS = (
    "record_id", "process_group", "collective_seq_id", "p2p_seq_id", "profiling_name", "input_sizes", "output_sizes",
    "input_dtypes", "output_dtypes", "time_created_ns", "state", "retired", "timeout_ms", "is_p2p",
    "pg_id",
)  # fmt: skip


class Entry(msgspec.Struct, gc=False):
    """The fields that are read of one operation. Defaults stand for fields that older formats did not write."""

    record_id: int = 0
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    profiling_name: str = ""
    input_sizes: list[list[int]] = msgspec.field(default_factory=list)
    output_sizes: list[list[int]] = msgspec.field(default_factory=list)
    input_dtypes: list[str] = msgspec.field(default_factory=list)
    output_dtypes: list[str] = msgspec.field(default_factory=list)
    time_created_ns: int = 0
    state: str = ""
    retired: bool = False
    timeout_ms: int = -1
    is_p2p: bool = False
    pg_id: int = -1
    duration_ms: float | None = None


class Dump(msgspec.Struct):
    version: str | None = None
    comm_lib_version: str = ""
    pg_config: dict[str, dict[str, str]] | None = None
    pg_status: Any = None
    entries: list[Entry] | None = None


class _Plain(pickle.Unpickler):
    """An unpickler that builds only dicts, lists, tuples, strings and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise FlightError(f"it asks for {module}.{name}: a flight recorder dump holds plain data only, refused")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise FlightError("it refers to an object outside the file: a dump holds plain data only, refused")


def decode(data: bytes, name: str) -> Flight:
    """Decode the bytes of a file into a Flight without rank. Raises FlightError with one sentence that names the
    file."""
    if not data:
        raise FlightError(f"{name} is empty: the rank was ended before its dump was written")
    if len(data) > MAX_DUMP_BYTES:
        raise too_large(name, len(data))
    collecting = gc.isenabled()
    gc.disable()  # the decoder makes a hundred thousand small containers, none of them garbage
    try:
        if data[:1] == b"\x80":
            return _from_pickle(data, name)
        if data[:64].lstrip()[:1] == b"{":
            return _from_json(data, name)
    except MemoryError:
        raise FlightError(f"{name} needs more memory than a dump may take: refused") from None
    except RecursionError:
        raise FlightError(f"{name} is nested deeper than any dump: refused") from None
    finally:
        if collecting:
            gc.enable()
    raise NotADump(f"{name} is no flight recorder dump: neither its pickle nor its JSON")


def too_large(name: str, size: int) -> FlightError:
    return FlightError(
        f"{name} has {size / (1 << 20):,.0f} MiB: dumps over {MAX_DUMP_BYTES >> 20} MiB are not read",
        fix="lower TORCH_FR_BUFFER_SIZE (2000 is torch's default) and dump again",
    )


def _from_json(data: bytes, name: str) -> Flight:
    try:
        dump = msgspec.json.decode(data, type=Dump)
    except msgspec.ValidationError as error:
        if b'"pg_config"' not in data and b'"collective_seq_id"' not in data:
            raise NotADump(f"{name} is JSON, but no flight recorder dump") from error
        raise FlightError(f"{name} is no flight recorder dump as torch writes it: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"}\n{" in data and b'"pg_config"' not in data and b'"collective_seq_id"' not in data:
            raise NotADump(f"{name} is a JSON object a line, and no flight recorder dump") from error
        raise FlightError(f"{name} is cut short or damaged: {error}") from error
    if dump.version is None and dump.pg_config is None and dump.entries is None:
        raise NotADump(f"{name} is JSON, but no flight recorder dump: it has neither version, pg_config nor entries")
    entries = dump.entries or []
    columns: Sequence[Sequence[Any]] = list(zip(*map(attrgetter(*_FIELDS), entries), strict=True)) if entries else []
    if torchcomms.wrote(columns):
        columns, _ = torchcomms.renumbered(columns, None, name)
        entries, dump.pg_status = [], None
    try:
        flight = _flight(name, dump.version or "", dump.comm_lib_version, dump.pg_config or {}, columns, None)
        flight = _timed(flight, [entry.duration_ms for entry in entries])
    except OverflowError:  # JSON has no largest integer
        raise _damaged(name, columns) from None
    used = ((entry.pg_id, entry.process_group) for entry in reversed(entries))
    return _standing(flight, dump.pg_status, used, dump.pg_config or {})


def _from_pickle(data: bytes, name: str) -> Flight:
    reader = io.BufferedReader(io.BytesIO(data), 1 << 20)
    try:
        dump = _Plain(reader).load()
    except FlightError as error:
        raise FlightError(f"{name} is a hostile or foreign pickle: {error.message}") from None
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # damaged bytes can raise any exception in the unpickler; each means a bad file
        raise FlightError(f"{name} is cut short or damaged: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(dump, dict) or not dump.keys() & {"version", "pg_config", "entries"}:
        raise NotADump(f"{name} is a pickle, but no flight recorder dump")
    entries = dump.get("entries") or []
    try:
        if not isinstance(entries, list):
            raise TypeError(f"entries are a {type(entries).__name__}")
        columns, frames = _entry_columns(entries)
        if torchcomms.wrote(columns):
            columns, frames = torchcomms.renumbered(columns, frames, name)
            entries = []
            dump["pg_status"] = None
        config = msgspec.convert(dump.get("pg_config") or {}, dict[str, dict[str, str]])
        flight = _flight(name, str(dump.get("version") or ""), str(dump.get("comm_lib_version") or ""), config, columns,
                         frames)  # fmt: skip
        flight = _timed(flight, [entry.get("duration_ms") for entry in entries])
        used = ((entry.get("pg_id"), entry.get("process_group")) for entry in reversed(entries))
        return _standing(flight, dump.get("pg_status"), used, config)
    except FlightError:
        raise
    except OverflowError:
        raise _damaged(name, columns) from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FlightError(f"{name} is no flight recorder dump as torch writes it: {error}") from error


def _damaged(name: str, columns: Sequence[Sequence[Any]]) -> FlightError:
    """The error for a dump with a number of more than 64 bits in one of _FIELDS."""
    for field, column in zip(_FIELDS, columns, strict=True):
        try:
            check_whole(column, field)
        except FormatError as error:
            return FlightError(f"{name} is damaged: {error}")
    return FlightError(f"{name} is damaged: a number has more than 64 bits")


def _timed(flight: Flight, durations_ms: Sequence[float | None]) -> Flight:
    """The flight with the durations of its operations, where there is one for each row."""
    if len(durations_ms) != len(flight) or not any(durations_ms):
        return flight
    microseconds = integers(-1 if duration is None else round(1000 * duration) for duration in durations_ms)
    return replace(flight, duration_us=microseconds)


def _standing(flight: Flight, raw: Any, used: Iterable[tuple[Any, Any]], config: dict[str, dict[str, str]]) -> Flight:
    """The flight with its pg_status.

    `used`: for each operation, newest first, torch's number of its group and that group's (name, description). Nothing
    is taken from gloo, which names no group in pg_config, nor from a pg_status that is not as torch writes it.
    """
    group_names = {name for name in config if name}
    if not isinstance(raw, dict) or not group_names or flight.backend not in (*COUNTED, ""):
        return flight
    status = {
        str(number): group_status
        for number, raw_status in raw.items()
        if (group_status := _status(raw_status, flight.name)) is not None
    }
    handles: dict[str, str] = {}
    for number, pair in used if status else ():
        if str(number) in status and str(number) not in handles and isinstance(pair, (tuple, list)) and pair:
            handles[str(number)] = str(pair[0])
            if len(handles) == len(status):
                break
    if not status.keys() - handles.keys():
        return replace(flight, status=status, handles=handles)
    members, _ = _memberships(config, [], flight.name)
    return replace(flight, status=status, handles=handles, config=tuple(members.values()))


def _status(raw_status: Any, name: str) -> Status | None:
    """How far a group is; None if it is not written as torch writes it.

    Raises FlightError for an impossible number: the dump is damaged, and without its status the rank would look as if
    it had left its group.
    """
    try:
        counts = (int(raw_status[f"last_{what}_collective"]) for what in ("enqueued", "started", "completed"))
        status = Status(*(bounded(count, WHOLE, "a sequence number", least=-1) for count in counts))
    except ValueError as error:
        raise FlightError(f"{name} is damaged: in pg_status, {error}") from error
    except (KeyError, TypeError):
        return None
    return status if status.enqueued >= max(0, status.completed) else None


def _entry_columns(entries: list[Any]) -> tuple[Sequence[Sequence[Any]], Sequence[Any] | None]:
    """One sequence for each of _FIELDS, and the frames if there are any."""
    if not entries:
        return [], None
    try:
        *columns, frames = zip(*map(itemgetter(*_FIELDS, "frames"), entries), strict=True)
        return columns, frames
    except KeyError:  # an older format, or a dump without frames
        defaults = msgspec.structs.asdict(Entry())
        for entry in entries:
            if "collective_seq_id" not in entry and "seq_id" in entry:  # format 1
                entry["collective_seq_id"] = entry["seq_id"]
        filled_columns = [[entry.get(field, defaults[field]) for entry in entries] for field in _FIELDS]
        return filled_columns, [entry.get("frames") or [] for entry in entries]


def _flight(
    name: str, version: str, library: str, config: dict[str, dict[str, str]], columns: Sequence[Sequence[Any]],
    frames: Sequence[Any] | None,
) -> Flight:  # fmt: skip
    notes: list[str] = []
    if version and not version.startswith("2."):
        notes.append(f"{name}: dump format {version}, where 2.x is known: fields may be missing")
    elif not version:
        notes.append(f"{name}: the dump does not say its format")
    unread: list[str] = []
    groups_by_name, mentioned = _memberships(config, unread, name)
    world = next(
        (group.world_size for group in groups_by_name.values() if group.desc == "default_pg" and group.members), None
    )
    if not columns:
        notes.append(f"{name}: no operations; none was enqueued yet, or the recorder is off (TORCH_FR_BUFFER_SIZE=0)")
        return Flight(name, version=version, library=library, world_size=world, mentioned=mentioned,
                      groups=tuple(groups_by_name.values()), notes=tuple(notes), unread=tuple(unread))  # fmt: skip
    (record, pg, collective_seq, p2p_seq, operation, inputs, outputs, input_types, output_types, created, state,
     retired, timeout, is_p2p, pg_id) = columns  # fmt: skip
    collective_seqs, p2p_seqs, _ = integers(collective_seq), integers(p2p_seq), integers(pg_id)
    # Operations repeat from step to step, so kinds, groups and stacks are stored once and columns hold their numbers.
    backends, kinds, kind = _kinds(operation, inputs, outputs, input_types, output_types, name)
    rows = range(len(record))
    gloo = [backends[number] == "gloo" for number in kind]  # gloo records no states: a finished operation is "retired"
    groups, which = _groups(groups_by_name, pg, operation)
    stacks, stack = _stacks(frames, len(record))
    return Flight(
        name,
        version=version,
        backend=backends[kind[-1]],
        library=library,
        world_size=world,
        mentioned=mentioned,
        groups=groups,
        kinds=kinds,
        stacks=stacks,
        record=integers(record),
        group=which,
        seq=integers(p2p_seqs[row] if is_p2p[row] else collective_seqs[row] for row in rows),
        kind=kind,
        stack=stack,
        created_ns=integers(created),
        timeout_ms=integers(timeout),
        duration_us=integers([-1]) * len(record),
        done=bytes(bool(retired[row]) if gloo[row] else state[row] == "completed" for row in rows),
        started=bytes(gloo[row] or state[row] != "scheduled" for row in rows),
        p2p=bytes(map(bool, is_p2p)),
        notes=tuple(notes),
        unread=tuple(unread),
    )


def _memberships(
    config: dict[str, dict[str, str]], unread: list[str], name: str
) -> tuple[dict[str, Group], tuple[int, ...]]:
    """Groups with members by name, and all ranks that occur.

    gloo writes one entry without a name for all its groups, that of the last group or of none. It gives no group's
    members, but the ranks in it exist.
    """
    groups_by_name: dict[str, Group] = {}
    mentioned: set[int] = set()
    for key, value in config.items():
        try:
            ranks = _ranks(value.get("ranks") or "[]")
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            why = f": {error}" if isinstance(error, FormatError) else ""
            unread.append(f"{name}: the members of group {key or 'without a name'} are not readable{why}")
            ranks = ()
        mentioned.update(ranks)
        if key:
            groups_by_name[key] = Group(key, ranks, desc=value.get("desc", ""), world_size=len(ranks))
    return groups_by_name, tuple(sorted(mentioned))


@lru_cache(maxsize=64)
def _ranks(text: str) -> tuple[int, ...]:
    """Members as torch writes them, "[0, 1, 2]". Cached, because a thousand ranks write the same thousand numbers."""
    return tuple(bounded(int(rank), RANKS, "a rank") for rank in ast.literal_eval(text))


def _group(groups_by_name: dict[str, Group], name: str, desc: str, backend: str) -> Group:
    members = groups_by_name[name].members if name in groups_by_name else ()
    return Group(name, members, backend, desc, len(members))


def _groups(
    groups_by_name: dict[str, Group], names: Sequence[Any], operation: Sequence[str]
) -> tuple[tuple[Group, ...], array[int]]:
    """The groups that occur, one for each pair of name and backend, and for each operation the number of its group."""
    group_numbers: dict[tuple[str, str, str], int] = {}
    numbers: dict[Any, int] = {}
    column = []
    if isinstance(names[0], list):  # a tool that rewrote the dump may have made lists of them
        names = [tuple(name_pair) for name_pair in names]
    for pair in zip(names, operation, strict=True):
        number = numbers.get(pair)
        if number is None:
            (name, desc), (backend, colon, _) = pair[0], pair[1].partition(":")
            number = numbers[pair] = group_numbers.setdefault(
                (str(name), str(desc), backend if colon else ""), len(group_numbers)
            )
        column.append(number)
    return tuple(_group(groups_by_name, *key) for key in group_numbers), integers(column)


def _kinds(
    operation: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any], input_types: Sequence[Any],
    output_types: Sequence[Any], name: str,
) -> tuple[list[str], tuple[Kind, ...], array[int]]:  # fmt: skip
    """The backend of each kind, the kinds, and for each operation the number of its kind."""
    kind_numbers: dict[bytes, int] = {}
    kinds: list[Kind] = []
    backends: list[str] = []
    column = []
    key_of = msgspec.msgpack.Encoder().encode  # encoding lists of lists is five times as fast as making text of them
    for row, key in enumerate(map(key_of, zip(operation, inputs, outputs, input_types, output_types, strict=True))):
        number = kind_numbers.get(key)
        if number is None:
            if not isinstance(operation[row], str):
                raise FlightError(f"{name}: the name of operation {row} is not text")
            head, colon, tail = operation[row].partition(":")
            sizes = [tuple(tuple(map(int, shape)) for shape in shapes) for shapes in (inputs[row], outputs[row])]
            types = [tuple(map(str, dtypes)) for dtypes in (input_types[row], output_types[row])]
            number = kind_numbers[key] = len(kinds)
            kinds.append(Kind(tail if colon else head, sizes[0], sizes[1], types[0], types[1]))
            backends.append(head if colon else "")
        column.append(number)
    return backends, tuple(kinds), integers(column)


def _line(number: Any) -> int:
    return bounded(int(number), WHOLE, "a line")


def _stacks(frames: Sequence[Any] | None, count: int) -> tuple[tuple[tuple[Frame, ...], ...], array[int]]:
    """The distinct stacks, and for each operation the number of its stack. torch shares equal frames, so their ids
    serve as key."""
    if frames is None:
        return (), integers([-1]) * count
    stack_numbers: dict[tuple[int, ...], int] = {}
    stacks: dict[tuple[Frame, ...], int] = {}
    column = []
    for entry_frames in frames:
        key = tuple(map(id, entry_frames))
        number = stack_numbers.get(key)
        if number is None:
            stack = tuple(Frame(str(f["name"]), str(f["filename"]), _line(f["line"])) for f in entry_frames[:FRAMES])
            number = stack_numbers[key] = stacks.setdefault(stack, len(stacks)) if stack else -1
        column.append(number)
    return tuple(stacks), integers(column)
