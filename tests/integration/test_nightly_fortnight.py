"""A fortnight of real nights: another package's engine against the embedded one, and a planted hang as the control.

Something changes on days 4, 7, 9 and 12. Each is told on its day as what it is, and nothing else is. The night of day 6
is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nightly_support as support
import pytest
from foreign_packages import environment_with, install, write_package
from waiting import until

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")

POINTS = {
    "engines": {"mine": "mine.spec:SPEC"},
}
PACKAGE = {
    "mine/__init__.py": "",
    "mine/spec.py": """
from dataclasses import replace
from scenarios.engines import hf, native_arguments

SPEC = replace(
    hf.SPEC, name="mine", title="my engine", factory="mine.engine:Mine", distributions=("mine",),
    engine_arguments=native_arguments.table("engine", "hf"),
    sampling_arguments=native_arguments.table("sampling", "hf"),
)
""",
    "mine/engine.py": """
import dataclasses, time
from importlib.metadata import version
from scenarios.engines.hf.engine import HFEngine

class Mine(HFEngine):
    def info(self):
        return dataclasses.replace(super().info(), engine="mine", version=version("mine"))

    def generate(self, requests, *args, **named):
        # Batches of three: it rounds in another way than the learner does.
        parts = (requests[at : at + 3] for at in range(0, len(requests), 3))
        return [one for part in parts for one in super(Mine, self).generate(part, *args, **named)]
""",
}
SCENARIO = """
name = "mine"
steps = 3
train = false
[model]
path = "builtin:tiny"
[prompts]
path = "builtin:tiny"
max_tokens = 64
[rollout]
prompts_per_step = 8
samples_per_prompt = 4
[sampling]
temperature = 1.0
max_tokens = 32
[engine]
max_model_len = 128
prefix_caching = false
[native]
samples = 64
"""
MATRIX = """
name = "fortnight"
[matrix]
pairs = [["hf", "mine"]]
scenarios = ["mine.toml"]
[[faults]]
suite = "hang"
names = ["state-stopped"]
"""
ENGINE, CONTROL = "hf-mine/mine", "faults/hang/state-stopped"
EDITS = {  # day: the file, what it said, what it says from then on
    4: ("source/pyproject.toml", 'version = "1"', 'version = "2"'),
    7: ("mine.toml", "temperature = 1.0", "temperature = 0.9"),
    9: ("source/mine/engine.py", "        parts = ", "        time.sleep(3)\n        parts = "),
    12: ("mine.toml", "samples = 64", "samples = 48"),
}  # fmt: skip
BOTH = {1, 4, 6, 7, 9, 12}  # days on which the control runs too: it takes as long as half an engine's cell
TOLD = {  # day: kind and subject of what is new, or explains
    4: {("moved", "candidate engine: mine")},
    7: {("setting", "sampling.temperature")},
    9: {("slower", "candidate rollout")},
    12: {("setting", "native.samples"), ("fewer", "native_samples")},
}


@dataclass
class Nights:
    """A folder with the engine's source, the scenario and the matrix; `python` has the engine installed."""

    folder: Path
    python: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [self.python, "-m", "harness.entry", "nightly", "matrix.toml", "--format", "json", *words]
        environ = os.environ | {"HARNESS_HOME": str(self.folder / "home")}
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True, env=environ
            )  # fmt: skip

    def run(self, *words: str) -> dict[str, Any]:
        printed, _ = self.start(*words).communicate(timeout=900)
        night: dict[str, Any] = json.loads(printed)
        return night

    def run_killed_in_the_middle(self) -> None:
        """The first cell is in the history, the second one runs."""
        process = self.start()
        begun = f"2/2 {CONTROL}"
        seen = self.log().count(begun)
        until(lambda: self.log().count(begun) != seen, what=self.log, process=process)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self) -> str:
        return (self.folder / "log.txt").read_text() if (self.folder / "log.txt").exists() else ""

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.folder / name
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
        if name.startswith("source/"):
            install(self.folder / "source", self.python)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    write_package(tmp_path / "source", POINTS, PACKAGE)
    (tmp_path / "mine.toml").write_text(SCENARIO)
    (tmp_path / "matrix.toml").write_text(MATRIX)
    return Nights(tmp_path, environment_with(tmp_path / "source", tmp_path))


def keys(changes: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(one["kind"], one["subject"]) for one in changes}


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_a_fortnight_of_nights_with_real_cells(nights: Nights) -> None:
    standing: set[tuple[str, str]] = set()
    for day in range(1, 15):
        if day in EDITS:
            nights.edit(*EDITS[day])
        if day == 6:
            nights.run_killed_in_the_middle()
        cells = [ENGINE, CONTROL] if day in BOTH else [ENGINE]
        night = nights.run(*["--resume"] * (day == 6), *([] if day in BOTH else ["--only", ENGINE]))
        results = {one["cell"]: one for one in night["results"]}
        assert (night["number"], list(results), night["left_out"]) == (day, cells, []), nights.log()
        engine, told = results[ENGINE], TOLD.get(day, set())
        alarm = {key for key in told if key[0] in ("slower", "fewer")}
        assert night["exit_code"] == bool(alarm), night
        if engine["status"] != "FLAKY":  # a phase that the machine made slow once
            assert keys(engine["new"]) | keys(engine["explains"]) == told, engine
            assert keys(engine["standing"]) == standing and engine["gone"] == [], engine
            assert engine["status"] == (
                "NEW" if day == 1 else "REGRESSED" if alarm else "STILL FAILING" if standing else "OK"
            )
        if day in BOTH:
            assert results[CONTROL]["status"] == ("NEW" if day == 1 else "OK"), results[CONTROL]
            assert results[CONTROL]["new"] == results[CONTROL]["explains"] == []
        standing |= alarm
    lines = re.findall(rf"1/\d {ENGINE}: ", nights.log())
    assert len(lines) == 14  # the first cell of the killed night was not run again
    assert not support.running(str(nights.folder))
