"""The history: nothing is lost, two may write, what it cannot read it refuses in one sentence."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import nightly_support as support
import pytest

from harness import cli

sqlalchemy = pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")
from harness.nightly import HISTORY  # noqa: E402
from harness.nightly import history as histories  # noqa: E402
from harness.nightly.history import History, HistoryUnusable, NoHistory, Retention  # noqa: E402
from probes.files import make_folder, write_whole  # noqa: E402
from reports.dashboard import write  # noqa: E402
from reports.nightly_model import CellResult, Change  # noqa: E402

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
import nightly_support as support
from harness.nightly.history import History
with History.at(sys.argv[1]) as history:
    night = history.begin("trial", [], [])
    for index in range(int(sys.argv[3])):
        support.keep(history, night, f"{sys.argv[4]}{index}", support.observation(max_delta_logprob=index))
        print(index, flush=True)
"""


def writer(place: str, count: int, prefix: str = "cell ") -> subprocess.Popen[str]:
    support_folder = str(Path(support.__file__).parent)
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, support_folder, str(count), prefix],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own on a Unix socket and loopback; its processes end with the session."""
    if not BINARIES:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="the extra [nightly] is not installed")
    import shutil
    import socket
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data, binaries = folder / "data", BINARIES[-1].parent
    become = []
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        become = ["runuser", "-u", "postgres", "--"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    for words in (
        [str(binaries / "initdb"), "-D", str(data), "-U", "trial", "-A", "trust"],
        [str(binaries / "pg_ctl"), "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start"],
    ):
        subprocess.run([*become, *words], check=True, capture_output=True, cwd=folder, timeout=600)
    yield f"postgresql://trial@127.0.0.1:{port}/postgres"
    stop = [str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"]
    subprocess.run([*become, *stop], capture_output=True, cwd=folder, timeout=600)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    address: str = request.getfixturevalue("postgresql")
    engine = sqlalchemy.create_engine(address.replace("postgresql", "postgresql+psycopg", 1))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("DROP SCHEMA public CASCADE"))
        connection.execute(sqlalchemy.text("CREATE SCHEMA public"))
    engine.dispose()
    return address


@pytest.mark.slow
def test_what_was_kept_comes_back(place: str) -> None:
    new = Change("cause", "STOP", "cause STOP")
    with History.at(place) as history:
        first = history.begin("trial", ["a"], [("b", "no GPU")])
        one = support.observation("DIVERGENT", max_delta_logprob=float("nan"), k1=2.5)
        history.add(first, one, CellResult("a", "REGRESSED", "DIVERGENT", "x", 2.0, new=(new,), known=("k",)))
        second = history.begin("trial", ["a"], [])
        support.keep(history, second, "a", support.observation())
    with History.at(place) as history:
        past = history.past("a")
        assert [row.observation.verdict for row in past] == ["DIVERGENT", "EQUIVALENT"]
        assert (
            str(past[0].observation.metrics["max_delta_logprob"]) == "nan" and past[0].observation.metrics["k1"] == 2.5
        )
        assert support.problems(past) == [{"STOP"}, set()]
        assert past[0].observation.facts == one.facts
        night = history.night(first)
        assert night.results[0].new == (new,) and night.left_out == (("b", "no GPU"),) and not night.finished
        assert history.last_runs("trial")["a"].night == second
        assert [row.metrics[:5] for row in history.course(9)] == ['{"k1"'] * 2
        assert [counts for _, counts in history.listing()] == [{"OK": 1}, {"REGRESSED": 1}]


@pytest.mark.slow
def test_the_last_run_knows_how_long_the_last_verdict_took(place: str) -> None:
    with History.at(place) as history:
        for seconds, status in ((59.0, "OK"), (61.0, "FIXED"), (3.0, "COULD NOT RUN")):
            number = history.begin("trial", ["a"], [])
            observation = dataclasses.replace(support.observation(), seconds=seconds)
            history.add(number, observation, CellResult("a", status, "EQUIVALENT", "x"))
        last = history.last_runs("trial")["a"]
    assert (last.status, last.seconds, last.judged_s) == ("COULD NOT RUN", 3.0, 61.0)


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(place: str) -> None:
    both = [writer(place, 40, f"writer {index} cell ") for index in range(2)]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    with History.at(place) as history:
        assert len(history.last_runs("trial")) == 80
        assert sorted(len(history.night(number).results) for number in (1, 2)) == [40, 40]


@pytest.mark.slow
def test_nothing_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    place = str(tmp_path / "history.db")
    process = writer(place, 100_000)
    assert process.stdout is not None
    told = -1
    for line in process.stdout:
        told = int(line)
        if told == 50:
            process.send_signal(signal.SIGKILL)
    process.wait()
    with History.at(place) as history:
        rows = history.night(1).results
        assert [row.cell for row in rows[: told + 1]] == [f"cell {index}" for index in range(told + 1)]
        assert len(rows) <= told + 2  # one may have been kept before it was told
        assert history.unfinished("trial") is not None
    assert sqlite3.connect(place).execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_threads_that_open_a_new_history_together_make_one(place: str) -> None:
    errors: list[BaseException] = []

    def opened() -> None:
        try:
            History.at(place).begin("x", [], [])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=opened) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with History.at(place) as history:
        assert len(history.listing()) == 4


@pytest.mark.slow
def test_an_older_history_is_brought_up_to_date(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with History.at(place) as history:
        support.keep(history, history.begin("trial", [], []), "a", support.observation())

    def more(connection: object) -> None:
        connection.execute(sqlalchemy.text("ALTER TABLE nights ADD COLUMN note TEXT"))  # type: ignore[attr-defined]

    monkeypatch.setattr(histories, "MIGRATIONS", [*histories.MIGRATIONS, more])
    for _ in range(2):
        with History.at(place) as history:
            assert len(history.past("a")) == 1
    monkeypatch.undo()
    with pytest.raises(HistoryUnusable, match="version 2"):
        History.at(place)


@pytest.mark.slow
def test_a_migration_that_fails_changes_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with History.at(place) as history:
        support.keep(history, history.begin("trial", [], []), "a", support.observation())

    def half(connection: object) -> None:
        connection.execute(sqlalchemy.text("DELETE FROM verdicts"))  # type: ignore[attr-defined]
        connection.execute(sqlalchemy.text("no statement"))  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(histories, "MIGRATIONS", [*histories.MIGRATIONS, half])
        with pytest.raises(HistoryUnusable):
            History.at(place)
    with History.at(place) as history:
        assert len(history.past("a")) == 1


def _corrupt(file: Path) -> None:
    file.write_bytes(b"no database at all" * 999)


def _foreign(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")


def _torn(file: Path) -> None:
    with History.at(str(file)) as history:
        for index in range(50):
            support.keep(history, history.begin("trial", [], []), f"cell {index}", support.observation())
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_corrupt, "file is not a database"),
        (_foreign, "is a database, but no history of this harness"),
        (_torn, "malformed"),
    ],
)
def test_a_history_that_is_none_is_one_sentence(
    tmp_path: Path, damage: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.db"
    damage(file)  # type: ignore[operator]
    before = file.read_bytes()
    assert cli.main(["history", "list", "--history", str(file)]) == 2
    told = capsys.readouterr().err
    assert words in told and "Traceback" not in told and len(told.splitlines()) <= 2
    assert file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("missing.db", "there is no history missing.db"),
        (".", "the history . is a directory"),
        ("", "the option --history is empty"),
        ("mysql://user:geheim@host/x", "a history is a file or postgresql"),
        ("postgresql://user:geheim@127.0.0.1:9/x", "postgresql+psycopg://127.0.0.1:9/x: connection failed"),
    ],
)
def test_a_history_that_cannot_be_reached(
    tmp_path: Path, place: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["history", "list", "--history", place]) == 2
    told = capsys.readouterr().err
    assert words in told and "geheim" not in told and not (tmp_path / "missing.db").exists()


WRONG_PLACES = {
    "missing.db": "missing.db", "sub/missing.db": "sub/missing.db", ".": "history.db", "foreign.db": "foreign-2.db",
    "corrupt.db": "corrupt-2.db", "corrupt.db/history.db": "history.db", "/dev/null": "null",
    "/proc/none/history.db": "history.db", "mysql://host/x": "history.db", "no://": "history.db",
}  # fmt: skip
"""A place that cannot be read or written -> the file that nights can be written to."""


def _advised(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The words of the command that an error advises."""
    capsys.readouterr()
    assert cli.main(words) == 2
    fix = capsys.readouterr().err.partition("  fix: ")[2].strip().replace("\n", " ")
    command = shlex.split(fix, comments=True)
    assert command[0] == "harness"
    return command[1:]


