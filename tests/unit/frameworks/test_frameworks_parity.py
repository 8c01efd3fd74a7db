"""A framework's job on two engines: what is swapped, what is refused, and what a job that fails leaves."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from framework_recordings import job

from harness.errors import BadInput
from harness.frameworks import job_parity
from harness.frameworks.installed import Installation
from harness.frameworks.record import RecordResult
from harness.frameworks.spec import frameworks

SWITCH = "actor_rollout_ref.rollout.name"
VERL = [sys.executable, "-m", "verl.trainer.main_ppo"]
OPENRLHF = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]


@pytest.fixture(autouse=True)
def as_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No framework is installed beside the tests; what is refused for that has a test of its own."""
    monkeypatch.setattr(job_parity, "refuse_absent", lambda *_: None)


def plan(baseline: str, candidate: str, command: list[str], framework: str = "auto") -> Any:
    return job_parity.plan(
        baseline, candidate, command, job_parity.JobOptions(framework=framework), {"PATH": "/usr/bin:/bin"}
    )


@pytest.mark.slow
def test_an_engine_that_the_framework_cannot_run_is_refused_before_anything_is_to_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: object) -> None:
        raise BadInput("No module named 'openrlhf'")

    monkeypatch.setattr(job_parity, "refuse_absent", absent)
    with pytest.raises(BadInput, match=r"(?i)sglang"):
        plan("vllm", "sglang", OPENRLHF, "openrlhf")
    with pytest.raises(BadInput, match="No module"):
        plan("vllm", "vllm", OPENRLHF, "openrlhf")


@pytest.mark.parametrize(("framework", "word"), [("openrlhf", "openrlhf"), ("auto", "verl")])
def test_without_a_command_the_fix_keeps_the_framework(framework: str, word: str) -> None:
    with pytest.raises(BadInput) as refused:
        plan("vllm", "vllm", [], framework)
    assert f"--framework {word} -- python train.py" in str(refused.value.fix)


@pytest.mark.slow
@pytest.mark.parametrize("given", [[], [f"{SWITCH}=vllm"], [f"{SWITCH}=sglang", "a.b=c"], [f"++{SWITCH}=vllm"]])
def test_verls_engine_is_swapped_by_its_own_switch_and_nothing_else(given: list[str]) -> None:
    job, left, right = plan("vllm", "sglang", [*VERL, *given])
    assert job.framework.name == "verl"
    assert [word for word in left.command if SWITCH in word] == [f"{SWITCH}=vllm"]
    assert [word for word in right.command if SWITCH in word] == [f"{SWITCH}=sglang"]
    rest = [[word for word in side.command if SWITCH not in word] for side in (left, right)]
    assert rest[0] == rest[1] == [*VERL, *(word for word in given if SWITCH not in word)]
    assert left.environ == right.environ


