"""The core alone: installed into an empty environment, used outside the checkout, without torch and Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import python
from recordings import pair
from triage_evidence import compared, evidence, group, rank

from harness.envs import indexes
from harness.envs.install import uv_binary
from harness.triage import directory
from harness.triage.judge import triage

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/harness of an environment that has the wheel of this checkout, and what it asks for."""
    return installed(tmp_path_factory.mktemp("core"), f"{wheel}")


@pytest.fixture(scope="module")
def with_diff(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the extra [diff]."""
    return installed(tmp_path_factory.mktemp("diff"), f"{wheel}[diff]")


UV = [uv_binary(), "--quiet"]


def with_indexes() -> dict[str, str]:
    """The environment in which uv asks the package indexes of pip's configuration."""
    return indexes.uv_environment(indexes.pip_configuration())


def installed(home: Path, requirement: str) -> Path:
    """With uv, which takes a fifth of pip's processor time; at night pip installs the same wheel."""
    python = home / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    subprocess.run([*UV, "pip", "install", "--python", python, requirement], env=with_indexes(), check=True)
    return home / "env" / "bin" / "harness"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout.

    It is built from a copy: setuptools keeps what it has built beside the sources, and would pack it again.
    """
    home = tmp_path_factory.mktemp("wheel")
    for name in ("harness", "probes", "reports", "scenarios"):
        shutil.copytree(ROOT / name, home / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, home / "source")
    build, environ = [*UV, "build"], with_indexes()
    subprocess.run([*build, "--sdist", home / "source", "--out-dir", home / "sdist"], env=environ, check=True)
    [sdist] = (home / "sdist").glob("*.tar.gz")  # the wheel is built from it, so that one test of its files proves both
    subprocess.run([*build, "--wheel", sdist, "--out-dir", home / "wheel"], env=environ, check=True)
    [made] = (home / "wheel").glob("*.whl")
    return made


def run(core: Path, folder: Path, *words: str | Path) -> tuple[int, str]:
    """Exit code and what was printed, of errors where nothing else was. No import finds the checkout."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([core, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout or done.stderr


def test_the_environment_is_slim(core: Path) -> None:
    packages = {file.name.lower() for file in core.parents[1].glob("lib/python*/site-packages/*")}
    assert not packages & {"torch", "ray", "transformers", "pandas", "pyarrow", "matplotlib", "uv", "scipy", "numpy"}


def test_the_wheel_is_complete(core: Path) -> None:
    [packages] = core.parents[1].glob("lib/python*/site-packages")
    for room in ("harness", "probes", "reports", "scenarios"):
        files = {file.relative_to(ROOT) for file in (ROOT / room).rglob("*") if file.is_file()}
        missing = {file for file in files if "__pycache__" not in file.parts and not (packages / file).exists()}
        assert not missing


def test_a_hang_is_triaged(core: Path, tmp_path: Path) -> None:
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    stands = rank(0, "main:10 step:44 load_data")
    seen = evidence(stands, *ranks)
    expected = triage(seen, compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))})))
    directory.write(seen, tmp_path / "evidence")
    code, said = run(core, tmp_path, "triage", "evidence", "--format", "json")
    verdict = json.loads(said)
    assert (code, verdict["verdict"]) in ((1, "HUNG"), (3, "INSUFFICIENT")), said
    assert expected.verdict == "HUNG" and [one["rank"] for one in verdict["triage"]["culprits"]] in ([0], [])


@pytest.mark.night
def test_two_runs_are_judged_with_an_extra_and_reported_without(core: Path, with_diff: Path, tmp_path: Path) -> None:
    baseline, candidate = pair()
    baseline.write(tmp_path / "a")
    candidate.write(tmp_path / "b")
    code, said = run(core, tmp_path, "diff", "a", "b")
    assert code == 2 and "this needs numpy" in said and "uv pip install --python" in said, said
    assert len(said.strip().splitlines()) == 2
    code, said = run(with_diff, tmp_path, "diff", "a", "b")
    assert code == 0 and "EQUIVALENT" in said, said
    code, verdict = run(with_diff, tmp_path, "diff", "a", "b", "--format", "json")
    (tmp_path / "verdict.json").write_text(verdict)
    code, page = run(core, tmp_path, "report", "verdict.json", "--format", "html")
    assert code == 0 and "Charts need matplotlib" in page


