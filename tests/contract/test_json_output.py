"""What every command prints with `--format json` fits the schema that is published for it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import reports_examples as examples
from recordings import make, pair, put

from harness import cli, envs
from harness.envs.checking import Check
from harness.envs.environment import Environment
from harness.frameworks import symbols
from harness.planted.differences import tables as difference_tables
from harness.planted.differences.outcome import score as difference_score
from harness.planted.hangs import lab
from harness.planted.hangs import tables as hang_tables
from harness.schemas import Schema, schemas
from reports.bisect_model import Bisection, Step
from reports.nightly_model import CellResult, Change, Night

_spec = importlib.util.spec_from_file_location("generate", Path(__file__).parents[2] / "docs" / "generate.py")
assert _spec is not None and _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


def of(name: str) -> Schema:
    return next(item for item in schemas() if item.name == name)


def validate(name: str, document: Any) -> None:
    schema = json.loads(generate.pages()[f"reference/schemas/{name}.json"])
    jsonschema.Draft202012Validator(schema).validate(document)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    cli.main([*words, "--format", "json"])
    return json.loads(capsys.readouterr().out)


def test_every_command_that_prints_json_has_a_schema() -> None:
    known = {words for item in schemas() for words in item.commands}
    printing = {words for words, command in generate.commands() if any(one.name == "format" for one in command.params)}
    assert printing == known


def test_the_arguments_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    made = Environment("mine", "vllm", "1", sys.executable, "3.11", "2", "2", "cpu", owned=False)
    made.folder.mkdir(parents=True)
    (made.folder / "env.json").write_text(json.dumps(made.to_json()))
    takes = {"engine": ["model"], "sampling": ["top_k"], "head_sizes": [64], "server": ["port"],
             "choices": {"dtype": ["auto", "half"]}}  # fmt: skip
    (made.folder / "accepted.json").write_text(json.dumps({"version": "1", **takes}))
    document = printed(capsys, "env", "arguments", "mine")
    validate("engine-arguments", document)
    assert document == takes


@pytest.mark.slow
@pytest.mark.parametrize("item", schemas(), ids=lambda item: item.name)
def test_each_is_a_schema_that_refuses_something(item: Schema) -> None:
    schema = item.json()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid("text")


@pytest.mark.slow
def test_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = put(tmp_path, *pair())
    (tmp_path / "verdict.json").write_text(verdict.to_json())
    for words in (["diff", str(tmp_path)], ["report", str(tmp_path)]):
        validate("verdict", printed(capsys, *words))
    for example in (examples.equivalent(), examples.stale_tensor(), examples.nothing()):
        document = json.loads(example.to_json())
        validate("verdict", document)
    with pytest.raises(jsonschema.ValidationError):
        validate("verdict", document | {"exit_code": "1"})
    with pytest.raises(jsonschema.ValidationError):
        validate("verdict", {key: value for key, value in document.items() if key != "reason"})


def test_a_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from triage_evidence import evidence, process

    from harness.triage import directory

    directory.write(evidence(process(7, "trainer")), tmp_path)
    document = printed(capsys, "triage", str(tmp_path))
    validate("verdict", document)
    assert document["kind"] == "triage"


@pytest.mark.slow
def test_a_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "users.py").write_text("def f(args):\n    return {'random_seed': args['seed']}\n")
    document = printed(capsys, "mapping", str(tmp_path / "users.py"), "--engine", "sglang")
    validate("mapping", document)
    assert document["exit_code"] == 1 and document["arrived"]["engine"] == ["seed"]


@pytest.mark.slow
def test_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    validate("explanations", printed(capsys, "explain"))


@pytest.mark.slow
def test_a_recorded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validate("recorded-run", printed(capsys, "report", str(make("baseline").write(tmp_path))))


@pytest.mark.slow
def test_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one.zip"
    document = printed(capsys, "bundle", str(make("baseline").write(tmp_path / "run")), "--out", str(out))
    validate("bundle", document)
    assert (document["path"], document["bytes"]) == (str(out), out.stat().st_size) and document["manifest"]["files"]


@pytest.mark.slow
def test_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, "doctor", "--no-imports")
    validate("doctor-report", document)
    with pytest.raises(jsonschema.ValidationError):
        validate("doctor-report", {key: value for key, value in document.items() if key != "exit_code"})


def test_a_night() -> None:
    change = Change("cause", "STOP", "a new cause: STOP")
    cell = CellResult("vllm-sglang", "REGRESSED", "DIVERGENT", "they differ", float("nan"), (change,))
    validate("night", json.loads(Night(3, "matrix", "2026-01-01", (cell,), (("other", "no GPU"),)).to_json()))


@pytest.mark.slow
def test_a_bisection() -> None:
    step = Step("vllm@0.31", "skip", "its environment cannot be", float("nan"), environment="vllm-0.31")
    one = Bisection("releases", "why?", "ONE OF THESE", "one of two", (("vllm@0.31", "vllm@0.32"),), steps=(step,))
    validate("bisection", json.loads(one.to_json()))
    with pytest.raises(jsonschema.ValidationError):
        validate("bisection", json.loads(one.to_json()) | {"status": "LOST"})


@pytest.mark.slow
def test_environments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    one = Environment("vllm", "vllm", "0.32.0", "/x/python", "3.11.7", "2.60.0", "2.13.0", "cpu", True, shims=("a",))
    monkeypatch.setattr(envs, "all_environments", lambda: [one])
    monkeypatch.setattr(envs, "check", lambda *a, **k: [Check("ray", "failed", "2.1", "harness env create vllm")])
    validate("environments", printed(capsys, "env", "list"))
    validate("environment-checks", printed(capsys, "env", "check"))


@pytest.mark.slow
def test_adapters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = symbols.Checked("trl", "python", "1.0", True, ("1.0", "2.0"), (symbols.Symbol("a.b", "always", "moved"),))
    monkeypatch.setattr(symbols, "check", lambda *a, **k: found)
    document = printed(capsys, "adapters", "check")
    validate("adapters", document)
    with pytest.raises(jsonschema.ValidationError):
        validate("adapters", [{key: value for key, value in document[0].items() if key != "ok"}])


@pytest.mark.slow
def test_planted_faults(capsys: pytest.CaptureFixture[str]) -> None:
    validate("faults", printed(capsys, "faults", "list"))
    validate("fault-suite", json.loads(json.dumps(hang_tables.as_json([], lab.score([]), 5.0))))
    validate("fault-suite", json.loads(json.dumps(difference_tables.as_json([], difference_score([])))))


@pytest.mark.slow
def test_no_command_loads_the_schemas() -> None:
    code = "import sys, harness.cli; print('harness.schemas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.slow
def test_a_history_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")
    from nightly_support import keep, observation

    from harness.nightly.history import History

    at = ("--history", str(tmp_path / "history.db"))
    with History.at(at[1]) as history:
        for verdict, k1 in (("EQUIVALENT", 0.5), ("DIVERGENT", float("nan"))):
            keep(history, history.begin("trial", [], []), "a", observation(verdict, k1=k1))
    nights = printed(capsys, "history", "list", *at)
    validate("nights", nights)
    assert [(one["number"], one["cells"], one["finished"]) for one in nights] == [
        (2, {"OK": 1}, False),
        (1, {"OK": 1}, False),
    ]
    compared = printed(capsys, "history", "compare", "1", "2", *at)
    validate("night-differences", compared)
    assert compared == [{"cell": "a", "first": "EQUIVALENT", "second": "DIVERGENT"}]
    course = printed(capsys, "history", "metric", "a", "k1", *at)
    validate("metric-course", course)
    assert course["values"] == [{"night": 1, "value": 0.5}, {"night": 2, "value": None}]