def environments(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Registered environments a and b, whose interpreters hold the framework in those versions (empty: not at all)."""

    def resolve(backend: str, *, create: bool = True) -> SimpleNamespace:
        assert not create
        return SimpleNamespace(python=f"/envs/{backend.partition('@')[2]}/bin/python", version="0.32.0")

    monkeypatch.setattr(job_parity.envs, "resolve", resolve)
    monkeypatch.setattr(
        job_parity,
        "ask",
        lambda python, adapter, environ, **more: Installation(python, versions[python.split("/")[2]], {}),
    )


def test_an_upgrade_gate_swaps_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    _, left, right = plan("vllm@a", "vllm@b", [*OPENRLHF, "--data.max_len", "8"])
    assert left.command == ("/envs/a/bin/python", *OPENRLHF[1:], "--data.max_len", "8")
    assert right.command == ("/envs/b/bin/python", *OPENRLHF[1:], "--data.max_len", "8")
    assert right.environ["PATH"].startswith("/envs/b/bin:")


@pytest.mark.slow
def test_a_script_is_told_where_its_interpreter_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.9.1")
    _, left, right = plan("vllm", "sglang@a", ["sh", "job.sh", job_parity.PYTHON], "verl")
    assert right.command[:3] == ("sh", "job.sh", "/envs/a/bin/python")
    assert job_parity.PYTHON not in " ".join(left.command)


def test_coupled_sampling_gives_both_engines_their_processors_and_nothing_else() -> None:
    _, left, right = job_parity.plan(
        "vllm", "sglang", VERL, job_parity.JobOptions(coupled=7), {"PATH": "/usr/bin", "PYTHONPATH": "/mine"}
    )
    assert left.environ == right.environ and left.environ["RLHF_HARNESS_COUPLED"] == "7"
    ours, mine = left.environ["PYTHONPATH"].split(":")
    assert mine == "/mine" and (Path(ours) / "scenarios" / "jobs" / "verl.py").exists()
    assert "[verl.plugins]" in next(Path(ours).glob("*.dist-info/entry_points.txt")).read_text()
    rest = [[word for word in side.command if SWITCH not in word] for side in (left, right)]
    assert rest[0] == rest[1] and len(rest[0]) == len(VERL) + len(frameworks()["verl"].overrides)


def test_both_environments_of_a_gate_get_the_same_seed_and_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    _, left, right = job_parity.plan("vllm@a", "vllm@b", OPENRLHF, job_parity.JobOptions(coupled=5))
    names = ("RLHF_HARNESS_COUPLED", "RLHF_HARNESS_SEED", "RLHF_HARNESS_PLUGIN", "PYTHONPATH")
    assert [left.environ[name] for name in names] == [right.environ[name] for name in names]
    assert left.environ["RLHF_HARNESS_SEED"] == "5"


def test_a_seed_is_refused_where_the_framework_has_its_own() -> None:
    with pytest.raises(BadInput, match="verl has seeds of its own"):
        job_parity.plan("vllm", "sglang", VERL, job_parity.JobOptions(seed=5))


def test_an_interpreter_that_cannot_be_placed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.9.1")
    with pytest.raises(BadInput, match="does not say which Python"):
        plan("vllm", "sglang@a", ["./job"], "verl")


def test_an_environment_without_the_framework_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="")
    with pytest.raises(BadInput, match="has no openrlhf"):
        plan("vllm@a", "vllm@b", OPENRLHF)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "command", "message"),
    [
        (("vllm", "sglang"), OPENRLHF, "does not generate with sglang"),
        (("vllm", "hf"), VERL, "does not generate with hf"),
        (("vllm", "sglang"), [], "no command"),
        (("vllm", "sglang"), ["true"], "neither the words"),
    ],
)
def test_pairs_that_cannot_be_run_are_refused(pair: tuple[str, str], command: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plan(*pair, command)


@pytest.mark.slow
def test_what_would_break_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [*VERL, "actor_rollout_ref.rollout.full_determinism=True", "actor_rollout_ref.rollout.n=4"]
    with pytest.raises(BadInput, match="full_determinism"):
        job_parity.run_framework_parity("vllm", "sglang", command, job_parity.JobOptions(out=tmp_path / "pair"))
    assert not (tmp_path / "pair").exists()


@pytest.mark.slow
def test_a_trap_that_cannot_be_told_refuses_nothing_and_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(job_parity, "record", lambda *args, **kwargs: RecordResult(3, None, None))
    rollout = "actor_rollout_ref.rollout"
    said: list[str] = []
    job_parity.run_framework_parity(
        "vllm", "sglang", [*VERL, f"{rollout}.full_determinism=True", f"{rollout}.n=$N"],
        job_parity.JobOptions(out=tmp_path), say=said.append,
    )  # fmt: skip
    assert "vllm: verl-determinism is not checked: rollout.n is $N, which only the shell knows" in said


@pytest.mark.slow
def test_a_job_that_fails_is_inconclusive_and_its_other_half_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "print('its loss'); raise SystemExit('OSError: full')", "verl.trainer.main_ppo"]
    fits = ["trainer.n_gpus_per_node=2", "data.train_batch_size=256", "actor_rollout_ref.rollout.n=2"]
    said: list[str] = []
    verdict = job_parity.run_framework_parity(
        "vllm", "sglang", [*command, *fits], job_parity.JobOptions(framework="verl", out=tmp_path / "pair"), said.append
    )
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)
    assert "exit code 1: OSError" in verdict.reason
    assert (tmp_path / "pair" / "verdict.json").exists()
    assert not (tmp_path / "pair" / "candidate").exists()
    assert any("verl gives SGLang no seed" in line for line in said)
    assert verdict.reproduce.startswith("harness parity vllm sglang --framework verl -- ")
    out, err = capfd.readouterr()
    assert "its loss" in err and not out  # where the command prints the verdict, which a program may read


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "told"), [(None, True), (5, False)])
def test_a_trap_that_the_seed_removes_is_not_told(
    tmp_path: Path, monkeypatch: Any, seed: int | None, told: bool
) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    monkeypatch.setattr(job_parity, "record", lambda *args, **kwargs: RecordResult(3, None, None))
    said: list[str] = []
    verdict = job_parity.run_framework_parity(
        "vllm@a", "vllm@b", OPENRLHF, job_parity.JobOptions(out=tmp_path / "pair", seed=seed), said.append
    )
    assert any("shuffles its prompts without its seed" in line for line in said) == told
    assert ("openrlhf-data" in {one.name for one in verdict.findings}) == told
    assert ("--seed 5" in verdict.reproduce) != told


def recorded_as(
    monkeypatch: pytest.MonkeyPatch, *, broken: str = "", moved: str = "", other: str = "", drawn: str = ""
) -> list[str]:
    """Runs that write a recording instead of starting a job; returns the names of their directories as they come.

    `broken`: the one whose job fails. `moved`: the one whose log-probabilities are off. `other`: the one with
    another seed. `drawn`: the engine and version that the candidate says to have drawn with; "nobody": no process of
    it says so.
    """
    names: list[str] = []

    def record(command: Any, *, out: Path, **rest: Any) -> SimpleNamespace:
        made = job(out.name.removesuffix(job_parity.AGAIN), noise=3e-7 + 1e-8 * len(names), started=10**9 * len(names))
        names.append(out.name)
        made.manifest["seeds"]["data"] = 5
        if out.name == moved:
            made.frame("rollout", 1).arrays["logprob"].values[:] += 1e-2
        if out.name == other:
            made.manifest["scenario"]["seed"] = 9
        if drawn == "nobody" and out.name == "candidate":
            made.drop("engine_info")
        elif drawn and out.name == "candidate":
            for info in made.events("engine_info"):
                info |= dict(zip(("engine", "version"), drawn.split(" "), strict=True))
        made.write(out)
        return RecordResult(3 if out.name == broken else 0, None, None)

    environments(monkeypatch, a="0.11.2", b="0.11.3")
    monkeypatch.setattr(job_parity, "record", record)
    return names


def gate(folder: Path, *, candidate: str = "vllm@b", **options: Any) -> Any:
    asked = job_parity.JobOptions(out=folder / "pair", **{"coupled": 5, **options})
    return job_parity.run_framework_parity("vllm@a", candidate, OPENRLHF, asked)


@pytest.mark.slow
def test_a_coupled_pair_runs_its_baseline_again_and_can_be_equivalent(tmp_path: Path, monkeypatch: Any) -> None:
    names = recorded_as(monkeypatch)
    verdict = gate(tmp_path)
    assert names == ["baseline", "candidate", "baseline-again"]
    assert (verdict.verdict, verdict.exit_code) == ("EQUIVALENT", 0), verdict.reason
    assert verdict.coverage["repeated"]["baseline"]["parts_at_step"] is None
    assert "baseline-again_s" in verdict.figures and "--repeat" not in verdict.reproduce


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "runs", "outcome"),
    [
        ({"repeat": "none"}, 2, "INCONCLUSIVE"),
        ({"repeat": "both"}, 4, "EQUIVALENT"),
        ({"coupled": None, "seed": 5}, 2, "INCONCLUSIVE"),
        ({"candidate": "vllm@a"}, 3, "EQUIVALENT"),  # does the job repeat itself?
    ],
)
def test_how_often_the_job_is_run(
    tmp_path: Path, monkeypatch: Any, options: dict[str, Any], runs: int, outcome: str
) -> None:
    names = recorded_as(monkeypatch)
    verdict = gate(tmp_path, **options)
    assert len(names) == runs and verdict.verdict == outcome, verdict.reason
    assert ("--repeat" in verdict.reproduce) == ("repeat" in options)


@pytest.mark.slow
@pytest.mark.parametrize(("moved", "cause"), [("candidate", None), ("baseline-again", "baseline-itself")])
def test_what_moves_is_found_on_its_side(tmp_path: Path, monkeypatch: Any, moved: str, cause: str | None) -> None:
    recorded_as(monkeypatch, moved=moved)
    verdict = gate(tmp_path)
    assert verdict.verdict == "DIVERGENT"
    assert ("baseline-itself" in [one.name for one in verdict.causes]) == (cause is not None)


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        ("transformers 5.19.0", "on vllm@b transformers drew the samples, not vllm"),
        ("vllm 0.31.0", "on vllm@b vllm 0.31.0 drew the samples, not the environment's 0.32.0"),
        ("vllm 0.32.0+cpu", ""),
        ("vllm ", "on vllm@b which version of vllm drew is not recorded"),
        ("nobody", "on vllm@b which engine drew is not recorded"),
    ],
)
def test_a_side_whose_engine_was_not_swapped_proves_nothing(
    tmp_path: Path, monkeypatch: Any, drawn: str, why: str
) -> None:
    recorded_as(monkeypatch, drawn=drawn)
    verdict = gate(tmp_path)
    assert (verdict.verdict, why in verdict.reason) == ("INCONCLUSIVE" if why else "EQUIVALENT", True), verdict.reason


@pytest.mark.slow
def test_a_job_that_recorded_nothing_at_all_proves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    recorded_as(monkeypatch)
    monkeypatch.setattr(job_parity, "record", lambda *args, **kwargs: RecordResult(0, None, None))
    verdict = gate(tmp_path)
    assert verdict.verdict == "INCONCLUSIVE" and "vllm@a" in verdict.reason


@pytest.mark.slow
def test_a_first_run_without_rollouts_is_the_last(tmp_path: Path, monkeypatch: Any) -> None:
    places = []

    def record(*words: Any, out: Path, **options: Any) -> RecordResult:
        places.append(out.name)
        return RecordResult(0, None, None, unrecorded="the hooks of verl recorded no rollout")

    recorded_as(monkeypatch)
    monkeypatch.setattr(job_parity, "record", record)
    verdict = gate(tmp_path)
    assert verdict.verdict == "INCONCLUSIVE" and "hooks of verl" in verdict.reason
    assert verdict.fix.startswith("harness adapters check --framework ")
    assert places == ["baseline"]


@pytest.mark.slow
def test_a_second_run_that_fails_is_none_and_costs_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    recorded_as(monkeypatch, broken="baseline-again")
    verdict = gate(tmp_path)
    assert verdict.verdict == "INCONCLUSIVE"
    assert verdict.reason == "1,209 of 1,209 tokens equal, but baseline-itself was not tested"
    assert any("the floor was not measured" in item for item in verdict.missing)
    assert any("exit code 3" in item for item in verdict.missing)


@pytest.mark.slow
def test_a_pair_that_failed_is_not_run_again(tmp_path: Path, monkeypatch: Any) -> None:
    names = recorded_as(monkeypatch, broken="candidate")
    verdict = gate(tmp_path)
    assert names == ["baseline", "candidate"] and verdict.verdict == "INCONCLUSIVE"
    assert verdict.fix.endswith("   # the job alone, until it ends with 0")


@pytest.mark.slow
def test_a_confounded_pair_is_not_run_again(tmp_path: Path, monkeypatch: Any) -> None:
    names = recorded_as(monkeypatch, other="candidate")
    assert gate(tmp_path).verdict == "CONFOUNDED" and len(names) == 2


@pytest.mark.slow
def test_two_recordings_and_a_second_run_are_judged_from_their_directories(tmp_path: Path, monkeypatch: Any) -> None:
    from harness.parity.runs.run import diff

    recorded_as(monkeypatch)
    gate(tmp_path)
    folder = tmp_path / "pair"
    assert diff(folder / "baseline", folder / "candidate").verdict == "INCONCLUSIVE"
    verdict = diff(folder / "baseline", folder / "candidate", again=folder / "baseline-again")
    assert verdict.verdict == "EQUIVALENT" and f"--again {folder / 'baseline-again'}" in verdict.reproduce
    shutil.rmtree(folder / "baseline-again")
    with pytest.raises(BadInput, match="does not exist"):
        diff(folder / "baseline", folder / "candidate", again=folder / "baseline-again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vllm", "sglang", "--steps", "3", "--", "true"], "--steps: of no use with a job's command"),
        (
            ["vllm", "sglang", "--framework", "verl", "--mapping", "x.py", "--no-native"],
            "--mapping, --no-native: of no",
        ),
        (["vllm", "sglang", "--mode", "greedy", "--", "true"], "--mode greedy: a job draws"),
        (["hf", "hf", "--repeat", "both"], "--repeat: only a job is run a second time"),
    ],
)
def test_an_option_that_would_not_count_is_refused(words: list[str], said: str) -> None:
    from typer.testing import CliRunner

    from harness.cli import app

    found = CliRunner().invoke(app, ["parity", *words])
    assert isinstance(found.exception, BadInput) and said in found.exception.message
