"""The traps of frameworks, told from a command: each planted once, and a control that must not trip."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.doctor.frameworks import look
from harness.doctor.frameworks.plan import Plan, read
from harness.errors import BadInput
from harness.frameworks import detection
from harness.frameworks.detection import Job
from harness.frameworks.installed import Installation, ask
from probes.adapters import ADAPTERS, Adapter
from reports.doctor_model import Hazard, Passed, Unchecked

# By its path: the first `python` of a machine may be a shell script that looks for one, five times as slow to start.
VERL = [sys.executable, "-m", "verl.trainer.main_ppo"]
OPENRLHF = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]
R, A = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
FITTING = ["trainer.n_gpus_per_node=2", f"{R}.tensor_model_parallel_size=1", "data.train_batch_size=8",
           f"{A}.ppo_mini_batch_size=8"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def asked_once() -> Iterator[None]:
    """An interpreter is asked once for each framework what it has of it: a start of it for each of 80 looks says the
    same."""

    answers: dict[str, Installation] = {}

    def once(python: str, adapter: Adapter, environ: Mapping[str, str]) -> Installation:
        key = repr((python, adapter.framework, sorted(environ.items())))
        answers[key] = answers.get(key) or ask(python, adapter, environ)
        return answers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "ask", once)
        yield


def found(command: list[str], framework: str, check: str, **variables: str) -> list[Hazard | Passed | Unchecked]:
    return [item for item in look(command, framework, variables) if item.check == check]


def hazards(command: list[str], framework: str, check: str, **variables: str) -> list[Hazard]:
    return [item for item in found(command, framework, check, **variables) if isinstance(item, Hazard)]


@pytest.mark.parametrize(
    ("framework", "check", "planted", "control", "severity"),
    [
        ("verl", "verl-seed", [f"{R}.name=sglang"],
         [f"{R}.name=sglang", f"+{R}.engine_kwargs.sglang.random_seed=3"], "warning"),
        ("verl", "verl-seed", [f"{R}.name=sglang"], [f"{R}.name=vllm"], "warning"),
        ("verl", "verl-determinism", [f"{R}.full_determinism=True", f"{R}.n=4"],
         [f"{R}.full_determinism=True", f"{R}.n=1"], "error"),
        ("verl", "verl-determinism", [f"{R}.full_determinism=true", f"{R}.n=4"], [f"{R}.n=4"], "error"),
        ("verl", "verl-dtype", [f"{R}.dtype=float32"],
         [f"{R}.dtype=float32", f"+{A}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32}}"], "warning"),
        ("verl", "verl-dtype", [f"{R}.dtype=float32"],
         [f"{R}.dtype=float32", f"+{A}.fsdp_config.mixed_precision.param_dtype=fp32"], "warning"),
        ("verl", "verl-dtype", [f"{R}.dtype=float32"], [], "warning"),
        ("verl", "verl-sizes", [*FITTING, f"{R}.tensor_model_parallel_size=4"], FITTING, "error"),
        ("verl", "verl-sizes", [*FITTING, "data.train_batch_size=9"], FITTING, "error"),
        ("verl", "verl-sizes", [*FITTING, f"{A}.ppo_mini_batch_size=16"], FITTING, "error"),
        ("openrlhf", "openrlhf-dtype", ["--ds.param_dtype", "fp16"], ["--ds.param_dtype", "bf16"], "error"),
        ("openrlhf", "openrlhf-seed", ["--vllm.num_engines", "2"], ["--vllm.num_engines", "1"], "warning"),
        ("openrlhf", "openrlhf-colocation", ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4"],
         ["--ref.num_gpus_per_node", "4"], "error"),
        ("openrlhf", "openrlhf-colocation", ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4"],
         ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4", "--algo.kl.init_coef", "0"], "error"),
        ("openrlhf", "openrlhf-colocation",
         ["--train.colocate_all", "--actor.num_gpus_per_node", "4", "--ref.num_gpus_per_node", "4",
          "--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "2"],
         ["--train.colocate_all", "--actor.num_gpus_per_node", "4", "--ref.num_gpus_per_node", "4",
          "--vllm.num_engines", "2", "--vllm.tensor_parallel_size", "2"], "error"),
        ("openrlhf", "openrlhf-colocation", ["--train.colocate_critic_reward", "--critic.num_nodes", "2"],
         ["--train.colocate_critic_reward"], "error"),
        ("openrlhf", "openrlhf-colocation", ["--vllm.enable_sleep"], ["--vllm.enable_sleep", "--train.colocate_all"],
         "warning"),
    ],
)  # fmt: skip
def test_a_planted_setting_trips_its_trap_and_a_control_does_not(
    framework: str, check: str, planted: list[str], control: list[str], severity: str
) -> None:
    command = VERL if framework == "verl" else OPENRLHF
    assert [item.severity for item in hazards([*command, *planted], framework, check)] == [severity]
    assert not hazards([*command, *control], framework, check)
    assert all(isinstance(item, Passed) for item in found([*command, *control], framework, check))


def test_a_later_word_holds() -> None:
    assert not hazards([*VERL, f"{R}.name=sglang", f"{R}.name=vllm"], "verl", "verl-seed")


def test_a_size_from_a_shell_variable_is_not_checked_and_says_so() -> None:
    items = found([*VERL, *FITTING, "trainer.nnodes=$NODES"], "verl", "verl-sizes")
    assert [type(item) for item in items] == [Unchecked]
    items = found([*OPENRLHF, "--vllm.num_engines", "$N"], "openrlhf", "openrlhf-seed")
    assert [type(item) for item in items] == [Unchecked]


@pytest.mark.parametrize(
    ("variables", "bites"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, False),
        ({"ROCR_VISIBLE_DEVICES": "0"}, False),
        ({}, False),
    ],
)
def test_amd_variables_that_verl_refuses(variables: dict[str, str], bites: bool) -> None:
    assert bool(hazards(VERL, "verl", "verl-amd", **variables)) is bites


def test_a_variable_before_the_command_counts() -> None:
    command = ["env", "ROCR_VISIBLE_DEVICES=0", *VERL]
    assert hazards(command, "verl", "verl-amd", HIP_VISIBLE_DEVICES="0")


@pytest.mark.parametrize(("check", "severity"), [("openrlhf-order", "info"), ("openrlhf-data", "warning")])
def test_openrlhf_always_tells_of_the_order_of_its_samples_and_prompts(check: str, severity: str) -> None:
    assert [item.severity for item in hazards(OPENRLHF, "openrlhf", check)] == [severity]


def script(path: Path, arguments: str) -> list[str]:
    file = path / "grpo.py"
    file.write_text(f"from trl import GRPOConfig, GRPOTrainer\nconfig = GRPOConfig({arguments})\n")
    return [sys.executable, str(file)]


@pytest.mark.parametrize(
    ("check", "planted", "control"),
    [
        ("trl-seed", "use_vllm=True", "use_vllm=False"),
        ("trl-seed", "use_vllm=True, vllm_mode='colocate'", "use_vllm=True, vllm_mode='server'"),
        ("trl-group", "use_vllm=True, generation_kwargs={'seed': 1}", "use_vllm=True, generation_kwargs={'top_k': 5}"),
        ("trl-group", "use_vllm=True, generation_kwargs={'seed': 1}",
         "use_vllm=True, generation_kwargs={'seed': 1}, num_generations=1"),
        ("trl-dtype", "use_vllm=True, bf16=False", "use_vllm=True, bf16=True"),
        ("trl-dtype", "use_vllm=True, model_init_kwargs={'dtype': 'float32'}", "use_vllm=True"),
        ("trl-dtype", "use_vllm=True, bf16=False", "bf16=False"),
    ],
)  # fmt: skip
def test_traps_of_trl_are_read_in_its_script(tmp_path: Path, check: str, planted: str, control: str) -> None:
    assert hazards(script(tmp_path, planted), "trl", check)
    assert not hazards(script(tmp_path, control), "trl", check)


def installed(tmp_path: Path, framework: str, files: dict[str, str], version: str) -> Job:
    package = tmp_path / framework
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    there = Installation("python", version, {framework: (str(package),)})
    return Job(ADAPTERS[framework], "python", there, ())


def unknown(plan: Plan) -> list[str]:
    from harness.doctor.frameworks.flags import known
    from harness.doctor.outcome import Bite

    return [item.what for item in known(plan) if isinstance(item, Bite)]


REFERENCE = """
data:
  shuffle: true
  train_files: x
