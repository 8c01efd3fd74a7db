"""The history of nights in SQLite or PostgreSQL: the result of every cell on every night, and where its recordings
are.

A cell of a night is written in one transaction. SQLite runs in WAL mode and syncs each commit, so that a written
result survives SIGKILL. Several machines may write at once. `MIGRATIONS` create and update the tables, each in a
transaction.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from harness import dates, extras, verdict_file
from harness.command_options import command_line
from harness.errors import HarnessError
from harness.nightly import HISTORY
from harness.nightly.judge import WINDOW, Past
from harness.nightly.observation import Facts, Observation
from harness.other_paths import disk_of, free_path, nearest_folder
from probes import limits
from probes.files import FILE_MODE, make_folder
from probes.format import number
from reports import codec
from reports.nightly_model import CellResult, Change, Night, to_read

_LOCK = 0x6E696768746C79  # the key of PostgreSQL's advisory lock: "nightly" in ASCII
_WAIT_S = 60  # seconds to wait for another writer

metadata = sa.MetaData()


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _columns(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns of one type that are never NULL."""
    return [sa.Column(name, kind, nullable=False) for name in names]


def _reference(name: str, column: str, *, primary_key: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.ForeignKey(column), nullable=False, primary_key=primary_key)


nights = sa.Table(
    "nights", metadata, _id(), *_columns(sa.Text, "matrix", "machine", "started"), sa.Column("finished", sa.Text),
    *_columns(sa.JSON, "planned", "left_out"),
)  # fmt: skip
cells = sa.Table("cells", metadata, _id(), sa.Column("name", sa.Text, nullable=False, unique=True))
facts = sa.Table(
    "facts", metadata, _id(), sa.Column("digest", sa.String(64), nullable=False, unique=True),
    *_columns(sa.JSON, "checks", "findings", "versions", "settings"),
)  # fmt: skip
_verdict_columns = (
    _id(),
    _reference("night_id", "nights.id"),
    _reference("cell_id", "cells.id"),
    _reference("facts_id", "facts.id"),
    *_columns(sa.Text, "status", "verdict"),
    *_columns(sa.Integer, "exit_code"),
    *_columns(sa.Text, "reason"),
    *_columns(sa.Float, "seconds"),
    *_columns(sa.JSON, "metrics", "phases"),
    *_columns(sa.JSON, "changes"),  # of CellResult: new, standing, gone, explains, known, confirmation
    *_columns(sa.Text, "reproduce"),
)
verdicts = sa.Table(
    "verdicts", metadata, *_verdict_columns,
    sa.UniqueConstraint("night_id", "cell_id"), sa.Index("verdicts_of_cell", "cell_id", "night_id"),
)  # fmt: skip
causes = sa.Table(
    "causes", metadata, _reference("verdict_id", "verdicts.id", primary_key=True),
    sa.Column("name", sa.Text, primary_key=True), sa.Index("causes_by_name", "name"),
)  # fmt: skip
_recording_columns = (
    _reference("verdict_id", "verdicts.id", primary_key=True),
    *_columns(sa.Text, "machine", "path", "digest"),  # digest: of verdict.json
    *_columns(sa.BigInteger, "bytes"),
    *_columns(sa.Boolean, "changed"),
    sa.Column("removed", sa.Text),
)
recordings = sa.Table("recordings", metadata, *_recording_columns, sa.Index("recordings_kept", "removed"))
schema = sa.Table("harness_history", sa.MetaData(), sa.Column("version", sa.Integer, nullable=False))

# Each migration converts a history from the version that is its index in this list to the next version. Never edit a
# released migration; add another one.
MIGRATIONS: list[Callable[[sa.Connection], None]] = [lambda connection: metadata.create_all(connection)]


class HistoryUnusable(HarnessError):
    """A history that is corrupt, too new, of another program, or not reachable."""


class NoHistory(HistoryUnusable):
    """There is no history at this place, and it was not to be created."""


@dataclass(frozen=True)
class Retention:
    """How long recordings are kept. None stands for no limit.

    days: the maximum age.
    changed: recordings of nights on which the cell changed are kept `changed` times as long.
    count: the maximum number of recordings.
    size: the maximum total size, in bytes.
    """

    days: int
    changed: int = 4
    count: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Seen:
    """The last run of a cell.

    night: the number of that night.
    status: how the run ended.
    seconds: the duration of that run.
    judged_s: the duration of its last run that came to a verdict; None where none did.
    """

    night: int
    status: str
    seconds: float
    judged_s: float | None = None

    def estimate_s(self, limit_s: float) -> float:
        """The duration of the next run. One that could not run may have ended in its first second, or at its limit."""
        if self.status != "COULD NOT RUN":
            return self.seconds
        return max(self.seconds, limit_s if self.judged_s is None else self.judged_s)


