"""Real jobs of frameworks under `harness record`, once a session, or once for all with HARNESS_TEST_RECORDINGS."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import environments
import pytest
from jobs.material import prepare

from harness.frameworks.spec import frameworks
from harness.frameworks.steering import steered
from probes.format import Ragged, Run

JOBS = Path(__file__).parent / "jobs"
LIMIT_S = 1800  # 2.5 minutes on two idle cores


def interpreter(stack: str) -> str:
    """The Python of a stack; skips the test where it was not made, and fails it where another checkout made it."""
    python = environments.python(stack)
    if not python.exists():
        pytest.skip(f"no environment for it: python tests/frameworks/environments.py {stack}")
    assert environments.of_this_checkout(stack), (
        f"its shims are those of another checkout: python tests/frameworks/environments.py {stack}"
    )
    return str(python)


def harness() -> str:
    """The command line of the project under test."""
    return str(Path(sys.executable).with_name("harness"))


def finished(words: list[str], environ: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit code, output) of the command line with these words; a test that is cut short leaves no job behind."""
    with subprocess.Popen(
        [harness(), *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.terminate()  # which it passes on to the job
            process.wait(60)
            raise
    return process.returncode, said


def record(home: Path, name: str, framework: str, command: list[str], environ: dict[str, str] | None = None) -> Run:
    """The recording of a job, made when it is not there yet."""
    folder = home / name
    if not (folder / "run.json").exists():
        began = time.monotonic()
        words = ["record", "--framework", framework, "--digests", "--out", str(folder), "--", *command]
        code, said = finished(words, environ)
        print(f"{name}: {time.monotonic() - began:.0f} s")
        (home / f"{name}.log").write_text(said)
        assert code == 0, said[-4000:]
    return Run(folder, strict=False)


def verl_command(home: Path, name: str, engine: str) -> list[str]:
    """Two steps of GRPO with verl on that engine; its files go to a folder of that name."""
    python, material = interpreter(engine), prepare(home / "material")
    script = ["sh", str(JOBS / "verl_grpo.sh"), python, str(material), str(home / name)]
    return [*script, f"actor_rollout_ref.rollout.name={engine}"]


def verl(home: Path, engine: str, seed: int | None = None, *, run: str = "", plant: str = "") -> Run:
    """Two steps of GRPO with verl on that engine; with a seed, its samples are the coupled ones. `run`: of several
    with one engine, this one. `plant`: what the shims do to it."""
    name = f"verl-{engine}" + ("" if seed is None else "-coupled") + (f"-{run}" if run else "")
    words, environ = verl_command(home, f"{name}-job", engine), dict(os.environ)
    if plant:
        environ["FRAMEWORKS_PLANT"] = plant
    if seed is not None:
        words, environ = steered(frameworks()["verl"], words, environ, coupled=seed)
    return record(home, name, "verl", words, environ)


def openrlhf_command(home: Path, name: str, stack: str = "openrlhf") -> list[str]:
    """Two steps of PPO with OpenRLHF; its files go to a folder of that name."""
    python, material = interpreter(stack), prepare(home / "material")
    return ["sh", str(JOBS / "openrlhf_ppo.sh"), python, str(material), str(home / name)]


def openrlhf(home: Path) -> Run:
    """The recording of that job."""
    return record(home, "openrlhf", "openrlhf", openrlhf_command(home, "openrlhf-job"))


def openrlhf_coupled(home: Path, stack: str, seed: int, *, run: str = "", plant: str = "") -> Run:
    """The recording of that job in one of its environments, its samples the coupled ones, with log-probabilities.

    `run`: of several with one environment, this one. `plant`: what the shims do to it.
    """
    name = f"{stack}-coupled" + (f"-{run}" if run else "")
    command = [*openrlhf_command(home, f"{name}-job", stack), "--algo.advantage.is_correction_level", "token"]
    command = ["env", f"FRAMEWORKS_PLANT={plant}", *command] if plant else command
    return record(home, name, "openrlhf", *steered(frameworks()["openrlhf"], command, os.environ, coupled=seed))


def trl_words(home: Path, name: str, python: list[str], *options: str) -> list[str]:
    """The variables and words of three steps of GRPO with TRL; its files go to a folder of that name. `python`: what
    starts a script."""
    shims = ["FRAMEWORKS_CPU=trl", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1"]
    material = prepare(home / "material")
    return [*shims, *python, str(JOBS / "trl_grpo.py"), str(material), str(home / name), *options]


def trl_command(home: Path, name: str, *options: str, ranks: int = 1) -> list[str]:
    """That job as a command. Several ranks under torchrun, with gloo."""
    python = interpreter("trl")
    launcher = [str(Path(python).with_name("torchrun")), "--standalone", "--nproc-per-node", str(ranks)]
    return ["env", *trl_words(home, name, [python] if ranks == 1 else launcher, *options)]


def trl(home: Path, name: str, *options: str, ranks: int = 1) -> Run:
    """The recording of that job."""
    return record(home, name, "trl", trl_command(home, f"{name}-job", *options, ranks=ranks))


def trl_colocated(home: Path, name: str, seed: int | None = None, *, plant: str = "") -> Run:
    """The recording of that job with vLLM in its process; with a seed, its samples are the coupled ones. `plant`: what
    the shims do to it."""
    command, environ = trl_command(home, f"{name}-job", "--vllm"), dict(os.environ)
    if plant:
        environ["FRAMEWORKS_PLANT"] = plant
    if seed is not None:
        command, environ = steered(frameworks()["trl"], command, environ, coupled=seed)
    return record(home, name, "trl", command, environ)


def rows(run: Run, kind: str) -> dict[int, dict[int, dict[str, Any]]]:
    """step -> sample -> array -> its row, over all frames of a kind; a sample that occurs twice is an error."""
    found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for frame in run.frames(kind):
        columns = {
            name: one.rows() if isinstance(one, Ragged) else list(one.values) for name, one in frame.arrays.items()
        }
        for place, sample in enumerate(columns.pop("sample")):
            assert sample not in found[frame.step], f"sample {sample} of step {frame.step} twice"
            found[frame.step][int(sample)] = {name: column[place] for name, column in columns.items()}
    return dict(found)


def assert_hooks(run: Run) -> None:
    """Every hook that every job calls fired, none has moved, no probe turned itself off."""
    hooks = run.manifest["hooks"]
    assert hooks["moved"] == {} and hooks["off"] == {}
    assert [symbol for symbol, when in hooks["never"].items() if not when] == []
    assert run.torn == []


def assert_tokens_agree(run: Run, steps: int, samples: int) -> None:
    """What the engine drew is what the trainer trained on, sample by sample, though two processes recorded them."""
    drawn, trained = rows(run, "rollout"), rows(run, "experience")
    assert sorted(drawn) == sorted(trained) == list(range(steps))
    for step in drawn:
        assert sorted(drawn[step]) == sorted(trained[step]) == list(range(samples))
        for sample, row in drawn[step].items():
            assert row["output"] and row["prompt"]
            assert row["output"] == trained[step][sample]["tokens"]
            assert len(trained[step][sample]["advantage"]) == len(row["output"])
