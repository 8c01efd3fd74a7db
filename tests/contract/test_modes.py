"""Whatever the harness writes is for its owner alone, whatever the umask: 0600, and 0700 for folders.

Commands are run under umask 022, and what they leave is listed. The source is searched for calls that would make a file
or folder with the umask's mode: a writer that no command of this test reaches is found by that.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_inputs
import pytest

from harness import cli
from probes.files import FILE_MODE, FOLDER_MODE, close_to_others, make_folder, open_new, write_whole
from reports import exporters

ROOT = Path(__file__).resolve().parents[2]
# Who may make files with the umask's mode, and why.
EXCUSED = {
    "harness/triage/collect/proc.py": "no file is made: a switch of the kernel in /proc",
    "harness/bundle/packing.py": "in a temporary folder, before it is packed",
    "harness/bundle/redacted.py": "in a temporary folder, before it is packed",
    "harness/cli.py": "a text of --help, and no file",
    "harness/cluster/launch.py": "no file is made: a name that tries a folder",
    "harness/envs/stored_arguments.py": "environments hold nothing of the user's and may be shared",
    "harness/envs/bundles.py": "environments may be shared",
    "harness/envs/creation.py": "environments may be shared",
    "harness/envs/home.py": "environments may be shared",
    "harness/envs/install.py": "in a temporary folder",
    "harness/envs/layer.py": "environments may be shared",
    "harness/envs/registration.py": "environments may be shared",
    "harness/frameworks/recording.py": "appends to a journal that is there",
    "harness/mapping/call_program.py": "in a temporary folder",
    "harness/mapping/file.py": "in a temporary folder",
    "harness/planted/differences/damage.py": "damages files that are there",
    "harness/triage/archive.py": "in a temporary folder of mode 0700, after umask 077",
    "harness/triage/collect/ray_nodes.py": "in a temporary folder",
    "harness/entry.py": "/dev/null",
}
MAKERS = {"mkdir", "makedirs", "write_text", "write_bytes", "touch"}
WRITES = ("w", "a", "x")
MAY_MAKE = re.compile(rf"\b({'|'.join(MAKERS)}|open)\(")  # in a text that is worth parsing


def made(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that make a file or folder and give it no mode."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg for keyword in node.keywords}
        words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        opens = name == "open" and any(isinstance(word, str) and word[:1] in WRITES and len(word) < 4 for word in words)
        if (name in MAKERS and "mode" not in keywords) or (opens and "opener" not in keywords):
            yield node


@pytest.mark.slow
def test_no_writer_leaves_the_mode_to_the_umask() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for room in ("harness", "probes", "reports")
        for file in sorted((ROOT / room).rglob("*.py"))
        if str(file.relative_to(ROOT)) not in EXCUSED
        if MAY_MAKE.search(text := file.read_text())
        for call in made(ast.parse(text))
    ]
    assert not wrong, "use probes.files: make_folder, open_new, write_whole"


@pytest.mark.parametrize(
    "line", ["p.mkdir()", "os.makedirs(p, exist_ok=True)", "p.write_text('')", "open(p, 'w')", "p.open('wb')"]
)
def test_the_search_finds_them(line: str) -> None:
    assert [*made(ast.parse(line))]
    assert not [*made(ast.parse("p.mkdir(mode=0o700); open(p); p.open('rb'); write_whole(p, b''); z.open(name, 'r')"))]


def wrong_modes(place: Path) -> dict[str, str]:
    """What others than its owner may use, below a folder: name -> mode."""
    return {
        str(path.relative_to(place)): oct(path.lstat().st_mode & 0o777)
        for path in place.rglob("*")
        if not path.is_symlink() and path.lstat().st_mode & 0o777 != (FOLDER_MODE if path.is_dir() else FILE_MODE)
    }


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, where all that is there is for its owner alone; umask 022."""
    place, home = tmp_path / "work", tmp_path / "home"
    make_folder(place)
    make_folder(home)
    for name in ("HOME", "HARNESS_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(place)
    before = os.umask(0o022)
    yield place
    os.umask(before)
    assert not wrong_modes(home)


def test_a_file_that_others_may_read_is_found(work: Path) -> None:
    (work / "open").write_text("")
    (work / "folder").mkdir()
    assert wrong_modes(work) == {"open": "0o644", "folder": "0o755"}
    close_to_others(work)
    assert not wrong_modes(work)


def test_a_folder_that_another_thread_makes_meanwhile_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_folder = Path.is_dir

    def before_it_is_made(path: Path) -> bool:
        was = is_folder(path)
        os.makedirs(path, exist_ok=True)
        return was

    monkeypatch.setattr(Path, "is_dir", before_it_is_made)
    make_folder(tmp_path / "a")


def test_writers(work: Path) -> None:
    make_folder(work / "a" / "b")
    write_whole(work / "a" / "b" / "c", b"")
    (work / "d").write_text("")
    with open_new(work / "d") as stream:
        stream.write(b"e")
    assert not wrong_modes(work) and (work / "d").read_bytes() == b"e"


def test_a_device_keeps_its_mode(tmp_path: Path) -> None:
    """As root, /dev/null would be closed to everybody else on the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    os.chmod(pipe, 0o666)
    reader = os.open(pipe, os.O_RDWR)  # so that opening it for writing does not wait
    try:
        open_new(pipe).close()
    finally:
        os.close(reader)
    assert pipe.stat().st_mode & 0o777 == 0o666


def _nights(folder: Path) -> None:
    make_folder(folder)
    hostile_inputs.nights(folder)


COMMANDS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "bundle of a run": (hostile_inputs.run, ("bundle", "in", "--out", "run.zip")),
    "bundle of evidence": (hostile_inputs.evidence, ("bundle", "in")),
    "triage": (hostile_inputs.evidence, ("triage", "in", "--out", "out/deep/triage")),
    "render": (_nights, ("render", "github", "in/nightly.toml", "--out", "out/deep", "--source", ".")),
    "diff": (hostile_inputs.pair, ("diff", "in/baseline", "in/candidate", "--format", "json")),
    "audit": (hostile_inputs.run, ("audit", "in", "--format", "html")),
    **{
        f"export to {tracker}": (hostile_inputs.run, ("report", "in", "--export", tracker, "--out", "out/deep"))
        for tracker in exporters.names()
        if importlib.util.find_spec(tracker)  # without its package an exporter refuses before it writes
    },
    "watch": (make_folder, ("watch", "--out", "out/deep", "--", sys.executable, "-c", "pass")),
}


@pytest.mark.slow
@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_leaves_is_for_its_owner_alone(name: str, work: Path) -> None:
    make, words = COMMANDS[name]
    make(work / "in")
    close_to_others(work)
    before = {*work.rglob("*")}
    cli.main(list(words))
    assert name in ("diff", "audit") or {*work.rglob("*")} - before, "nothing was written"
    assert not wrong_modes(work)