Fix = Callable[[str], str]  # the advice about a place of a history that cannot be used


class History:
    """The history. Open it with `History.at`, and use it as a context manager."""

    def __init__(self, engine: sa.Engine, where: str, fix: Fix) -> None:
        self._engine, self.where, self._fix = engine, where, fix

    @staticmethod
    def at(place: str, *, create: bool = True, fix: Fix | None = None) -> History:
        """Open the history in a file or at `postgresql://…`, and create it where there is none.

        fix: the advice about a place that cannot be used, by default another file to write. A command that only reads
        passes `history_to_read`.
        Raises HistoryUnusable. With `create=False`, raises NoHistory where there is no history.
        """
        fix = fix or history_to_write
        url = _url(place, fix)
        where = url.render_as_string(hide_password=True) if url.host or "://" in place else str(url.database)
        sqlite = url.get_backend_name() == "sqlite"
        if sqlite:
            _prepare(Path(str(url.database)), where, create=create, fix=fix)
        arguments: dict[str, Any] = {"timeout": _WAIT_S} if sqlite else {"connect_timeout": 10}
        engine = sa.create_engine(url, connect_args=arguments)
        if sqlite:
            sa.event.listen(engine, "connect", _durable)
            sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        history = History(engine, where, fix)
        alone = _alone_in(Path(str(url.database)).parent) if sqlite else contextlib.nullcontext()
        with alone, history._write() as connection:
            history._migrate(connection, sqlite, create)
        return history

    def __enter__(self) -> History:
        return self

    def __exit__(self, *exception: object) -> None:
        self._engine.dispose()

    def _migrate(self, connection: sa.Connection, sqlite: bool, create: bool) -> None:
        if not sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        tables = sa.inspect(connection).get_table_names()
        if schema.name not in tables:
            if not create:
                raise _none_at(self.where)
            schema.create(connection)
            connection.execute(schema.insert().values(version=0))
        version = connection.execute(sa.select(schema.c.version)).scalar_one()
        if version > len(MIGRATIONS):
            raise HistoryUnusable(
                f"{self.where} has version {version}; this installation knows {len(MIGRATIONS)}",
                fix=extras.upgrade_command(),
            )
        if version == len(MIGRATIONS):  # writes nothing: a reader of the team's database may lack write access
            return
        for migration in MIGRATIONS[version:]:
            migration(connection)
        connection.execute(schema.update().values(version=len(MIGRATIONS)))

    @contextlib.contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self._readable_errors(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        with self._readable_errors(), self._engine.connect() as connection:
            if self._engine.dialect.name == "sqlite":  # does not block writers: WAL gives a reader one state
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection

    @contextlib.contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Convert errors of the database to one sentence, without its statements and without the password."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
            full = f"{disk_of(self.where)}   # free some space, or give a --history on another disk"
            fix = full if _is_full(error) else self._fix(self.where)
            raise HistoryUnusable(f"the history {self.where}: {lines[0]}", fix=fix) from error
        except (sa.exc.SQLAlchemyError, json.JSONDecodeError) as error:
            what = str(error).splitlines()[0]
            raise HistoryUnusable(f"the history {self.where} is damaged: {what}", fix=self._fix(self.where)) from error

    def command(self, *words: str, **options: Any) -> str:
        """Return `harness history WORDS` about this history."""
        return command_line("history", *words, **options, **_history_option(self.where))

    # --- a night

    def begin(self, matrix: str, planned: Sequence[str], left_out: Sequence[tuple[str, str]]) -> int:
        """Start a new night and return its number."""
        values = {"matrix": matrix, "machine": socket.gethostname(), "started": dates.now(), "planned": list(planned),
                  "left_out": [list(pair) for pair in left_out]}  # fmt: skip
        with self._write() as connection:
            return int(connection.execute(nights.insert().values(values).returning(nights.c.id)).scalar_one())

    def unfinished(self, matrix: str) -> tuple[int, list[str]] | None:
        """Return (night, cells to run) of the newest interrupted night of a matrix on this machine, or None.

        The cells are those that ran neither in that night nor in a later one. An interrupted night whose cells all
        ran later is skipped, unless it is the last night: then only its end is missing.
        """
        conditions = (nights.c.matrix == matrix, nights.c.machine == socket.gethostname())
        cut = sa.select(nights).where(*conditions, nights.c.finished.is_(None)).order_by(nights.c.id.desc())
        with self._read() as connection:
            last = connection.execute(sa.select(sa.func.max(nights.c.id)).where(*conditions)).scalar()
            for row in connection.execute(cut).all():
                ran = sa.select(cells.c.name).join_from(verdicts, cells).join(nights)
                ran = ran.where(*conditions, verdicts.c.night_id >= row.id).distinct()
                done = set(connection.execute(ran).scalars())
                remaining = [name for name in row.planned if name not in done]
                if remaining or row.id == last:
                    return row.id, remaining
        return None

    def finish(self, night: int, left_out: Sequence[tuple[str, str]]) -> None:
        """Mark a night as finished. `left_out`: cells that were not run and why.

        They are added to those of the night's start, because a resumed night plans only the remaining cells.
        """
        of_night = nights.c.id == night
        with self._write() as connection:
            first = connection.execute(sa.select(nights.c.left_out).where(of_night)).scalar_one()
            reasons = dict(first) | dict(left_out)
            values = {"finished": dates.now(), "left_out": [list(pair) for pair in reasons.items()]}
            connection.execute(nights.update().where(of_night).values(values))

    def add(self, night: int, observation: Observation, result: CellResult, folder: Path | None = None) -> None:
        """Write a cell of a night with everything that belongs to it, in one transaction.

        `folder` contains its recording and the recordings of its second runs.
        """
        changes = {name: codec.builtins(getattr(result, name))
                   for name in ("new", "standing", "gone", "explains", "known", "confirmation")}  # fmt: skip
        with self._write() as connection:
            values = {
                "night_id": night, "cell_id": self._id(connection, cells, {"name": result.cell}),
                "facts_id": self._facts(connection, observation.facts), "status": result.status,
                "verdict": observation.verdict, "exit_code": observation.exit_code, "reason": observation.reason,
                "seconds": observation.seconds, "metrics": codec.builtins(dict(observation.metrics)),
                "phases": codec.builtins(dict(observation.phases)), "changes": changes,
                "reproduce": observation.reproduce,
            }  # fmt: skip
            row = connection.execute(verdicts.insert().values(values).returning(verdicts.c.id)).scalar_one()
            for name in sorted(set(observation.causes)):
                connection.execute(causes.insert().values(verdict_id=row, name=name))
            if observation.recording:
                connection.execute(recordings.insert().values(
                    verdict_id=row, machine=socket.gethostname(), changed=result.status not in ("OK", "KNOWN"),
                    **_on_disk(Path(observation.recording), folder),
                ))  # fmt: skip

    @staticmethod
    def _id(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> int:
        """Return the id of the row with these values, and insert it where it is missing.

        The table has one unique column, which comes first in `values`.
        """
        unique = next(iter(values))
        if connection.dialect.name == "sqlite":
            from sqlalchemy.dialects.sqlite import insert as upsert
        else:
            from sqlalchemy.dialects.postgresql import insert as upsert  # type: ignore[assignment]
        connection.execute(upsert(table).values(dict(values)).on_conflict_do_nothing(index_elements=[unique]))
        return int(connection.execute(sa.select(table.c.id).where(table.c[unique] == values[unique])).scalar_one())

    def _facts(self, connection: sa.Connection, value: Facts) -> int:
        columns = {name: dict(part) for name, part in vars(value).items()}
        digest = hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()
        return self._id(connection, facts, {"digest": digest, **columns})

    # --- what was

    def past(self, cell: str, *, of: int | None = None, before: int | None = None, last: int = WINDOW) -> list[Past]:
        """Return the last nights of a cell, oldest first.

        of: a night; only nights of its matrix are returned, because two matrices may have cells of the same name.
        before: only nights before this one are returned.
        last: the maximum number of nights.
        """
        query = (
            sa.select(verdicts, facts.c.checks, facts.c.findings, facts.c.versions, facts.c.settings)
            .join(cells).join(facts).where(cells.c.name == cell)
            .order_by(verdicts.c.night_id.desc()).limit(last)
        )  # fmt: skip
        if of is not None:
            matrix = sa.select(nights.c.matrix).where(nights.c.id == of).scalar_subquery()
            query = query.join(nights).where(nights.c.matrix == matrix)
        if before is not None:
            query = query.where(verdicts.c.night_id < before)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [_past(row) for row in reversed(rows)]

    def last_runs(self, matrix: str) -> dict[str, Seen]:
        """Return the last run of every cell of a matrix that ever ran."""
        with self._read() as connection:
            rows = connection.execute(_newest(matrix)).all()
            # Cell by cell, through the index: one query for all would read every verdict.
            judged = {
                row.name: connection.scalar(_last_judged(matrix, row.cell_id))
                for row in rows
                if row.status == "COULD NOT RUN"
            }
        return {row.name: Seen(row.night_id, row.status, row.seconds, judged.get(row.name)) for row in rows}

    def listing(self, limit: int | None = None) -> list[tuple[Any, dict[str, int]]]:
        """Return the last nights, newest first, each with the number of cells per status."""
        with self._read() as connection:
            rows = connection.execute(sa.select(nights).order_by(nights.c.id.desc()).limit(limit)).all()
            counted = sa.select(verdicts.c.night_id, verdicts.c.status, sa.func.count()).where(
                verdicts.c.night_id.in_([row.id for row in rows])
            )
            counts: dict[int, dict[str, int]] = {}
            for night, status, count in connection.execute(counted.group_by(verdicts.c.night_id, verdicts.c.status)):
                counts.setdefault(night, {})[status] = count
        return [(row, counts.get(row.id, {})) for row in rows]

    def night(self, number: int | None = None) -> Night:
        """Return one night with all its cells; None stands for the last night. Raises HistoryUnusable where it does
        not exist.
        """
        chosen = sa.select(nights).order_by(nights.c.id.desc()).limit(1)
        if number is not None:
            chosen = chosen.where(nights.c.id == number)
        query = sa.select(verdicts, cells.c.name, recordings.c.path, recordings.c.removed).join(cells)
        with self._read() as connection:
            row = connection.execute(chosen).one_or_none()
            if row is None:
                what, fix = "no night", _night_at(self.where)
                if number is not None:
                    what, fix = f"no night {number}", self.command("list")
                raise HistoryUnusable(f"{self.where} has {what}", fix=fix)
            query = query.outerjoin(recordings).where(verdicts.c.night_id == row.id).order_by(verdicts.c.id)
            results = tuple(_result(verdict_row) for verdict_row in connection.execute(query))
        left_out = tuple((name, why) for name, why in row.left_out)
        return Night(row.id, row.matrix, row.started, results, left_out, row.finished is not None)

    def course(self, nights_shown: int) -> Iterator[Any]:
        """Yield the results of every cell on the last nights, by cell and night, for the dashboard."""
        with self._read() as connection:
            first = sa.select(nights.c.id).order_by(nights.c.id.desc()).offset(nights_shown - 1).limit(1)
            oldest = connection.execute(first).scalar() or 0
            query = (
                sa.select(cells.c.name, *verdicts.c["night_id", "status", "verdict", "seconds"],
                          *(sa.cast(verdicts.c[name], sa.Text).label(name) for name in ("metrics", "changes")),
                          *recordings.c["path", "removed"])
                .join_from(verdicts, cells).outerjoin(recordings)
                .where(verdicts.c.night_id >= oldest).order_by(cells.c.name, verdicts.c.night_id)
            )  # fmt: skip
            yield from connection.execution_options(yield_per=20_000).execute(query)

    # --- retention

    def prune(self, keep: Retention, below: Path, *, today: datetime.datetime | None = None) -> int:
        """Remove this machine's recordings that exceed the age, the number or the size to keep. Return how many were
        removed.

        A recording is removed with the second runs and failed attempts in its cell's folder. Recordings outside
        `below` belong to another --out: they are neither counted nor removed.
        """
        today, root = today or dates.utc(), below.resolve()
        query = (
            sa.select(recordings, nights.c.started).join_from(recordings, verdicts).join(nights)
            .where(recordings.c.removed.is_(None), recordings.c.machine == socket.gethostname())
            .order_by(recordings.c.changed.desc(), verdicts.c.night_id.desc())
        )  # fmt: skip
        with self._read() as connection:
            rows = connection.execute(query).all()
        count, total, removed = 0, 0, 0
        for row in rows:
            folder = Path(row.path)
            if folder.is_symlink() or root not in folder.resolve().parents:
                continue
            days = keep.days * (keep.changed if row.changed else 1)
            old = (today - datetime.datetime.fromisoformat(row.started)).days > days
            more = keep.count is not None and count >= keep.count
            large = keep.size is not None and total + row.bytes > keep.size
            if not (old or more or large):
                count, total = count + 1, total + row.bytes
                continue
            shutil.rmtree(_of_cell(folder, root), ignore_errors=True)
            if folder.exists():  # no permission, or in use: the next night tries again
                continue
            with self._write() as connection:
                removal = recordings.update().where(recordings.c.verdict_id == row.verdict_id)
                connection.execute(removal.values(removed=dates.now()))
            removed += 1
        return removed


def _of_cell(recording: Path, root: Path) -> Path:
    """Return the folder to remove with a recording: its cell's folder night-N/CELL below `root`, or else the
    recording.
    """
    inside = recording.resolve().relative_to(root).parts
    return root.joinpath(*inside[:2]) if len(inside) > 2 and inside[0].startswith("night-") else recording


def _none_at(where: str) -> NoHistory:
    can_make = "://" in where or _can_make(Path(where))
    fix = _option_of_a_history_near(where) or _night_at(where if can_make else str(_writable(where)))
    return NoHistory(f"there is no history {where}", fix=fix)


def _history_option(place: str) -> dict[str, str]:
    return {} if place == HISTORY else {"history": place}


def _night_at(place: str) -> str:
    """The command that makes a history at the place."""
    return f"{command_line('nightly', 'MATRIX.toml', **_history_option(place))}   # makes it"


def _prepare(file: Path, where: str, *, create: bool, fix: Fix) -> None:
    """Make the file of a history and its folder. Raises HistoryUnusable, and NoHistory where it must not be made."""
    if file.is_dir():
        raise HistoryUnusable(f"the history {file} is a directory", fix=fix(where))
    if file.exists() and not file.is_file():
        raise HistoryUnusable(f"the history {file}: {limits.NOT_REGULAR}", fix=fix(where))
    if not create and not file.exists():
        raise _none_at(where)
    try:
        make_folder(file.parent)
    except OSError as error:
        raise HistoryUnusable(f"{file.parent} cannot be made: {error.strerror}", fix=fix(where)) from error
    _refuse_foreign(file, fix)
    with contextlib.suppress(OSError):  # SQLite says why; it gives its other files the mode of this one
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def history_to_write(place: str) -> str:
    """The option with a history that nights can be written to, for one at `place` that cannot be used."""
    return f"--history {shlex.quote(str(_writable(place)))}   # or postgresql://HOST/DATABASE"


def history_to_read(place: str) -> str:
    """The option with a history that exists, for one at `place` that cannot be read; where there is none, the command
    that makes one.
    """
    return _option_of_a_history_near(place) or _night_at(str(_writable(place)))


def _option_of_a_history_near(place: str) -> str:
    """The option with another history: in the folder of a file, or else the default one; empty where neither exists."""
    path = Path(place)
    beside = [] if "://" in place else _databases(path if path.is_dir() else path.parent)
    others = [file for file in (*beside, Path(HISTORY)) if file.resolve() != path.resolve()]
    existing = next(filter(_is_history, others), None)
    return f"--history {shlex.quote(str(existing))}   # this one exists" if existing else ""


def _writable(place: str) -> Path:
    """A file that is a history or does not exist yet: in the folder of `place`, or else in the current one."""
    path = Path("history.db" if "://" in place else place)
    file = path / "history.db" if path.is_dir() else path
    if file != path and _is_history(file):
        return file
    return free_path(file if _can_make(file) else Path(file.name))


def _databases(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.db"))
    except OSError:
        return []


def _can_make(file: Path) -> bool:
    """Whether a file can be made in this folder, or in a new one of this path. SQLite locks the folder and writes
    other files beside it, so a special file system does not do."""
    folder = nearest_folder(file)
    special = any(folder.is_relative_to(root) for root in ("/dev", "/proc", "/sys"))
    return os.access(folder, os.W_OK | os.X_OK) and not special and all(not path.is_file() for path in file.parents)


def _url(place: str, fix: Fix) -> URL:
    if "://" not in place:
        return URL.create("sqlite", database=place)
    try:
        url = make_url(place)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise HistoryUnusable("--history is not an address", fix=fix(place)) from error
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        message = f"--history {url.drivername}://…: a history is a file or postgresql://…"
        raise HistoryUnusable(message, fix=fix(place))
    return url.set(drivername="postgresql+psycopg")


def _tables(file: Path) -> set[str]:
    """The tables of a database. Raises sqlite3.Error for a file that is none."""
    with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _is_history(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        return schema.name in _tables(file)
    except sqlite3.Error:
        return False


def _refuse_foreign(file: Path, fix: Fix) -> None:
    """Raise HistoryUnusable for a database of another program, before anything is written to it."""
    if not file.exists():
        return
    try:
        tables = _tables(file)
    except sqlite3.Error as error:
        raise HistoryUnusable(f"the history {file}: {error}", fix=fix(str(file))) from error
    if tables and schema.name not in tables:
        raise HistoryUnusable(f"{file} is a database, but no history of this harness", fix=fix(str(file)))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder for one process at a time.

    SQLite switches a new file to WAL mode only while no other process has it open, and does not wait for that.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _durable(connection: Any, record: Any) -> None:
    """Configure a connection so that every commit is synced and we start transactions ourselves.

    The driver would start them too late to be safe.
    """
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _on_disk(folder: Path, of_cell: Path | None) -> dict[str, Any]:
    paths = (of_cell or folder).rglob("*")
    size = sum(path.lstat().st_size for path in paths if path.is_file() and not path.is_symlink())
    try:
        digest = hashlib.sha256((folder / verdict_file.NAME).read_bytes()).hexdigest()
    except OSError:
        digest = ""
    return {"path": str(folder), "bytes": size, "digest": digest}


def _changes(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a CellResult that the database stores as JSON."""
    lists = {name: tuple(codec.convert(change, Change) for change in value[name])
             for name in ("new", "standing", "gone", "explains")}  # fmt: skip
    return {**lists, "known": tuple(value["known"]), "confirmation": value["confirmation"]}


def _result(row: Any) -> CellResult:
    return CellResult(
        row.name, row.status, row.verdict, row.reason, row.seconds, metrics=row.metrics, reproduce=row.reproduce,
        report="" if row.removed else to_read(row.path or "", row.verdict), **_changes(row.changes),
    )  # fmt: skip


def _past(row: Any) -> Past:
    changes = _changes(row.changes)
    metrics, phases = ({name: number(value) for name, value in part.items()} for part in (row.metrics, row.phases))
    # A problem that a second run did not show is not compared with on the next night.
    problem_changes = changes["standing"] if row.status == "FLAKY" else (*changes["new"], *changes["standing"])
    problems = frozenset(change.key for change in problem_changes if change.kind != "known")
    observation = Observation(
        row.verdict, row.exit_code, row.reason, metrics=metrics, phases=phases, seconds=row.seconds,
        facts=Facts(checks=row.checks, findings=row.findings, versions=row.versions, settings=row.settings),
    )  # fmt: skip
    return Past(observation, problems, row.night_id)


def _is_full(error: sa.exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _newest(matrix: str) -> Any:
    """The newest verdict of each cell of a matrix."""
    last = sa.select(sa.func.max(verdicts.c.night_id).label("night_id"), verdicts.c.cell_id)
    last = last.join_from(verdicts, nights).where(nights.c.matrix == matrix)
    newest = last.group_by(verdicts.c.cell_id).subquery()
    columns = cells.c.name, verdicts.c.night_id, verdicts.c.cell_id, verdicts.c.status, verdicts.c.seconds
    return sa.select(*columns).join_from(
        verdicts, newest,
        (verdicts.c.night_id == newest.c.night_id) & (verdicts.c.cell_id == newest.c.cell_id),
    ).join(cells, cells.c.id == verdicts.c.cell_id)  # fmt: skip


def _last_judged(matrix: str, cell_id: int) -> Any:
    """The seconds of a cell's newest run that came to a verdict."""
    of_cell = sa.select(verdicts.c.seconds).join_from(verdicts, nights)
    of_cell = of_cell.where(verdicts.c.cell_id == cell_id, nights.c.matrix == matrix)
    return of_cell.where(verdicts.c.status != "COULD NOT RUN").order_by(verdicts.c.night_id.desc()).limit(1)
