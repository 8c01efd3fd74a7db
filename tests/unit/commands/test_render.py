"""`harness render`: every launcher is a command; GitHub's workflows are valid, and the project's own are its output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import cli
from harness.launchers import WRITTEN_BY, github, launchers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SOURCE = "wheels/it-1-py3-none-any.whl"
MATRIX = 'name = "x"\n[matrix]\npairs = [["hf", "vllm"], ["hf", "sglang"]]\nmodes = ["coupled", "greedy"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_SOURCE", SOURCE)
    (tmp_path / "night's.toml").write_text(MATRIX)
    return tmp_path


def rendered(*words: str) -> dict[str, dict[Any, Any]]:
    assert cli.main(["render", "github", "night's.toml", "--recreate", *words]) == 0
    return {path.name: yaml.safe_load(path.read_text()) for path in Path(".github/workflows").iterdir()}


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_each_launcher_is_a_file_with_a_command() -> None:
    files = {path.stem.replace("_", "-") for path in (ROOT / "harness" / "launchers").glob("[a-z]*.py")}
    assert set(launchers()) == files and "github" in files
    assert all(cli.main(["render", name, "--help"]) == 0 for name in launchers())


def test_a_cell_is_a_job_with_a_cache_an_artefact_a_summary_and_annotations(folder: Path) -> None:
    night = rendered("--at", "0 3 * * *")["harness-nightly.yml"]
    assert night["on"] == {"schedule": [{"cron": "0 3 * * *"}], "workflow_dispatch": None}
    cells = night["jobs"]["cell"]["strategy"]["matrix"]["include"]
    assert [one["cell"] for one in cells][:2] == ["hf-vllm/ppo-tiny/coupled", "hf-vllm/ppo-tiny/greedy"]
    assert len({one["key"] for one in cells}) == 4 and all(re.fullmatch(r"[\w.-]+", one["key"]) for one in cells)
    used = [step.get("uses") for step in steps(night)]
    assert any("upload-artifact" in str(one) for one in used) and any("cache@" in str(one) for one in used)
    [cell] = [step for step in steps(night) if step.get("name") == "Cell"]
    assert shlex.split(cell["run"]) == ["harness", "nightly", "night's.toml", "--only", "$CELL", "--format", "github"]
    [summary] = [step for step in steps(night) if step.get("name") == "Summary"]
    assert "night.md" in summary["run"] and "GITHUB_STEP_SUMMARY" in summary["run"] and "always()" in summary["if"]
    [keep] = [step for step in steps(night) if step.get("name") == "Keep the history"]
    assert "always()" in keep["if"], "a cell that regressed must not lose its history"


def test_what_gates_a_push_is_given_or_the_first_pair_of_the_matrix(folder: Path) -> None:
    [gate] = [step for step in steps(rendered()["harness-push.yml"]) if step.get("name") == "Gate"]
    words = shlex.split(gate["run"])
    assert words[:4] == ["harness", "parity", "hf", "vllm"] and words[words.index("--format") + 1] == "github"
    lines = "make test\necho ${{ github.ref }} 'x: y'"
    [gate] = [step for step in steps(rendered("--on-push", lines)["harness-push.yml"]) if step.get("name") == "Gate"]
    assert gate["run"] == lines


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("harness paritty hf vllm --out runs/push", "harness parity hf vllm --out runs/push"),
        ("make && harness parity hf vlm --out runs/push", "make && harness parity hf vllm --out runs/push"),
        ("harness parity hf vllm --rollout-onyl > log", "harness parity hf vllm --rollout-only > log"),
        ("make\nharness env creat vllm", "make\nharness env create vllm"),
    ],
)
@pytest.mark.parametrize("option", ["--on-push", "--nightly"])
def test_a_command_of_the_harness_that_cannot_start_is_refused_with_the_nearest(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, line: str, mended: str
) -> None:
    words = ["render", "github", "night's.toml", option]
    assert cli.main([*words, line]) == 2 and not Path(".github").exists()
    fix = shlex.split(capsys.readouterr().err.partition("fix: ")[2])
    assert fix == ["harness", *words, mended]
    assert cli.main(fix[1:]) == 0


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("harness parity hf vllm", True),
        ("harness parity hf vllm --out runs/other 2>&1 | tee log", True),
        ("harness parity hf vllm --out runs/push 2>&1 | tee log", False),
        ("harness parity hf $ENGINE", False),
        ("make test", False),
        ("echo 'harness paritty'", False),
        ("harness --help", False),
        ("harness parity hf 'vllm", False),
    ],
)
def test_a_gate_that_writes_no_verdict_for_the_summary_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, is_told: bool
) -> None:
    rendered("--on-push", line)
    assert ("--out runs/push" in capsys.readouterr().err) is is_told


def test_a_job_of_one_s_own_is_a_workflow_that_keeps_what_the_harness_left(folder: Path) -> None:
    options = ["--on", "pull_request", "--at", "0 3 * * *", "--time", "30m", "--install", "pip install ."]
    assert cli.main(["render", "github-job", *options, "--", "torchrun", "train.py"]) == 0
    workflow = yaml.safe_load(Path(".github/workflows/torchrun.yml").read_text())
    assert workflow["on"] == {"workflow_dispatch": None, "pull_request": None, "schedule": [{"cron": "0 3 * * *"}]}
    of = {step.get("name"): step for step in steps(workflow)}
    assert of["Install the harness"]["run"] == "pip install ." and of["Job"]["timeout-minutes"] == 30
    script = Path(shlex.split(of["Job"]["run"])[1])
    assert 'pause "1500"' in script.read_text() and script.is_file()
    assert of["Recordings and reports"]["with"]["path"] == "harness-*/" and "always()" in of["Summary"]["if"]


def test_a_workflow_that_names_a_secret_of_the_repository_holds_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rendered()
    assert not capsys.readouterr().err
    rendered("--setup", "git clone https://me:Zq7hunter2Xw9@example.org/job.git")
    assert capsys.readouterr().err.count(" holds a secret in clear") == 2


def test_a_file_of_somebody_else_is_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folder / ".github" / "workflows" / "harness-push.yml"
    own.parent.mkdir(parents=True)
    own.write_text("name: mine\n")
    assert cli.main(["render", "github", "night's.toml"]) == 2
    assert "was not written by harness render" in capsys.readouterr().err
    assert own.read_text() == "name: mine\n" and len(list(own.parent.iterdir())) == 1


@pytest.mark.by_day(2)
@pytest.mark.parametrize("launcher", [name for name in launchers() if name != "kuberay"])
def test_a_file_that_was_edited_is_replaced_only_when_asked(
    launcher: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["night's.toml"] if launcher == "github" else ["--", "python", "x"]
    command = ["render", launcher, "--out", "out", *words]
    assert cli.main(command) == 0 and cli.main(command) == 0
    edited = min((folder / "out").iterdir())
    rendered_text = edited.read_text()
    edited.write_text(f"{rendered_text}# mine\n")
    capsys.readouterr()
    assert cli.main(command) == 2 and edited.read_text().endswith("# mine\n")
    fix = shlex.split(capsys.readouterr().err.partition("  fix: ")[2], comments=True)
    assert "--recreate" in fix and cli.main(fix[1:]) == 0 and edited.read_text() == rendered_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\n[[faults]]\nsuite = "hang"', "compares no pair of engines that could gate a push"),
        (MATRIX, "has 4 cells, a GitHub matrix at most 3"),
    ],
)
def test_a_matrix_that_github_cannot_run(
    folder: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(github, "MOST_JOBS", 3)  # looking at the 257 cells of a real one takes 20 s
    (folder / "night's.toml").write_text(text)
    assert cli.main(["render", "github", "night's.toml"]) == 2
    assert words in capsys.readouterr().err and not (folder / ".github").exists()


def test_the_workflows_of_this_project_are_what_their_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    own = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()}
    for text in own.values():
        first, second, *_ = text.splitlines()
        assert first == WRITTEN_BY
        workflow = yaml.safe_load(text)
        assert {"name", "on", "jobs", "permissions"} <= set(workflow)
        uses = [step["uses"] for step in steps(workflow) if "uses" in step]
        assert uses and all(re.fullmatch(r"actions/[a-z/-]+@v\d+", one) for one in uses)
    command = shlex.split(second.removeprefix("# "))
    assert cli.main([*command[1:], "--out", str(tmp_path)]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == own


def test_paths_in_the_repository_are_relative_to_its_root_and_others_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository := folder / "repository").mkdir()
    (repository / ".git").mkdir()
    (repository / "below").mkdir()
    (repository / "night.toml").write_text(MATRIX)
    monkeypatch.chdir(repository / "below")
    words = ["render", "github", "--out", str(folder / "out"), str(repository / "night.toml")]
    assert cli.main([*words, "--source", str(repository / "wheels" / "a.whl")]) == 0
    texts = [path.read_text() for path in (folder / "out").iterdir()]
    assert all(str(folder) not in text and "'wheels/a.whl[" in text for text in texts)
    assert any("nightly night.toml" in text for text in texts)
    assert cli.main([*words, "--source", str(folder / "a.whl")]) == 2
    assert cli.main([*words[:-1], str(folder / "night's.toml")]) == 2