@pytest.mark.night
@pytest.mark.parametrize("installer", ["uv tool", "pip", "uv pip"])
def test_the_command_that_is_printed_adds_what_is_missing(wheel: Path, installer: str, tmp_path: Path) -> None:
    """However the harness was installed; another extra is kept."""
    bin = tmp_path / "bin"
    uv = Path(uv_binary())
    environ = with_indexes()
    environ |= {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(bin)}
    environ |= {"PATH": os.pathsep.join([str(uv.parent), environ["PATH"]])}
    environ.pop("PYTHONPATH", None)
    if installer == "uv tool":
        tool = f"rlhf-harness[nightly] @ {wheel.as_uri()}"
        subprocess.run([uv, "tool", "install", "--quiet", tool], env=environ, check=True)
    else:
        bin = tmp_path / "env" / "bin"
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
        subprocess.run([bin / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
        if installer == "uv pip":
            subprocess.run([bin / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "pip"], check=True)
    for name, recording in zip("ab", pair(), strict=True):
        recording.write(tmp_path / name)

    def diff() -> subprocess.CompletedProcess[str]:
        command = [bin / "harness", "diff", "a", "b"]
        return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    first, second = diff().stderr.splitlines()
    assert first == "harness: this needs numpy, which is not installed here"
    fix = second.removeprefix("  fix: ")
    words = {"uv tool": "uv tool install", "pip": f"{bin}/python", "uv pip": f"uv pip install --python {bin}/python"}
    assert fix.startswith(words[installer]) and ("nightly" in fix) == (installer == "uv tool")
    subprocess.run(fix, shell=True, env=environ, cwd=tmp_path, check=True)
    assert diff().returncode == 0


JOB = """
import sys, threading, time

def wait_for_the_other(lock):
    lock.acquire()

lock = threading.Lock()
lock.acquire()
print(sys.version_info[:2], flush=True)
wait_for_the_other(lock)
"""


OTHERS = [path for path in map(python, ("3.10", "3.12", "3.13")) if path]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("interpreter", OTHERS, ids=lambda path: Path(path).name)
def test_a_job_of_another_python_is_watched_and_triaged(core: Path, interpreter: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    assert run(core, tmp_path, "watch", "--out", "w", "--", interpreter, "-c", "print('done')") == (0, "done\n")
    with subprocess.Popen([interpreter, "job.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None and job.stdout.readline().startswith("(3, ")
            code, said = run(core, tmp_path, "triage", str(job.pid), "--format", "json")
        finally:
            job.kill()
    assert code in (1, 3) and "wait_for_the_other" in said, said


@pytest.mark.night
@pytest.mark.parametrize(
    "interpreter",
    [path for version in ("3.12", "3.13", "3.14") if (path := python(version))],
)
def test_the_core_runs_on_another_python(wheel: Path, interpreter: str, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([interpreter, "-m", "venv", env], check=True)
    subprocess.run([env / "bin" / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    harness = env / "bin" / "harness"
    directory.write(
        evidence(rank(0, "main:10 step:44 load_data"), rank(1, "main:10 step:42 all_reduce")), tmp_path / "e"
    )
    assert json.loads(run(harness, tmp_path, "triage", "e", "--format", "json")[1])["kind"] == "triage"
    assert run(harness, tmp_path, "watch", "--out", "w", "--", interpreter, "-c", "print('done')") == (0, "done\n")
    (tmp_path / "users.py").write_text("def f(args):\n    return dict(args)\n")
    assert run(harness, tmp_path, "mapping", "users.py", "--from", "sglang", "--engine", "sglang")[0] == 0


def test_a_command_is_watched(core: Path, tmp_path: Path) -> None:
    assert run(core, tmp_path, "watch", "--out", "w", "--", sys.executable, "-c", "print('done')")[0] == 0
    assert (tmp_path / "w" / "run.json").exists()


def test_what_needs_an_extra_says_so(core: Path, tmp_path: Path) -> None:
    for words in (("parity", "vllm", "sglang"), ("run", "ppo-tiny"), ("faults", "run", "trip-micro")):
        code, said = run(core, tmp_path, *words)
        assert code == 2 and "rlhf-harness[parity] @ file:" in said, said
        assert len(said.strip().splitlines()) == 2


def test_the_other_commands_start(core: Path, tmp_path: Path) -> None:
    assert run(core, tmp_path, "adapters", "list")[0] == 0
    assert run(core, tmp_path, "env", "list")[0] == 0
    code, said = run(core, tmp_path, "doctor", "--format", "json")
    assert code in (0, 1, 3) and json.loads(said), said
