"""Which framework a command starts, and what in it would keep the probes out: read, never run."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.envs import Environment
from harness.errors import BadInput
from harness.frameworks import detection
from harness.frameworks.detection import detect, interpreter, recognised, refuse_absent_script
from harness.frameworks.job_parity import check_pair
from harness.frameworks.spec import frameworks


def names(*command: str) -> list[str]:
    return sorted(one.name for one in recognised(command))


def script(folder: Path, text: str, name: str = "train.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_a_script_names_its_framework_by_its_imports(tmp_path: Path) -> None:
    trl = script(tmp_path, "import os\nfrom trl import GRPOTrainer\n")
    assert names("python", trl) == names("accelerate", "launch", "--num_processes", "2", trl) == ["trl"]
    assert names("python", script(tmp_path, "import torch\n# from trl we learn\nimport trlx\n")) == []
    assert names("python", str(tmp_path / "absent.py")) == [] and names() == []


def test_a_command_line_names_its_framework(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model Q &\nwait\n")
    assert names("bash", str(tmp_path / "serve.sh")) == ["trl"]
    assert names("trl", "grpo", "--model", "m") == names("/opt/env/bin/trl", "grpo") == ["trl"]
    for words in (["python3", "verl/trainer/main_ppo.py", "a.b=1"], ["torchrun", "src/verl/trainer/main_ppo_v0.py"],
                  ["bash", "-c", "cd x; python3 -u verl/trainer/main_ppo.py a.b=1"]):  # fmt: skip
        assert names(*words) == ["verl"], words
    assert names("bash", "-c", "ls verl/trainer/main_ppo.py") == names("python", "verl/trainer/x.py") == []
    assert names("python", "-c", "print('trl')") == [] and names("echo", "control") == []


def test_none_and_several_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"name one of: .*trl") as none:
        detect(["python", "-c", "pass"])
    assert "--framework" in (none.value.fix or "")
    second = frameworks()["trl"]
    monkeypatch.setitem(frameworks(), "twin", dataclasses.replace(second, name="twin"))
    both = script(tmp_path, "import trl\n")
    with pytest.raises(BadInput, match="trl and twin") as several:
        detect([sys.executable, both])
    assert (several.value.fix or "").startswith("--framework")
    assert detect([sys.executable, both], "trl").framework is second
    with pytest.raises(BadInput, match="'nemo'"):
        detect([sys.executable, both], "nemo")


def test_the_interpreter_is_the_one_that_the_command_names(tmp_path: Path) -> None:
    python = sys.executable
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert interpreter([python, "train.py"]) == python
    assert interpreter(["env", "A=1", "nice", "-n", "5", python, "x.py"]) == python
    launcher = tmp_path / "accelerate"
    launcher.write_text(f"#!{python}\nprint()\n")
    launcher.chmod(0o755)
    assert interpreter(["accelerate", "launch", "x.py"], path) == python
    assert interpreter(["sh", "job.sh", python, "/data"]) == python  # a script that is told its interpreter
    assert interpreter(["sh", "job.sh", "/nowhere/python"], path) == interpreter(["sh", "job.sh"], path)
    assert interpreter(["ray", "job", "submit", "--", "python", "x.py"]) == "" and interpreter([]) == ""


def package(folder: Path, version: str, python: str = sys.executable) -> dict[str, str]:
    """An environment in which `trl` of that version is installed, for a script to be detected in."""
    (folder / "trl").mkdir(parents=True)
    (folder / "trl" / "__init__.py").write_text("raise SystemExit('imported')\n")
    info = folder / f"trl-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_a_version_outside_the_tested_range_is_said_and_no_import_happens(tmp_path: Path) -> None:
    train = script(tmp_path, "import trl\n")
    good = detect([sys.executable, train], environ=package(tmp_path / "good", "1.16.3"))
    assert good.installed is not None and good.installed.version == "1.16.3" and not good.cautions
    assert good.variables(digests=True) == {
        "RLHF_HARNESS_ADAPTER": "probes.adapters.trl:trl",
        "RLHF_HARNESS_DIGESTS": "1",
    }
    [warning] = detect([sys.executable, train], environ=package(tmp_path / "old", "1.12.0")).cautions
    assert "1.16 to before 1.17" in warning.what
    assert warning.fix.startswith("harness adapters check --framework trl --python ")
    [absent] = detect([sys.executable, train], environ={"PATH": "/usr/bin:/bin"}).cautions
    assert "has no trl" in absent.what


@pytest.mark.slow
def test_what_shuts_the_probes_out_is_said_before_the_start(tmp_path: Path) -> None:
    environ = package(tmp_path / "site", "1.16.0")
    train = script(tmp_path, "import trl\n")

    def said(*command: str) -> str:
        return " ".join(caution.what for caution in detect(command, "trl", environ).cautions)

    assert "sets PYTHONPATH itself" in said("docker", "run", "-e", "PYTHONPATH=/mine", "image", "python", train)
    assert "sets PYTHONPATH" not in said("env", "PYTHONPATH=/mine", sys.executable, train)  # the probes are put before
    launch = script(tmp_path, f"export PYTHONPATH=/mine\npython {train}\n", "launch.sh")
    assert f"{launch} sets PYTHONPATH itself" in said("bash", launch)
    kept = script(tmp_path, "export PYTHONPATH=/mine:${PYTHONPATH}\n", "kept.sh")
    assert "sets PYTHONPATH" not in said("bash", kept)
    assert "-I" in said(sys.executable, "-I", train)
    assert "-uE" in said(sys.executable, "-uE", train)
    assert "-S" in said(sys.executable, "-S", train)
    for away in (["-u", "PYTHONPATH"], ["-uPYTHONPATH"], ["-u", "A", "B=1", "--unset=PYTHONPATH"], ["-i", "A=1"]):
        assert "PYTHONPATH" in said("env", *away, sys.executable, train), away
        assert "does not say which Python" not in said("env", *away, sys.executable, train), away
    assert "takes PYTHONPATH" not in said("env", "-u", "OTHER", sys.executable, train)
    bare = script(tmp_path, f"unset LANG PYTHONPATH\npython {train}\n", "bare.sh")
    assert f"{bare} takes PYTHONPATH away" in said("bash", bare)
    assert "shuts" not in said(sys.executable, "-u", "-s", "-OO", train)
    submit = ("ray", "job", "submit", "--runtime-env", "env.yaml", "--", "python", train)
    assert "runtime environment is a file" in said(*submit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ([sys.executable, "-m", "verl.trainer.main_ppo"], True),
        (["nice", sys.executable, "-u", "-m", "verl.trainer.main_ppo", "a=b"], True),
        (["env", "PYTHONPATH=/theirs", sys.executable, "-m", "verl.trainer.main_ppo"], True),
        (["bash", "-c", "python -m verl.trainer.main_ppo"], False),
        ([sys.executable, "verl/trainer/main_ppo.py"], False),
    ],
)
def test_a_module_that_the_commands_own_python_lacks_is_refused(command: list[str], refused: bool) -> None:
    job = detection.detect(command, "verl", {"PATH": "/usr/bin:/bin"})
    if not refused:
        detection.refuse_absent(job, command, {"PATH": "/usr/bin:/bin"})
        return
    with pytest.raises(BadInput, match="'verl'") as told:
        detection.refuse_absent(job, command, {"PATH": "/usr/bin:/bin"})
    assert sys.executable in str(told.value.fix)


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("import os\nfrom trl import GRPOTrainer\n", True),
        ('"""Trains."""\nimport os\nos.environ["A"] = os.getcwd()\nB = 1\nimport trl.trainer\n', True),
        ("import sys\nsys.path.insert(0, '/theirs')\nimport trl\n", False),
        ("import sys\nsys.path = ['/theirs', *sys.path]\nimport trl\n", False),
        ("import mine\nimport trl\n", False),  # it may bring it
        ("try:\n    import trl\nexcept ImportError:\n    trl = None\n", False),
        ("def main():\n    import trl\n", False),
        ("import trl\nthis is no Python\n", False),
    ],
)
def test_a_script_whose_own_python_lacks_what_it_imports_first_is_refused(
    text: str, refused: bool, tmp_path: Path
) -> None:
    script(tmp_path, "", "mine.py")
    train, environ = script(tmp_path, text), {"PATH": "/usr/bin:/bin"}
    for command in ([sys.executable, train], ["nice", sys.executable, "-u", train, "--steps", "3"]):
        job = detect(command, "trl", environ)
        with pytest.raises(BadInput, match="'trl'") if refused else nullcontext() as refusal:
            detection.refuse_absent(job, command, environ)
        assert not refused or sys.executable in str(refusal.value.fix)
    (tmp_path / "trl").mkdir()  # beside the script
    detection.refuse_absent(job, command, environ)


@pytest.mark.slow
def test_a_checkout_without_metadata_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    environ = {"PATH": "/usr/bin:/bin"}
    command = ["env", f"PYTHONPATH={tmp_path}", sys.executable, "-m", "verl.trainer.main_ppo"]
    detection.refuse_absent(detection.detect(command, "verl", environ), command, environ)
    command, environ = command[2:], {**environ, "PYTHONPATH": str(tmp_path)}
    detection.refuse_absent(detection.detect(command, "verl", environ), command, environ)


def test_a_framework_that_is_nearly_named_is_told() -> None:
    with pytest.raises(BadInput, match="openrlhf"):
        detection.framework_named("openrhlf")


@pytest.mark.parametrize(
    ("framework", "backend", "can"),
    [("verl", "sglang", True), ("trl", "sglang", False), ("openrlhf", "sglang", False), ("verl", "hf", False)],
)
def test_a_framework_has_its_engines(framework: str, backend: str, can: bool) -> None:
    its = detection.framework_named(framework)
    if can:
        assert check_pair(its, backend).engine == backend
        return
    with pytest.raises(BadInput, match=f"{framework} does not generate with {backend}") as told:
        check_pair(its, backend)
    assert "harness parity " in str(told.value.fix)


@pytest.mark.parametrize(
    ("present", "pair", "to_make"),
    [
        ({"a": "0.31.0", "b": "0.32.0"}, ("vllm@a", "vllm@b"), []),
        ({"a": "0.32.0", "b": "0.32.0"}, ("vllm@0.31", "vllm@0.32"), ["vllm@0.31"]),
        ({"a": "0.32.0"}, ("vllm@0.31", "vllm@0.32"), ["vllm@0.31"]),
        ({}, ("vllm@0.31", "vllm@0.32"), ["vllm@0.31", "vllm@0.32"]),
    ],
)
def test_a_pair_of_one_engine_is_of_two_releases_that_exist_or_are_made_first(
    present: dict[str, str], pair: tuple[str, str], to_make: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    for name, version in present.items():
        registered = Environment(
            name=name, engine="vllm", version=version, python=sys.executable, python_version="3.11.7", ray="",
            torch="", device="cpu", owned=False,
        )  # fmt: skip
        folder = tmp_path / "envs" / name
        folder.mkdir(parents=True)
        (folder / "env.json").write_text(json.dumps(registered.to_json()))
    with pytest.raises(BadInput) as refused:
        check_pair(detection.framework_named("openrlhf"), "sglang", ["python", "train.py"])
    made = [f"harness env create {backend}" for backend in to_make]
    parity = f"harness parity {pair[0]} {pair[1]} --framework openrlhf -- python train.py"
    assert str(refused.value.fix).split(" && ") == [*made, parity]


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("python nofile.py", True),
        ("python -u -W ignore nofile.py --x 1", True),
        ("env A=1 torchrun --nproc-per-node 2 nofile.py", True),
        ("accelerate launch --num_processes 2 nofile.py", True),
        ("bash nofile.sh", True),
        ("python -m trl.scripts.grpo --reward nofile.py", False),
        ("python job --reward nofile.py", False),
        ("python -c pass nofile.py", False),
        ("ray job submit -- python nofile.py", False),
    ],
)
def test_a_script_that_does_not_exist_is_refused(command: str, refused: bool) -> None:
    with pytest.raises(BadInput) if refused else nullcontext():
        refuse_absent_script(command.split())
