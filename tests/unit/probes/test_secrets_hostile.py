"""Text and files from strangers: nothing in them is live in a report, leads out of a folder or outgrows its bounds."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from reports import render
from reports.model import Verdict
from reports.renderers import markdown
from reports.text import clean

MENTIONS = [
    "@octocat",
    "see #123",
    "GH-12",
    "http://evil.example/x",
    "https://evil.example",
    "www.evil.example",
    "me@mail.example",
    "octo/repo#7",
    "octo/repo@0123456789abcdef0123456789abcdef01234567",
    "ftp://evil.example",
    "mailto:me@mail.example",
]
LIVE = re.compile(r"@\w|(?<!&)#\d|\w://|www\.|GH-\d|mailto:", re.IGNORECASE)


def rendered(shown: str) -> str:
    """What GitHub looks for links in: text with entities and backslash escapes undone, cut at tags and comments."""
    import html

    return "\0".join(html.unescape(re.sub(r"\\(?=[^\w\s])", "", part)) for part in re.split(r"<[^>]*>", shown))


@pytest.mark.parametrize("text", MENTIONS)
def test_markdown_has_no_live_mention_and_no_link(text: str) -> None:
    assert LIVE.search(text), "the trial plants nothing"
    for shown in (markdown.escape(text), markdown.code(text), markdown.escape(f"({text})")):
        assert not LIVE.search(rendered(shown)), shown
        assert rendered(shown).replace("\0", "").strip("()") == text


def test_a_whole_verdict_in_markdown_has_none() -> None:
    verdict = Verdict(
        "triage", "HUNG", 1, " ".join(MENTIONS), missing=MENTIONS, coverage={"a": MENTIONS}, paths={"x": MENTIONS[3]}
    )
    shown = re.sub(r"```.*?```", "", render(verdict, "md"), flags=re.DOTALL)
    assert not LIVE.search(rendered(shown)), shown


CONTROLS = [
    "\x1b[31mred",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "\x1b]0;title\x07",
    "a\u202eb",
    "a\u2066b\u2069",
    "\x9b31m",
    "a\rb",
    "a\bb",
    "zero\u200bwidth",
    "\x1bP+q\x1b\\",
    "\u2028",
    "\x7f",
]


@pytest.mark.parametrize("text", CONTROLS)
def test_nothing_drives_a_terminal(text: str) -> None:
    drives = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\u2066-\u2069]")
    assert drives.search(text) and not drives.search(clean(text))
    verdict = Verdict(
        "triage", "HUNG", 1, text, missing=[text], coverage={text: text}, reproduce=text, paths={text: text}
    )
    assert not drives.search(render(verdict).replace("\n", ""))


# --- files that only their owner may read


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "umask"), [(0o700, 0o022), (0o755, 0o022), (0o755, 0o077), (0o777, 0o000)])
def test_files_are_their_owners_alone_whatever_their_folder(tmp_path: Path, folder: int, umask: int) -> None:
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(folder)
    before = os.umask(umask)
    try:
        write_everything(place)
    finally:
        os.umask(before)
    found = modes(place)
    files = {name: mode for name, mode in found.items() if (place / name).is_file()}
    folders = {name: mode for name, mode in found.items() if (place / name).is_dir()}
    assert len(files) >= 8 and set(files.values()) == {0o600}, files
    assert set(folders.values()) == {0o700}, folders


def write_everything(place: Path) -> None:
    from harness.parity.runs.recording import written
    from harness.triage import directory
    from harness.triage.collect import recorder
    from harness.triage.evidence import Evidence, Process
    from harness.triage.watch.watchdog import Means, Watchdog
    from probes.format import write_manifest
    from probes.frames import Flat
    from probes.heartbeat import Heartbeat
    from probes.install import start

    write_manifest(place, {})
    mine = start(place, role="actor")
    mine.frame("rollout", step=0, arrays={"prompt": Flat.of([1], "i4")})
    mine.close()
    beat = Heartbeat(place)
    beat.beat()
    beat.close()
    evidence = place / "evidence" / "now"
    directory.write(Evidence(str(evidence), "live", "", 0.0, (Process("h", 1),)), evidence)
    dump = place.parent / "dump_0"
    dump.write_text("{}")
    assert recorder.from_file({"TORCH_FR_DUMP_TEMP_FILE": str(dump)[:-1]}, 0, "h", os.getpid(), evidence)
    directory.pack(evidence)
    written(Verdict("triage", "HUNG", 1, "x"), place)
    means = Means(observe=lambda: None)  # type: ignore[arg-type,return-value]
    dog = Watchdog(place / "watch", (os.getpid(),), 60.0, means=means)
    dog._beat()
    dog.retention.publish(Verdict("triage", "HUNG", 1, "x"))
    dog.close()


# --- helpers import nothing from the current folder

PLANTED = (
    "json",
    "harness",
    "probes",
    "scenarios",
    "reports",
    "ray",
    "email",
    "importlib",
    "base64",
    "pip",
    "runpy",
    "argparse",
    "subprocess",
    "numpy",
    "msgspec",
    "struct",
    "sitecustomize",
    "usercustomize",
)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that is full of modules which say that they were imported."""
    folder, witness = tmp_path / "here", tmp_path / "imported"
    folder.mkdir()
    for name in PLANTED:
        code = f"open({str(witness)!r}, 'a').write({name!r} + ' ')\nraise ImportError('planted')\n"
        (folder / f"{name}.py").write_text(code)
    monkeypatch.chdir(folder)
    subprocess.run([sys.executable, "-c", "import tomllib, argparse"], capture_output=True, stdin=subprocess.DEVNULL)
    assert witness.exists(), "the trial plants nothing"
    witness.unlink()
    return witness


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("path", [None, "", ".", "relative::"])
def test_the_programs_that_ask_ray(planted: Path, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.triage.collect import ray

    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    for program in (ray._STATE, ray._NODES):
        with pytest.raises(ray._Failed) as failed:  # a wrong call: what is told is that it started
            ray._run(sys.executable, program, [], 120.0)
        assert "IndexError" in str(failed.value), failed.value
    assert not planted.exists(), planted.read_text()


@pytest.mark.slow
def test_the_worker_that_reads_dumps(planted: Path, tmp_path: Path) -> None:
    from harness.triage.flight.workers import Worker

    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"entries": []}))
    worker = Worker()
    try:
        assert "ended the process" not in str(worker.read(dump, 120.0))
    finally:
        worker.close()
    assert not planted.exists(), planted.read_text()


