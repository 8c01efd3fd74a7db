"""Cells that are played by a script: what a comparison shows is read from a file, so that a night takes seconds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.nightly.judge import Past
from harness.nightly.observation import Facts, Observation
from reports.model import EXIT_CODES, Cause, Check, Parity, RunSummary, Verdict
from reports.nightly_model import CellResult
from scenarios.engines.engine_processes import title

if TYPE_CHECKING:
    from harness.nightly.history import History

# Plays `harness parity A B --out DIR …`: the verdict of the pair, from the file that holds all of them.
PLAYER = """
import json, os, subprocess, sys, time
from pathlib import Path
from typing import TYPE_CHECKING
words = sys.argv[2:]
script = json.loads(Path(sys.argv[1]).read_text())
out = Path(words[words.index("--out") + 1])
played = script["-".join(words[1:3])]
if isinstance(played, list):  # one for each run
    count = Path(sys.argv[1]).with_suffix(".count-" + "-".join(words[1:3]))
    index = int(count.read_text()) if count.exists() else 0
    count.write_text(str(index + 1))
    played = played[min(index, len(played) - 1)]
if played == "hang":
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
if played == "orphans":  # of another session, without this environment, and one more below each
    program = "import subprocess, sys, time; sys.argv.pop() == '1' and subprocess.Popen([sys.executable, '-c', "
    program += "'import time; time.sleep(600)', *sys.argv[1:]], start_new_session=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", program, str(out), "1"], start_new_session=True, env={})
    (out.parent / "orphans").write_text("started")
    os.kill(os.getpid(), 9)
if played == "meet":  # two cells wait for each other
    (out.parents[2] / f"here-{os.getpid()}").touch()
    while len(list(out.parents[2].glob("here-*"))) < 2:
        time.sleep(0.05)
    played = script["equal"]
if played == "die":
    os.kill(os.getpid(), 9)
if played == "refuse":
    from harness import cli
    from harness.errors import BadInput
    sys.exit(cli._tell(BadInput("there is no backend"), []))
out.mkdir(parents=True)
(out / "verdict.json").write_text(json.dumps(played))
(out / "report.html").write_text("a report")
"""

# `harness nightly` with cells that the player plays, as a process of its own.
PLAYED = """
import sys
from harness import entry
from harness.nightly import cells
cells.COMMAND = (sys.executable, sys.argv.pop(1), sys.argv.pop(1))
entry.main()
"""

MATRIX = """
name = "trial"
[defaults]
limit = "60s"
[matrix]
pairs = [["hf", "hf"]]
[[include]]
pair = ["hf", "vllm"]
[[include]]
pair = ["hf", "sglang"]
"""


def verdict(name: str = "EQUIVALENT", *causes: str, checks: int = 5, tokens: int = 2000) -> Verdict:
    """A verdict of parity as the judge writes them, small."""
    tested = [Check(f"check {index}", "ruled out" if index < checks else "not tested", "") for index in range(5)]
    series = {"rollout_seconds": [9.0, 0.4, 0.4], "train_seconds": [2.0, 0.3, 0.3]}
    runs = [RunSummary(side, "hf", "", series=dict(series)) for side in ("baseline", "candidate")]
    metrics = {"candidate against baseline": {"max_delta_logprob": 4e-6, "k1": 0.0, "k3": 1e-13, "tokens": tokens}}
    return Verdict(
        "parity", name, EXIT_CODES[name], "a reason",
        causes=[Cause(one, "candidate", "a cause") for one in causes],
        coverage={"steps": 3, "samples": 96, "compared_tokens": tokens},
        parity=Parity(None, {"cap": 1e-4}, tested, runs, metrics), reproduce="harness parity hf hf",
    )  # fmt: skip


def script(file: Path, **pairs: Verdict | str | list[Verdict | str]) -> None:
    """What the player plays, by `baseline_candidate`."""

    def plain(value: Verdict | str) -> object:
        return value if isinstance(value, str) else value.to_dict()

    values = {key.replace("_", "-"): [plain(one) for one in value] if isinstance(value, list) else plain(value)
              for key, value in pairs.items()}  # fmt: skip
    file.write_text(json.dumps(values), encoding="utf-8")


def play(folder: Path, **pairs: Verdict | str) -> None:
    """The player, and the matrix where there is none, with EQUIVALENT for each pair that is not given."""
    (folder / "player.py").write_text(PLAYER)
    if not (folder / "matrix.toml").exists():
        (folder / "matrix.toml").write_text(MATRIX)
    script(folder / "script.json", **{**dict.fromkeys(("equal", "hf_hf", "hf_vllm", "hf_sglang"), verdict()), **pairs})


def observation(verdict: str = "EQUIVALENT", **metrics: float) -> Observation:
    facts = Facts({"check": "ruled out"}, {}, {"engine: vllm": "0.31"}, {"seed": "0"})
    return Observation(
        verdict, EXIT_CODES[verdict], "a reason", metrics={"k1": 0.0, **metrics}, facts=facts, seconds=2.0
    )


def keep(history: History, night: int, cell: str, one: Observation, status: str = "OK") -> None:
    history.add(night, one, CellResult(cell, status, one.verdict, one.reason, one.seconds))  # type: ignore[arg-type]


def running(word: str) -> list[str]:
    """The command lines of this machine that hold a word."""
    lines = [title(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()]
    return [line for line in lines if word in line]


def problems(past: list[Past]) -> list[set[str]]:
    return [{subject for _, subject in one.problems} for one in past]
