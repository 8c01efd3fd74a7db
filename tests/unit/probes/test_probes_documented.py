"""docs/reference/format.md suffices to write the format: its examples run; it names everything that is recorded."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.format import FORMAT_VERSION, Flat, Ragged, Run, decode_frame, encode_frame
from probes.kinds import EVENT_KEYS, FRAME_KEYS, MANIFEST_KEYS, unread_of_frame

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "format.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/reference/format.md", "exec"), space)
    assert Run("my-run").complete and Run("our-run").complete
    foreign = next((tmp_path / "my-run" / "tokens").iterdir()).read_bytes()
    assert foreign == dumped()


def test_a_foreign_writer_needs_the_standard_library_only() -> None:
    writer = ast.parse(blocks("python")[0])
    names = {alias.name for node in ast.walk(writer) if isinstance(node, ast.Import) for alias in node.names}
    assert names and names <= sys.stdlib_module_names


def dumped() -> bytes:
    """The bytes of the page's dump: offset, sixteen bytes in hex, text."""
    [dump] = blocks("hexdump")
    return bytes.fromhex("".join(line[10:58] for line in dump.splitlines()))


def test_the_dump_is_the_frame_that_it_says() -> None:
    frame = decode_frame(dumped())
    assert (frame.kind, frame.step, frame.role, frame.rank, frame.fields) == (
        "rollout", 0, "rollout", 0, {"finish": ["stop"]}
    )  # fmt: skip
    arrays: dict[str, Flat | Ragged] = {
        "sample": Flat.of([7], "i8"), "output": Ragged.of([[5, 2]], "i4"), "logprob": Ragged.of([[-0.5, -1.0]], "f4")
    }  # fmt: skip
    assert dumped() == encode_frame("rollout", 0, "rollout", 0, {"finish": ["stop"]}, arrays)


def recorded() -> Iterator[tuple[Path, str, list[str]]]:
    """(file, kind or name, fields) of every call in this repository that records under a literal name."""
    methods = ("event", "frame", "span", "shapes", "_frame", "_shapes", "samples")  # `samples` takes its recorder first
    for room in ("probes", "scenarios", "harness"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                kinds = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
                if node.func.attr in methods and kinds:
                    plain = node.func.attr in ("event", "span")
                    yield file, str(kinds[0]), [one.arg for one in node.keywords if one.arg and plain]


@pytest.mark.slow
def test_everything_that_is_recorded_is_documented() -> None:
    known = set(re.findall(r"`(\w+)`", PAGE))
    calls = list(recorded())
    assert {kind for _, kind, _ in calls} >= {"span", "shapes", "open", "close", "rollout", "experience", "native"}
    for file, kind, fields in calls:
        missing = {kind, *fields} - known
        assert not missing, f"docs/reference/format.md does not know {sorted(missing)} of {kind!r}, recorded by {file}"
        usual = EVENT_KEYS.get(kind)
        assert usual is None or usual >= {*fields}, f"probes/kinds.py does not know {fields} of {kind!r}"


def test_the_kinds_and_keys_that_are_read_are_those_of_the_page() -> None:
    events = PAGE[PAGE.index("| kind | fields |") : PAGE.index("A span with `hook`")]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", events, re.MULTILINE))
    assert rows.keys() == EVENT_KEYS.keys()
    for kind, keys in EVENT_KEYS.items():
        missing = (keys or set()) - {"step"} - set(re.findall(r"`(\w+)`", rows[kind]))
        assert not missing, f"docs/reference/format.md does not have {sorted(missing)} of {kind!r}"
    manifest = PAGE[PAGE.index("## run.json") : PAGE.index("## The index")]
    named = re.findall(r"^\| (`[^|]*?) \|", manifest, re.MULTILINE)
    assert {key for row in named for key in re.findall(r"`(\w+)`", row)} == MANIFEST_KEYS | {"checksum"}


def test_the_names_of_frames_that_are_read_are_those_of_the_page() -> None:
    table = PAGE[PAGE.index("| kind | role | fields | arrays |") : PAGE.index("- `logprob` is the raw one")]
    rows: dict[str, list[str]] = {}
    for kind, fields, arrays in re.findall(r"^\| `(\w+)` \| [^|]* \| (.*?) ?\| (.*) \|$", table, re.MULTILINE):
        rows.setdefault(kind, []).append(fields + arrays)
    assert rows.keys() == FRAME_KEYS.keys()
    for kind, keys in FRAME_KEYS.items():
        text = " ".join(rows[kind])
        text += " ".join(rows["rollout"]) if "as `rollout`" in text else ""
        missing = (keys.fields | keys.arrays) - set(re.findall(r"`(\w+)`", text)) - {"seed", "sample"}
        assert not missing, f"docs/reference/format.md does not have {sorted(missing)} of frames of kind {kind!r}"


def test_a_name_in_a_frame_that_nobody_reads_is_named() -> None:
    header = {"kind": "rollout", "step": 0, "role": "rollout", "rank": 0, "fields": {"mode": "coupled"}, "arrays": {}}
    assert not [*unread_of_frame(header)]
    header |= {"fields": {"mood": "coupled"}, "arrays": {"sample": {"dtype": "i8", "off": 0}}, "stop": 3}
    assert [*unread_of_frame(header)] == ["rollout.mood", "rollout.off", "rollout.stop"]


def test_the_page_says_which_version_it_describes() -> None:
    assert f"**Format version {FORMAT_VERSION}.**" in PAGE
