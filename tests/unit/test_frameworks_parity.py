"""A framework's job on two engines: what is swapped, what is refused, and what a job that fails leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import BadInput
from harness.frameworks import parity
from harness.frameworks.installed import Installation
from harness.frameworks.steering import OVERRIDES

SWITCH = "actor_rollout_ref.rollout.name"
VERL = [sys.executable, "-m", "verl.trainer.main_ppo"]
OPENRLHF = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]


def plan(baseline: str, candidate: str, command: list[str], framework: str = "auto") -> Any:
    return parity.plan(baseline, candidate, command, framework, {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("given", [[], [f"{SWITCH}=vllm"], [f"{SWITCH}=sglang", "a.b=c"], [f"++{SWITCH}=vllm"]])
def test_verls_engine_is_swapped_by_its_own_switch_and_nothing_else(given: list[str]) -> None:
    job, left, right = plan("vllm", "sglang", [*VERL, *given])
    assert job.adapter.framework == "verl"
    assert [word for word in left.command if SWITCH in word] == [f"{SWITCH}=vllm"]
    assert [word for word in right.command if SWITCH in word] == [f"{SWITCH}=sglang"]
    rest = [[word for word in side.command if SWITCH not in word] for side in (left, right)]
    assert rest[0] == rest[1] == [*VERL, *(word for word in given if SWITCH not in word)]
    assert left.environ == right.environ


def environments(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Registered environments a and b, whose interpreters hold the framework in those versions (empty: not at all)."""

    def resolve(backend: str, *, create: bool = True) -> SimpleNamespace:
        assert not create
        return SimpleNamespace(python=f"/envs/{backend.partition('@')[2]}/bin/python")

    monkeypatch.setattr(parity.envs, "resolve", resolve)
    monkeypatch.setattr(
        parity, "ask", lambda python, adapter, environ: Installation(python, versions[python.split("/")[2]], {})
    )


def test_an_upgrade_gate_swaps_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    _, left, right = plan("vllm@a", "vllm@b", [*OPENRLHF, "--data.max_len", "8"])
    assert left.command == ("/envs/a/bin/python", *OPENRLHF[1:], "--data.max_len", "8")
    assert right.command == ("/envs/b/bin/python", *OPENRLHF[1:], "--data.max_len", "8")
    assert right.environ["PATH"].startswith("/envs/b/bin:")


def test_a_script_is_told_where_its_interpreter_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.9.1")
    _, left, right = plan("vllm", "sglang@a", ["sh", "job.sh", parity.PYTHON], "verl")
    assert right.command[:3] == ("sh", "job.sh", "/envs/a/bin/python")
    assert parity.PYTHON not in " ".join(left.command)


def test_coupled_sampling_gives_both_engines_their_processors_and_nothing_else() -> None:
    _, left, right = parity.plan("vllm", "sglang", VERL, environ={"PATH": "/usr/bin", "PYTHONPATH": "/mine"}, coupled=7)
    assert left.environ == right.environ and left.environ["RLHF_HARNESS_COUPLED"] == "7"
    ours, mine = left.environ["PYTHONPATH"].split(":")
    assert mine == "/mine" and (Path(ours) / "scenarios" / "rollout" / "verl_coupled.py").exists()
    assert "[verl.plugins]" in next(Path(ours).glob("*.dist-info/entry_points.txt")).read_text()
    rest = [[word for word in side.command if SWITCH not in word] for side in (left, right)]
    assert rest[0] == rest[1] and len(rest[0]) == len(VERL) + len(OVERRIDES["verl"])


def test_both_environments_of_a_gate_get_the_same_seed_and_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    _, left, right = parity.plan("vllm@a", "vllm@b", OPENRLHF, coupled=5)
    names = ("RLHF_HARNESS_COUPLED", "RLHF_HARNESS_SEED", "RLHF_HARNESS_PLUGIN", "PYTHONPATH")
    assert [left.environ[name] for name in names] == [right.environ[name] for name in names]
    assert left.environ["RLHF_HARNESS_SEED"] == "5"


def test_a_seed_is_refused_where_the_framework_has_its_own() -> None:
    with pytest.raises(BadInput, match="verl has seeds of its own"):
        parity.plan("vllm", "sglang", VERL, seed=5)


def test_an_interpreter_that_cannot_be_placed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.9.1")
    with pytest.raises(BadInput, match="does not say which Python"):
        plan("vllm", "sglang@a", ["./job"], "verl")


def test_an_environment_without_the_framework_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environments(monkeypatch, a="0.11.2", b="")
    with pytest.raises(BadInput, match="has no openrlhf"):
        plan("vllm@a", "vllm@b", OPENRLHF)


@pytest.mark.parametrize(
    ("pair", "command", "message"),
    [
        (("vllm", "sglang"), OPENRLHF, "does not generate with sglang"),
        (("vllm", "hf"), VERL, "does not generate with hf"),
        (("vllm", "vllm"), VERL, "compares nothing"),
        (("vllm", "sglang"), [], "no command"),
        (("vllm", "sglang"), ["true"], "neither the words"),
    ],
)
def test_pairs_that_cannot_be_run_are_refused(pair: tuple[str, str], command: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plan(*pair, command)


def test_what_would_bite_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [*VERL, "actor_rollout_ref.rollout.full_determinism=True", "actor_rollout_ref.rollout.n=4"]
    with pytest.raises(BadInput, match="on vllm this job would not run as asked: full_determinism"):
        parity.run_framework_parity("vllm", "sglang", command, out=tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


def test_a_job_that_fails_is_inconclusive_and_its_other_half_is_not_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    fits = ["trainer.n_gpus_per_node=2", "data.train_batch_size=256", "actor_rollout_ref.rollout.n=2"]
    said: list[str] = []
    verdict = parity.run_framework_parity(
        "vllm", "sglang", [*command, *fits], framework="verl", out=tmp_path / "pair", say=said.append
    )
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)
    assert "the job on vllm ended with exit code 3" in verdict.reason
    assert (tmp_path / "pair" / "verdict.json").exists()
    assert not (tmp_path / "pair" / "candidate").exists()
    assert any("verl gives SGLang no seed" in line for line in said)
    assert verdict.reproduce.startswith("harness parity vllm sglang --framework verl -- ")


@pytest.mark.parametrize(("seed", "told"), [(None, True), (5, False)])
def test_a_trap_that_the_seed_mends_is_not_told(tmp_path: Path, monkeypatch: Any, seed: int | None, told: bool) -> None:
    environments(monkeypatch, a="0.11.2", b="0.11.3")
    monkeypatch.setattr(parity, "record", lambda *args, **kwargs: SimpleNamespace(exit_code=3))
    said: list[str] = []
    verdict = parity.run_framework_parity(
        "vllm@a", "vllm@b", OPENRLHF, out=tmp_path / "pair", seed=seed, say=said.append
    )
    assert any("shuffles its prompts without its seed" in line for line in said) == told
    assert ("openrlhf-data" in {one.name for one in verdict.findings}) == told
    assert ("--seed 5" in verdict.reproduce) != told
