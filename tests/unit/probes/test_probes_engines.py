"""How a job's processes know the engines of packages that their interpreters need not have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.triage.watch.watched_command import watched
from probes.engines import BUILT_IN, TOLD, EngineProcess, encoded, heard
from scenarios.engines import registry

THEIRS = EngineProcess(titles=("theirs",), variables=("THEIRS_",), idle=(("/their_engine/server.py", "wait"),))
PLACES = st.lists(st.tuples(st.text(), st.text())).map(tuple)
WORDS = st.lists(st.text()).map(tuple)
PROCESSES = st.builds(
    EngineProcess, packages=WORDS, compiled=st.dictionaries(st.text(), st.text()), variables=WORDS,
    random_variables=st.text(), titles=WORDS, modules=WORDS, idle=PLACES, orders=PLACES,
)  # fmt: skip


@pytest.mark.slow
@given(st.dictionaries(st.text().filter(lambda name: name not in BUILT_IN), PROCESSES))
def test_what_is_told_is_heard(engines: dict[str, EngineProcess]) -> None:
    apart = {name: engine for name, engine in engines.items() if engine != EngineProcess()}
    assert heard(encoded({**BUILT_IN, **engines})) == apart


@given(st.one_of(st.text(), st.just("[1]"), st.just('{"a": 1}'), st.just('{"a": {"unknown": 1}}'), st.just("null")))
def test_what_is_no_such_text_is_ignored(text: str) -> None:
    assert heard(text) == {}


@pytest.mark.slow
def test_a_watched_job_is_told_of_the_engines_of_packages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOLD not in watched({}, tmp_path)
    monkeypatch.setattr(registry, "processes", lambda: {**BUILT_IN, "theirs": THEIRS})
    environment = watched(dict(os.environ), tmp_path)
    assert heard(environment[TOLD]) == {"theirs": THEIRS}
    code = "from probes import engines, environment, heartbeat; print(engines.TITLES, environment._OF_ENGINES, "
    code += "('/their_engine/server.py', 'wait', 'idle') in heartbeat._KNOWN)"
    root = str(Path(__file__).parents[3])
    heard_there = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**environment, "PYTHONPATH": root},
        check=True,
        capture_output=True,
        text=True,
    )
    titles, variables, idle = heard_there.stdout.split()
    assert titles.endswith("|theirs") and variables.endswith("|THEIRS_") and idle == "True"