actor_rollout_ref:
  rollout:
    name: ???
    engine_kwargs:
      sglang: {}
"""


def test_hydra_overrides_are_looked_up_in_the_installed_reference(tmp_path: Path) -> None:
    job = installed(tmp_path, "verl", {"trainer/config/_generated_ppo_trainer.yaml": REFERENCE}, "0.9.1")
    good = [*VERL, "data.shuffle=False", "+data.new=1", "++data.shuffle=True", "hydra.run.dir=/tmp",
            f"+{R}.engine_kwargs.sglang.random_seed=1", "PYTHONHASHSEED=0"]  # fmt: skip
    assert unknown(read(job, good, {})) == []
    bad = ["data.shuffel=False", "+data.shuffle=False", f"{R}.engine_kwargs.sglang.random_seed=1", "~data.old=1"]
    assert len(unknown(read(job, [*VERL, *bad], {}))) == len(bad)
    assert "perhaps data.shuffle" in str(list(_items(job, [*VERL, bad[0]])))


def _items(job: Job, command: list[str]) -> list[object]:
    from harness.doctor.frameworks.flags import known

    return list(known(read(job, command, {})))


def test_a_configuration_of_ones_own_is_not_checked(tmp_path: Path) -> None:
    from harness.doctor.outcome import Unseen

    job = installed(tmp_path, "verl", {"trainer/config/_generated_ppo_trainer.yaml": REFERENCE}, "0.9.1")
    for words in (["--config-path", "conf"], ["--config-name", "mine"]):
        assert [type(item) for item in _items(job, [*VERL, *words, "a.b=1"])] == [Unseen]


ARGUMENTS = """
parser.add_argument("--actor.num_gpus_per_node", type=int)
parser.add_argument("--vllm.enforce_eager", action="store_true")
"""


def test_options_of_openrlhf_are_looked_up_in_its_parser(tmp_path: Path) -> None:
    job = installed(tmp_path, "openrlhf", {"cli/__init__.py": "", "cli/train_ppo_ray.py": ARGUMENTS}, "0.11.2")
    good = [*OPENRLHF, "--actor.num_gpus_per_node", "8", "--vllm.enforce_eager", "--actor.num_gpus=8"]
    assert unknown(read(job, good, {})) == []
    bad = [*OPENRLHF, "--actor_num_gpus_per_node", "8", "--pretrain", "x"]
    assert len(unknown(read(job, bad, {}))) == 2
    assert "perhaps actor.num_gpus_per_node" in str(_items(job, bad))


def test_options_stand_in_shell_scripts_too(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"set -x\npython -m verl.trainer.main_ppo \\\n  {R}.name=sglang \\\n  {R}.n=2 $@\n")
    assert hazards(["bash", str(file)], "verl", "verl-seed")
    assert not hazards(["bash", str(file), f"{R}.name=vllm"], "verl", "verl-seed")


def test_a_variable_of_a_shell_script_is_no_override(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"""python=$1 material=$2
export RAY_worker_niceness=0 http_proxy=here
lr=1 HIP_VISIBLE_DEVICES=0 $python -m verl.trainer.main_ppo {R}.n=2
""")
    command = ["sh", str(file), "a.b=c"]
    found = read(Job(ADAPTERS["verl"], "", None, ()), command, {})
    assert [option.name for option in found.options] == [f"{R}.n", "a.b"]
    assert found.variables == {"RAY_worker_niceness": "0", "HIP_VISIBLE_DEVICES": "0"}


def test_a_command_of_no_framework_is_refused() -> None:
    with pytest.raises(BadInput):
        look(["python", "-c", "pass"], "auto", {})