@pytest.mark.slow
def test_what_asks_interpreters(planted: Path) -> None:
    from harness.doctor.gather import software, tracing
    from harness.envs import indexes, interpreter
    from harness.frameworks import installed
    from probes.adapters.trl import ADAPTER

    interpreter.inspect(sys.executable)
    indexes.pip_configuration()
    tracing._attempt()
    software.imports()
    assert not planted.exists(), planted.read_text()
    installed.ask(sys.executable, ADAPTER)  # it looks into the job's folder, which may hold the framework
    assert not planted.exists(), planted.read_text()


@pytest.mark.slow
def test_py_spy_and_the_evidence_of_a_process(planted: Path, tmp_path: Path) -> None:
    from harness.triage.collect import Scope, collect

    child = subprocess.Popen(
        [sys.executable, "-I", "-c", "print(1, flush=True); import time; time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout and child.stdout.readline()
        collect(Scope((child.pid,)), out=tmp_path / "evidence", samples=1)
    finally:
        child.kill()
        child.communicate()
    assert not planted.exists(), planted.read_text()


# --- evidence of strangers


def hostile(folder: Path, index: object = None, process: object = None) -> Path:
    (folder / "processes").mkdir(parents=True)
    (folder / "evidence.json").write_text(json.dumps(index or {"format_version": 1}))
    (folder / "processes" / "h-1.json").write_text(json.dumps(process or {"host": "h", "pid": 1}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"command": "x" * 5_000_000},
        {"notes": ["x"] * 300_000},
        {"environ": {f"k{n}": "v" for n in range(200_000)}},
        {"pid": 10**400},
        {
            "beat": {
                "count": 1,
                "age_s": 1,
                "progress_age_s": 1,
                "states": {"engine": json.loads("[" * 400 + "]" * 400)},
            }
        },
        {"environ": {"k" * 100_000: "v"}},
    ],
    ids=["text", "list", "object", "number", "nesting", "key"],
)
def test_no_field_is_larger_than_its_bound(tmp_path: Path, fields: dict[str, object]) -> None:
    from harness.triage import directory

    sys.set_int_max_str_digits(0)
    found = directory.read(hostile(tmp_path / "e", process={"host": "h", "pid": 1, **fields}))
    sizes = [len(str(one)) for one in found.processes]
    assert all(size < 2 * directory.MAX_TEXT for size in sizes) and all(
        len(note) <= directory.MAX_NOTE for note in found.notes
    )
    assert found.notes or sizes[0] > 10_000


@pytest.mark.slow
def test_a_free_field_of_the_index_is_bounded(tmp_path: Path) -> None:
    from harness.triage import directory

    deep = json.loads('{"a":' * 300 + "1" + "}" * 300)
    found = directory.read(
        hostile(tmp_path / "e", {"format_version": 1, "ras": deep, "notes": ["x" * 90_000, *["y"] * 9_000]})
    )
    assert (
        found.ras == {} and len(found.notes) <= directory.MAX_NOTES and max(map(len, found.notes)) <= directory.MAX_NOTE
    )


def test_a_link_or_a_pipe_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    from harness.triage import directory

    folder = hostile(tmp_path / "e")
    (tmp_path / "secret.json").write_text(json.dumps({"host": "outside", "pid": 9}))
    (folder / "processes" / "h-9.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(folder / "processes" / "h-8.json")
    found = directory.read(folder)
    assert [one.pid for one in found.processes] == [1]
    assert sum("not a plain file" in note for note in found.notes) == 2


@pytest.mark.slow
def test_a_zip_is_unpacked_by_a_process_with_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    from harness.errors import BadInput
    from harness.triage import archive

    file = tmp_path / "e.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("evidence.json", "{}")
        zipped.writestr("processes/h-1.json", "{}")
    monkeypatch.setattr(archive, "unpack_into", lambda *given: pytest.fail("unpacked here"))
    folder = archive.unpack(file)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*.json")} == {0o600}
    code = (
        "import resource; from harness.triage import archive; archive.cap(1 << 30, 300, 1000);"
        "print([resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))[0] for name in ('AS', 'CPU', 'FSIZE')])"
    )
    root = Path(archive.__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == f"[{1 << 30}, 300, 1000]", done.stderr
    monkeypatch.setattr(archive, "_START", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(BadInput, match="ended the process that unpacked it"):
        archive.unpack(file)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_only_plain_files_of_a_zip_are_unpacked(tmp_path: Path, kind: int) -> None:
    import zipfile

    from harness.errors import BadInput
    from harness.triage import archive

    member = zipfile.ZipInfo("recorder/h-1.json")
    member.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr(member, "/etc/passwd")
    with pytest.raises(BadInput, match="would leave the directory"):
        archive.unpack(tmp_path / "bad.zip")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a/" * 500 + "x", "/".join("abcdefghij"), "x" * 2_000])
def test_a_long_path_in_a_zip_is_refused(tmp_path: Path, name: str) -> None:
    import zipfile

    from harness.errors import BadInput
    from harness.triage import archive

    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr("evidence.json", "{}")
        zipped.writestr(name, "x")
    with pytest.raises(BadInput, match="too long a path"):
        archive.unpack(tmp_path / "bad.zip")


@pytest.mark.slow
def test_large_json_dumps_are_read_by_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.triage.flight import worker, workers

    dump = tmp_path / "rank_0.json"
    dump.write_text(json.dumps({"entries": [], "more": "x" * (300 << 10)}))
    monkeypatch.setattr(worker, "answer", lambda path: pytest.fail("read in this process"))
    [found] = workers.read_all([dump])
    assert "was not read within" not in str(found)
