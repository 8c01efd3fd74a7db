"""Planted faults stay out of production: neither the controller nor a session of an ordinary comparison loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLANTED = ("scenarios.planted", "harness.planted")

# `harness parity` up to the cluster, where what it would start is printed: without options, then with those given.
CONTROLLER = """
import json, sys
from harness.cluster import experiment
from harness.parity.runs import run
from harness.errors import HarnessError

class Stop(HarnessError):
    pass

def record(pair, *rest, **named):
    sides = {side.name: (side.plants.name, side.plants.engine is not None) for side in (pair.baseline, pair.candidate)}
    planted = [name for name in sys.modules if name.startswith(("scenarios.planted", "harness.planted"))]
    print(json.dumps({"sides": sides, "planted": planted}))
    raise Stop("")

run._record_pair = record
from harness.cli import app
for options in ([], sys.argv[2:]):
    try:
        app(["parity", "hf", "hf", "--out", sys.argv[1], *options], standalone_mode=False)
    except Stop:
        pass
"""

# A session and a trainer, as they are started for a side that has nothing planted, then for one that has.
SESSION = """
import json, sys
from ppo_support import random_models, scenario, stack
from pathlib import Path
from scenarios.plants import Injection
from scenarios.session import EngineSession

home = Path(sys.argv[1])
planted = json.loads(sys.argv[2])
models = random_models(home)
both = [Injection(*planted[name]) for name in ("engine", "trainer")]
for run, (engine, trainer) in {"ordinary": (None, None), "planted": both}.items():
    with stack(scenario(), models) as running:
        running.session.submit("configure", running.scenario.to_json(), engine).result()
        made = running.trainer(home / run, plants=trainer)
        made.start()
        made.step(0)
        made.close()
    print(json.dumps([name for name in sys.modules if name.startswith(("scenarios.planted", "harness.planted"))]))
"""


def lines(script: str, *words: str) -> list[Any]:
    """The last two lines that the script prints, in an interpreter of its own."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    done = subprocess.run(
        [sys.executable, "-c", script, *words], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-2:]]


def test_the_controller_loads_planted_faults_only_for_the_option(tmp_path: Path) -> None:
    ordinary, planted = lines(CONTROLLER, str(tmp_path / "out"), "--fault", "shifted-logprobs")
    assert ordinary == {"sides": {"baseline": ["", False], "candidate": ["", False]}, "planted": []}
    assert planted["sides"] == {"baseline": ["", False], "candidate": ["shifted-logprobs", True]}
    assert planted["planted"]


@pytest.mark.night
def test_a_session_and_a_trainer_load_planted_faults_only_where_one_is_named(tmp_path: Path) -> None:
    named = {
        "engine": ["scenarios.planted.differences.faulty_engine:wrap", {"shift": 1}],
        "trainer": ["scenarios.planted.differences.trainer:plant", {"scale": 2.0}],
    }
    ordinary, planted = lines(SESSION, str(tmp_path), json.dumps(named))
    wrappers = {f"scenarios.planted.differences.{name}" for name in ("faulty_engine", "trainer")}
    assert not ordinary and wrappers <= set(planted), (ordinary, planted)