@pytest.fixture
def folder_of_wrong_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    _corrupt(tmp_path / "corrupt.db")
    _foreign(tmp_path / "foreign.db")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "writable", "words"),
    [
        *((place, writable, ["list"]) for place, writable in WRONG_PLACES.items()),
        *(
            ("foreign.db", "foreign-2.db", words)
            for words in (["show"], ["compare", "1", "2"], ["metric", "a"], ["html", "site"])
        ),
    ],
)
def test_a_reader_without_a_history_is_given_the_command_that_makes_one(
    folder_of_wrong_places: Path, place: str, writable: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fix = _advised(["history", *words, "--history", place], capsys)
    assert fix == ["nightly", "MATRIX.toml", "--history", writable]
    with History.at(writable) as history:
        history.begin("trial", [], [])
    assert cli.main(["history", "list", "--history", writable]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "existing"),
    [*((place, "beside.db") for place in ("missing.db", ".", "foreign.db", "corrupt.db")),
     *((place, HISTORY) for place in WRONG_PLACES)],
)  # fmt: skip
def test_a_reader_is_given_the_history_that_exists(
    folder_of_wrong_places: Path, place: str, existing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    history_file = folder_of_wrong_places / existing
    with History.at(str(history_file)) as history:
        history.begin("trial", [], [])
    fix = _advised(["history", "list", "--history", place], capsys)
    assert fix == ["history", "list", "--history", existing]
    assert cli.main(fix) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "dry_run"),
    [*((place, ()) for place in WRONG_PLACES if "missing" not in place),
     *((place, ("--dry-run",)) for place in (".", "foreign.db", "corrupt.db", "mysql://host/x"))],
)  # fmt: skip
def test_a_night_is_given_a_history_that_it_can_write(
    folder_of_wrong_places: Path, place: str, dry_run: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.toml").write_text('name = "m"\n[matrix]\npairs = [["hf", "hf"]]\n')
    fix = _advised(["nightly", "m.toml", *dry_run, "--history", place], capsys)
    assert fix == ["nightly", "m.toml", *dry_run, "--history", WRONG_PLACES[place]]
    with History.at(fix[-1]) as history:
        assert history.begin("trial", [], [])


@pytest.mark.slow
def test_a_night_that_is_missing_is_looked_for_in_the_same_history(
    folder_of_wrong_places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with History.at("mine.db") as history:
        number = history.begin("trial", [], [])
        support.keep(history, number, "cell", support.observation())
    for words in (["show", "99"], ["compare", "1", "99"], ["metric", "no cell"], ["metric", "cell", "no metric"]):
        fix = _advised(["history", *words, "--history", "mine.db"], capsys)
        assert fix[-2:] == ["--history", "mine.db"] and cli.main(fix) != 2, words


@pytest.mark.slow
def test_a_full_disk_costs_one_cell_at_most(tmp_path: Path) -> None:
    with History.at(str(tmp_path / "history.db")) as history:
        night = history.begin("trial", [], [])
        support.keep(history, night, "a", support.observation())
        with history._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with pytest.raises(HistoryUnusable, match="database or disk is full") as full:
            for index in range(500):
                support.keep(history, night, f"cell {index}", support.observation(value=index))
        assert full.value.fix.startswith("df -h")
    with History.at(str(tmp_path / "history.db")) as history:
        assert history.night(night).results[0].cell == "a"


def test_recordings_go_and_verdicts_stay(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    outside = tmp_path / "precious"
    outside.mkdir()

    def recording(name: str) -> str:
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "verdict.json").write_text("{}")
        (folder / "tokens").write_bytes(b"x" * 1000)
        return str(folder)

    def kept() -> list[str]:
        return sorted(path.name for path in root.iterdir())

    with History.at(str(tmp_path / "history.db")) as history:
        for index, status in enumerate(["OK", "REGRESSED", "OK", "OK"]):
            one = dataclasses.replace(support.observation(), recording=recording(f"{index} {status}"))
            support.keep(history, history.begin("trial", [], []), "a", one, status)
        strange = dataclasses.replace(support.observation(), recording=str(outside))
        support.keep(history, history.begin("trial", [], []), "a", strange)
        now = datetime.datetime.now(datetime.UTC)
        assert history.prune(Retention(days=14), root, today=now) == 0
        assert history.prune(Retention(days=14, count=3), root, today=now) == 1 and "0 OK" not in kept()
        assert history.prune(Retention(days=14, size=2000), root, today=now) == 2
        assert kept() == ["1 REGRESSED"] and outside.exists()
        month = now + datetime.timedelta(days=30)
        assert history.prune(Retention(days=14), root, today=month) == 0 and kept() == ["1 REGRESSED"]
        assert history.prune(Retention(days=14), root, today=now + datetime.timedelta(days=60)) == 1
        assert kept() == [] and outside.exists() and len(history.past("a")) == 5
        assert history.night(2).results[0].report == ""
        assert history.night(5).results[0].report == f"{outside}/report.html", "it lies below another --out, and stays"


def test_the_dashboard_links_what_there_is_to_read_of_each_cell(tmp_path: Path) -> None:
    with History.at(str(tmp_path / "history.db")) as history:
        night = history.begin("trial", [], [])
        for verdict, name in (("EQUIVALENT", "report.html"), ("PASSED", "suite.md"), ("ERROR", "log.txt")):
            (tmp_path / verdict).mkdir()
            (tmp_path / verdict / name).touch()
            one = dataclasses.replace(
                support.observation(), verdict=verdict, recording=str(tmp_path / verdict), exit_code=0
            )
            support.keep(history, night, verdict, one)
        assert [Path(one.report).is_file() for one in history.night(night).results] == [True] * 3
        make_folder(tmp_path / "site" / "cells")
        write(tmp_path / "site", [(night, "2026-01-01")], history.course(1), write_whole)
    pages = "".join(page.read_text() for page in (tmp_path / "site" / "cells").iterdir())
    for link in ("EQUIVALENT/report.html", "PASSED/suite.md", "ERROR/log.txt"):
        assert f'<a href="../../{link}">' in pages


def test_second_runs_go_with_the_recording_of_their_cell(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    cell = root / "night-00001" / "hf_hf"
    for part in ("attempt-1/recording", "again/attempt-1/recording", "itself/attempt-1/recording"):
        (cell / part).mkdir(parents=True)
        (cell / part / "tokens").write_bytes(b"x" * 1000)
    (root / "night-00001" / "night.md").write_text("kept")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=90)
    with History.at(str(tmp_path / "history.db")) as history:
        one = dataclasses.replace(support.observation(), recording=str(cell / "attempt-1" / "recording"))
        result = CellResult("a", "REGRESSED", "DIVERGENT", "x", 2.0)
        history.add(history.begin("trial", [], []), one, result, cell)
        assert history.prune(Retention(days=14, size=3000), root) == 0
        assert history.prune(Retention(days=14, size=2999), root) == 1, "the second runs count"
        assert not cell.exists() and (root / "night-00001" / "night.md").exists()
        assert history.prune(Retention(days=14), root, today=later) == 0


def test_a_recording_that_cannot_be_removed_is_not_called_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "night"
    folder.mkdir(parents=True)
    month = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    with History.at(str(tmp_path / "history.db")) as history:
        one = dataclasses.replace(support.observation(), recording=str(folder))
        support.keep(history, history.begin("trial", [], []), "a", one)
        with monkeypatch.context() as patch:
            patch.setattr(histories.shutil, "rmtree", lambda path, ignore_errors: None)  # a file in it is in use
            assert history.prune(Retention(days=14), tmp_path / "runs", today=month) == 0
        assert history.night(1).results[0].report
        assert history.prune(Retention(days=14), tmp_path / "runs", today=month) == 1 and not folder.exists()
        assert not history.night(1).results[0].report


@pytest.mark.slow
def test_an_older_night_that_was_cut_is_resumed_until_its_cells_have_run(place: str) -> None:
    with History.at(place) as history:
        cut = history.begin("trial", ["a", "b", "c"], [])
        support.keep(history, cut, "a", support.observation())
        history.finish(history.begin("other", ["b"], []), [])
        later = history.begin("trial", ["b"], [])
        support.keep(history, later, "b", support.observation())
        history.finish(later, [])
        assert history.unfinished("trial") == (cut, ["c"])
        last = history.begin("trial", ["c"], [])
        support.keep(history, last, "c", support.observation())
        assert history.unfinished("trial") == (last, []), "only its end is missing"
        history.finish(last, [])
        assert history.unfinished("trial") is None


@pytest.mark.slow
def test_a_reader_of_a_team_s_history_need_not_be_a_writer(postgresql: str) -> None:
    with History.at(postgresql) as history:
        night = history.begin("trial", [], [])
        support.keep(history, night, "cell", support.observation())
    reader = f"{postgresql}?options=-c%20default_transaction_read_only%3Don"
    with History.at(reader, create=False) as history:
        assert [one.cell for one in history.night(night).results] == ["cell"]
        with pytest.raises(HistoryUnusable, match="read-only transaction"):
            history.begin("trial", [], [])


def test_where_there_is_no_history_none_is_made_for_a_reader(place: str) -> None:
    for _ in range(2):
        with pytest.raises(NoHistory, match="there is no history"):
            History.at(place, create=False)
