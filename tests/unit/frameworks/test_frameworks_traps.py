"""The traps of frameworks, from a command and from a recorded configuration: each planted, with a control."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput
from harness.frameworks import detection
from harness.frameworks.configured import Configured, of_recording
from harness.frameworks.examine import absent_program, look, trapped
from harness.frameworks.installed import Installation, ask
from harness.frameworks.record import record
from harness.frameworks.spec import Trap, frameworks
from probes.adapters import Adapter
from probes.install import start
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

    def once(python: str, adapter: Adapter, environ: Mapping[str, str], **more: Any) -> Installation:
        key = repr((python, adapter.framework, sorted(environ.items())))
        answers[key] = answers.get(key) or ask(python, adapter, environ, **more)
        return answers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "ask", once)
        yield


def found(command: list[str], framework: str, check: str, **variables: str) -> list[Hazard | Passed | Unchecked]:
    return [item for item in look(command, framework, variables) if item.check == check]


def hazards(command: list[str], framework: str, check: str, **variables: str) -> list[Hazard]:
    return [item for item in found(command, framework, check, **variables) if isinstance(item, Hazard)]


@pytest.mark.slow
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
        ("verl", "verl-sizes", [*FITTING, "trainer.n_gpus_per_node=0"], FITTING, "error"),
        ("verl", "verl-sizes", [*FITTING, f"{A}.ppo_mini_batch_size=16"], FITTING, "error"),
        ("verl", "verl-sizes", [*FITTING, f"{A}.ppo_mini_batch_size=16"],
         [*FITTING, f"{A}.ppo_mini_batch_size=16", f"{A}.use_dynamic_bsz=True"], "error"),
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
        ("openrlhf", "openrlhf-colocation", ["--train.colocate_critic_reward", "--critic.num_nodes", "2"],
         ["--train.colocate_critic_reward", "--critic.num_nodes", "2", "--algo.advantage.estimator", "group_norm"],
         "error"),
        ("openrlhf", "openrlhf-colocation", ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4"],
         ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4", "--algo.kl.init_coef", "0e0"], "error"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "problems"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, False),
        ({"ROCR_VISIBLE_DEVICES": "0"}, False),
        ({}, False),
    ],
)
def test_amd_variables_that_verl_refuses(variables: dict[str, str], problems: bool) -> None:
    assert bool(hazards(VERL, "verl", "verl-amd", **variables)) is problems


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "planted", "control"),
    [
        ("trl-seed", "use_vllm=True", "use_vllm=False"),
        ("trl-seed", "use_vllm=True, vllm_mode='colocate'", "use_vllm=True, vllm_mode='server'"),
        ("trl-group", "use_vllm=True, generation_kwargs={'seed': 1}", "use_vllm=True, generation_kwargs={'top_k': 5}"),
        ("trl-group", "use_vllm=True, generation_kwargs={'seed': 1}",
         "use_vllm=True, generation_kwargs={'seed': 1}, num_generations=1"),
        ("trl-ratio", "use_vllm=True, top_p=0.9", "use_vllm=True, top_p=1.0, temperature=0.7"),
        ("trl-ratio", "use_vllm=True, top_k=50", "use_vllm=True, top_k=50, vllm_importance_sampling_correction=False"),
        ("trl-ratio", "use_vllm=True, generation_kwargs={'min_p': 0.1}", "use_vllm=False, top_p=0.9"),
        ("trl-ratio", "use_vllm=True, top_p=0.9", "use_vllm=True, top_p=0.9, generation_kwargs={'top_p': 1.0}"),
        ("trl-dtype", "use_vllm=True, bf16=False", "use_vllm=True, bf16=True"),
        ("trl-dtype", "use_vllm=True, bf16=False, model_init_kwargs={'dtype': 'float32'}",
         "use_vllm=True, model_init_kwargs={'dtype': 'float32'}"),  # bf16 is on where it is not given
        ("trl-dtype", "use_vllm=True, bf16=False, model_init_kwargs={'dtype': 'float32'}",
         "use_vllm=True, bf16=True, model_init_kwargs={'dtype': 'float32'}"),
        ("trl-dtype", "use_vllm=True, bf16=False",
         "use_vllm=True, bf16=False, model_init_kwargs={'dtype': 'bfloat16'}"),
        ("trl-dtype", "use_vllm=True, bf16=False", "use_vllm=True, bf16=False, fp16=True"),
        ("trl-dtype", "use_vllm=True, bf16=False", "bf16=False"),
    ],
)  # fmt: skip
def test_traps_of_trl_are_read_in_its_script(tmp_path: Path, check: str, planted: str, control: str) -> None:
    assert hazards(script(tmp_path, planted), "trl", check)
    assert not hazards(script(tmp_path, control), "trl", check)


VERL_TRAPS = {"verl-seed", "verl-determinism", "verl-dtype", "verl-sizes"}
OPENRLHF_TRAPS = {"openrlhf-colocation", "openrlhf-dtype", "openrlhf-seed"}
TRL_TRAPS = {"trl-group", "trl-seed", "trl-ratio", "trl-dtype", "trl-sizes"}


def untold(command: list[str], framework: str) -> dict[str, str]:
    """The traps that were not checked, with the reason."""
    items = look(command, framework, {})
    return {one.check: one.reason for one in items if isinstance(one, Unchecked) and one.check.startswith(framework)}


def test_a_mapping_that_is_given_as_a_whole_is_taken_apart() -> None:
    assert not untold([*VERL, f"{R}.name=sglang", f"{R}.engine_kwargs={{sglang:{{random_seed:1}}}}"], "verl")
    assert hazards([*VERL, f"{R}.name=sglang", f"{R}.engine_kwargs={{sglang:{{a:1}}}}"], "verl", "verl-seed")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--config-path", "/nowhere", "--config-name", "mine"],
         "settings come from --config-path, which only Hydra reads"),
        (["--config-name=mine"], "settings come from --config-name=mine, which only Hydra reads"),
        (["-cn", "mine"], "settings come from -cn, which only Hydra reads"),
        (["rollout@actor_rollout_ref.rollout=mine"],
         "settings come from rollout@actor_rollout_ref.rollout=mine, which only Hydra reads"),
        (["$EXTRA"], "$EXTRA may hold settings, which only the shell knows"),
        (["$R.name=sglang"], "$R.name=sglang may hold settings, which only the shell knows"),
    ],
)  # fmt: skip
def test_what_may_come_from_a_file_that_is_not_read_is_not_passed(words: list[str], reason: str) -> None:
    assert untold([*VERL, *words], "verl") == dict.fromkeys(VERL_TRAPS, reason)


def test_what_the_command_says_holds_over_a_file_that_is_not_read() -> None:
    literal = [f"{R}.name=sglang", f"{R}.full_determinism=True", f"{R}.n=1"]
    assert set(untold([*VERL, "--config-name", "mine", *literal], "verl")) == VERL_TRAPS - {"verl-determinism"}
    assert hazards([*VERL, *literal], "verl", "verl-seed")


def test_an_engine_that_nobody_knows_here_and_another_models_defaults_are_not_passed() -> None:
    assert set(untold([*VERL, f"{R}.name=trtllm", "model_engine=megatron"], "verl")) == {
        "verl-seed", "verl-dtype", "verl-sizes",
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["model_engine=megatron", f"{A}.megatron.tensor_model_parallel_size=8"], ["model_engine=$E"],
        [f"{A}.strategy=megatron"], ["trainer.n_gpus_per_node=4", f"{R}.nnodes=1", f"{R}.n_gpus_per_node=8"],
        [f"{R}.nnodes=$N"],
    ],
)  # fmt: skip
def test_sizes_of_another_engine_and_of_a_rollout_with_its_own_gpus_are_not_checked(words: list[str]) -> None:
    wrong = [*FITTING, f"{R}.tensor_model_parallel_size=8", "data.train_batch_size=9", *words]
    assert "verl-sizes" in untold([*VERL, *wrong], "verl") and not hazards([*VERL, *wrong], "verl", "verl-sizes")


def test_a_kl_that_is_no_number_is_not_checked() -> None:
    command = [*OPENRLHF, "--train.colocate_actor_ref", "--ref.num_gpus_per_node", "4", "--algo.kl.init_coef", "x"]
    assert set(untold(command, "openrlhf")) == {"openrlhf-colocation"}


def test_amd_variables_that_only_the_shell_knows_are_not_compared() -> None:
    command = ["env", "HIP_VISIBLE_DEVICES=$GPUS", "CUDA_VISIBLE_DEVICES=0", *VERL]
    assert set(untold(command, "verl")) == {"verl-amd"}


@pytest.mark.parametrize(
    ("words", "checks"),
    [
        (["--ds.param_dtype", "$DTYPE"], {"openrlhf-dtype"}),
        (["--ds.param_dtype", "bf16", "$EXTRA"], OPENRLHF_TRAPS),
        (["--vllm.num_engines", "$N"], {"openrlhf-seed", "openrlhf-colocation"}),
        (["--train.colocate_all=$ALL"], {"openrlhf-colocation"}),
        (["--train.seed", "$SEED"], set()),
    ],
)
def test_options_of_openrlhf_that_only_the_shell_knows(words: list[str], checks: set[str]) -> None:
    assert set(untold([*OPENRLHF, *words], "openrlhf")) == checks


@pytest.mark.parametrize(
    ("arguments", "checks"),
    [
        ("use_vllm=USE, generation_kwargs={'seed': SEED}", TRL_TRAPS - {"trl-sizes"}),
        ("use_vllm=USE", {"trl-seed", "trl-dtype"}),  # no seed among the arguments, whatever draws
        ("use_vllm=True, generation_kwargs={'seed': SEED}", {"trl-group", "trl-ratio"}),
        ("use_vllm=True, generation_kwargs={'seed': 3}, num_generations=N", {"trl-group", "trl-sizes"}),
        ("use_vllm=True, vllm_mode=MODE", {"trl-seed"}),
        ("use_vllm=True, top_p=P", {"trl-ratio"}),
        ("use_vllm=True, bf16=BF", {"trl-dtype"}),
        ("use_vllm=True, bf16=False, model_init_kwargs={'dtype': DTYPE}", {"trl-dtype"}),
        ("use_vllm=True, bf16=False, model_init_kwargs={'dtype': 'auto'}", {"trl-dtype"}),
        ("use_vllm=True, bf16=False)\nmodel = AutoModelForCausalLM.from_pretrained('x'", {"trl-dtype"}),
        ("use_vllm=True, model_init_kwargs={'dtype': DTYPE}", set()),
        ("use_vllm=False, generation_kwargs=ARGS", set()),
        ("**ALL", TRL_TRAPS),
        ("use_vllm=False)\nconfig.use_vllm = bool(1", {"trl-seed", "trl-dtype"}),
        ("use_vllm=False) if 1 else GRPOConfig(use_vllm=True", {"trl-seed", "trl-dtype"}),
        ("", set()),
    ],
)
def test_settings_that_only_trls_script_knows(tmp_path: Path, arguments: str, checks: set[str]) -> None:
    assert set(untold(script(tmp_path, arguments), "trl")) == checks


PARSER = "from trl import GRPOConfig, TrlParser\nargs, = TrlParser(GRPOConfig).parse_args_and_config()\n"


def test_a_configuration_that_cannot_be_read_is_not_passed(tmp_path: Path) -> None:
    command = [*script(tmp_path, ""), "--config", "x.yaml"]
    Path(command[1]).write_text(PARSER)
    why = "settings come from x.yaml, which cannot be read: there is no such file"
    assert untold(command, "trl") == dict.fromkeys(TRL_TRAPS, why)
    assert set(untold([*command, "--use_vllm", "false"], "trl")) == {"trl-sizes"}
    assert not untold(command[:2], "trl")
    Path(command[1]).write_text(PARSER.replace("parse_args_and_config()", "parse_yaml_file('x.yaml')"))
    assert set(untold(command[:2], "trl")) == TRL_TRAPS
    Path(command[1]).write_text("from mine import args\nfrom trl import GRPOTrainer\nGRPOTrainer(args=args)\n")
    assert set(untold(command[:2], "trl")) == TRL_TRAPS


def test_words_of_trls_command_are_the_values_that_they_spell(tmp_path: Path) -> None:
    command = script(tmp_path, "")
    seeded = ["--use-vllm", "--generation_kwargs", '{"seed": 3}']
    assert hazards([*command, *seeded], "trl", "trl-group")
    assert not hazards([*command, *seeded, "--num_generations", "1"], "trl", "trl-group")
    assert hazards([*command, "--use_vllm", "--no_bf16"], "trl", "trl-dtype")
    assert not hazards([*command, "--use_vllm", "False"], "trl", "trl-seed")
    assert set(untold([*command, "--use_vllm", "--generation_kwargs", "k.json"], "trl")) == {"trl-group", "trl-ratio"}


def test_a_command_of_no_framework_is_refused() -> None:
    with pytest.raises(BadInput):
        look(["python", "-c", "pass"], "auto", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["bash", "SCRIPT", "--x", "1"], ["bash", "-lc", "python -m verl.trainer.main_ppo a.b=1"], ["./SCRIPT"],
        ["ray", "job", "submit", "--", "bash", "SCRIPT"], ["env", "A=1", "srun", "sh", "SCRIPT"], ["{python}"],
    ],
)  # fmt: skip
def test_settings_inside_a_script_are_neither_passed_nor_refused(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "train.sh"
    file.write_text(f"python -m verl.trainer.main_ppo {R}.full_determinism=True {R}.n=4\n")
    items = look([word.replace("SCRIPT", str(file)) for word in command], "verl", {})
    [told] = [one for one in items if one.check != "framework-version"]
    assert isinstance(told, Unchecked) and told.check == "framework-settings"
    assert told.reason.endswith("examined when the job starts")
    assert told.fix.startswith("harness record --framework verl -- ")


@pytest.mark.parametrize("words", [["openrlhf.cli.train_sft", "--ds.param_dtype", "fp16"], ["src/train_ppo_ray.py"]])
def test_prompts_and_samples_of_no_known_ppo_are_not_judged(words: list[str]) -> None:
    command = [sys.executable, *words]
    items = found(command, "openrlhf", "openrlhf-data") + found(command, "openrlhf", "openrlhf-order")
    assert [type(one) for one in items] == ([] if "train_sft" in words[0] else [Unchecked, Unchecked])
    assert not hazards(command, "openrlhf", "openrlhf-dtype")


def test_a_seed_that_the_harness_gives_settles_the_order_of_the_prompts() -> None:
    [item] = [one for one in look(OPENRLHF, "openrlhf", {}, seed=5) if one.check == "openrlhf-data"]
    assert isinstance(item, Passed)


def test_a_trap_ends_with_the_version_that_no_longer_has_it() -> None:
    trap = Trap("x", lambda settings: iter(()), "1.0", until="1.2")
    assert trap.applies("") and trap.applies("1.1.9") and not trap.applies("1.2.0")
    assert not Trap("x", trap.look, "1.0", until="1.2").applies("1.10")


FSDP = {f"{A}.strategy": "fsdp", "model_engine": "dp"}
GRPO = {"bf16": True, "num_generations": 8, "generation_batch_size": 8}


def recorded(framework: str, settings: dict[str, Any], **event: Any) -> dict[str, Any]:
    return {"framework": framework, "settings": settings, "backend": "vllm", "seeds": {}, "scenario": {}, **event}


def colocated(dtype: str = "float32", **engine: Any) -> dict[str, Any]:
    return {"scenario": {"model": {"dtype": dtype}, "rollout_engine": {"use_vllm": True, **engine}}}


@pytest.mark.parametrize(
    ("check", "planted", "control"),
    [
        ("verl-seed", recorded("verl", FSDP, backend="sglang"),
         recorded("verl", FSDP, backend="sglang", seeds={"engine": 3})),
        ("verl-determinism", recorded("verl", {f"{R}.full_determinism": True, f"{R}.n": 4}),
         recorded("verl", {f"{R}.full_determinism": True, f"{R}.n": 4}, backend="sglang")),
        ("verl-dtype", recorded("verl", {**FSDP, f"{R}.dtype": "float32", f"{A}.fsdp_config.mixed_precision": None}),
         recorded("verl", {**FSDP, f"{R}.dtype": "float32", f"{A}.fsdp_config.mixed_precision.param_dtype": "fp32"})),
        ("verl-sizes", recorded("verl", {**FSDP, "trainer.n_gpus_per_node": 2, f"{R}.tensor_model_parallel_size": 4}),
         recorded("verl", {**FSDP, "trainer.n_gpus_per_node": 2, f"{R}.nnodes": 0, f"{R}.n_gpus_per_node": 2})),
        ("openrlhf-dtype", recorded("openrlhf", {"ds.param_dtype": "fp16"}),
         recorded("openrlhf", {"ds.param_dtype": "bf16"})),
        ("openrlhf-seed", recorded("openrlhf", {"vllm.num_engines": 2}), recorded("openrlhf", {"vllm.num_engines": 1})),
        ("openrlhf-data", recorded("openrlhf", {}), recorded("openrlhf", {}, seeds={"data": 7})),
        ("openrlhf-colocation", recorded("openrlhf", {"vllm.enable_sleep": True, "train.colocate_all": False}),
         recorded("openrlhf", {"vllm.enable_sleep": False})),
        ("trl-seed", recorded("trl", GRPO, **colocated()), recorded("trl", GRPO, **colocated(vllm_mode="server"))),
        ("trl-group", recorded("trl", {**GRPO, "generation_kwargs": {"seed": 1}}, **colocated()),
         recorded("trl", {**GRPO, "generation_kwargs": None}, **colocated())),
        ("trl-dtype", recorded("trl", {**GRPO, "bf16": False}, **colocated()),
         recorded("trl", {**GRPO, "bf16": False}, **colocated("bfloat16"))),
        ("trl-sizes", recorded("trl", {**GRPO, "generation_batch_size": 12}), recorded("trl", GRPO)),
    ],
)  # fmt: skip
def test_the_same_traps_over_a_recorded_configuration(
    check: str, planted: dict[str, Any], control: dict[str, Any]
) -> None:
    framework = frameworks()[planted["framework"]]

    def judged(event: dict[str, Any]) -> list[type]:
        items = trapped(framework, framework.configured(event, {}), "")
        return [type(one) for one in items if one.check == check]

    assert judged(planted) == [Hazard] and judged(control) == [Passed]


def test_openrlhfs_order_and_verls_variables_over_a_recorded_configuration() -> None:
    def named(framework: str, **variables: str) -> set[str]:
        its = frameworks()[framework]
        items = trapped(its, its.configured(recorded(framework, {}), variables), "")
        return {one.check for one in items if isinstance(one, Hazard)}

    assert "openrlhf-order" in named("openrlhf")
    assert "verl-amd" in named("verl", ROCR_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0")
    assert "verl-amd" not in named("verl", HIP_VISIBLE_DEVICES="0")


def configuration(folder: Path, *, settings: dict[str, Any]) -> None:
    """A process's recording of its configuration, as a job of OpenRLHF leaves it."""
    with start(folder, role="trainer") as recorder:
        recorder.event("configuration", **recorded("openrlhf", settings), mode="native", missing={})
        recorder.environment()


@pytest.mark.slow
def test_a_recorded_configurations_traps_are_told_once_while_the_job_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with Configured(frameworks()["openrlhf"], tmp_path, said.append) as beside:
        beside.look()
        assert not said
        configuration(tmp_path, settings={"vllm.num_engines": 2})
        beside.look()
        told = list(said)
        beside.look()
    assert said == told and any(line.startswith("openrlhf-seed: which seed draws a sample") for line in said)
    assert not any("openrlhf-dtype" in line for line in said)


def test_a_finished_recordings_traps_and_one_without_a_configuration(tmp_path: Path) -> None:
    configuration(tmp_path / "run", settings={"ds.param_dtype": "fp16"})
    (tmp_path / "run" / "run.json").write_text('{"format_version": 1}')
    items = of_recording(frameworks()["openrlhf"], tmp_path / "run")
    assert items is not None and "openrlhf-dtype" in {one.check for one in items if isinstance(one, Hazard)}
    assert of_recording(frameworks()["openrlhf"], tmp_path / "nowhere") is None


FAST = """
import openrlhf, sys
from probes import attach
recorder = attach.journal().recorder
recorder.event("configuration", framework="openrlhf", scenario={}, settings={"ds.param_dtype": "fp16"}, backend="vllm",
               seeds={}, mode="native", missing={})
recorder.environment()
print("went on")
"""


@pytest.mark.slow
def test_a_script_whose_settings_no_one_read_is_judged_when_it_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "openrlhf").mkdir()
    (tmp_path / "openrlhf" / "__init__.py").write_text("")
    (tmp_path / "job.py").write_text(FAST)
    (tmp_path / "train.sh").write_text(f"{sys.executable} {tmp_path}/job.py\n")
    root = str(Path(__file__).parents[3])
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{root}"}
    said: list[str] = []
    command = ["bash", str(tmp_path / "train.sh")]
    result = record(command, framework="openrlhf", out=tmp_path / "run", say=said.append, environ=environ)
    assert result.exit_code == 0 and "went on" in capfd.readouterr().out
    assert any(line.startswith("openrlhf-dtype: the engines are bfloat16") for line in said), said


@pytest.mark.parametrize(
    ("command", "check", "severity"),
    [
        ([*VERL, f"{R}.temperature=0", f"{R}.n=8", "algorithm.adv_estimator=grpo"], "rollout-temperature", "error"),
        ([*VERL, f"{R}.temperature=0.0"], "rollout-temperature", "warning"),  # one sample, and a critic
        ([*VERL, f"{R}.temperature=0", f"{R}.n=8"], "rollout-temperature", "warning"),  # verl's default is a critic
        ([*VERL, f"{R}.temperature=0", f"{R}.n=$N", "algorithm.adv_estimator=grpo"], "rollout-temperature", "warning"),
        ([*OPENRLHF, "--rollout.temperature", "0"], "rollout-temperature", "warning"),
        (["trl", "grpo", "--temperature", "0"], "rollout-temperature", "error"),
        ([*VERL, f"{A}.optim.lr=0"], "learning-rate", "error"),
        ([*VERL, "critic.optim.lr=0.0"], "learning-rate", "warning"),
        ([*OPENRLHF, "--actor.adam.lr", "0"], "learning-rate", "error"),
        (["trl", "grpo", "--learning_rate", "0e-6"], "learning-rate", "error"),
    ],
)
def test_a_job_that_explores_or_learns_nothing_is_a_hazard(command: list[str], check: str, severity: str) -> None:
    framework = "trl" if command[0] == "trl" else "verl" if command[2] == VERL[2] else "openrlhf"
    assert [item.severity for item in hazards(command, framework, check)] == [severity]


@pytest.mark.parametrize(
    "command",
    [
        VERL, OPENRLHF, ["trl", "grpo"], [*VERL, f"{R}.temperature=0.01", f"{A}.optim.lr=1e-9"],
        [*VERL, f"{R}.val_kwargs.temperature=0"], [*OPENRLHF, "--rollout.temperature", "1e-1"],
    ],
)  # fmt: skip
def test_a_small_temperature_and_rate_and_greedy_validation_are_no_hazard(command: list[str]) -> None:
    framework = "trl" if command[0] == "trl" else "verl" if command[2] == VERL[2] else "openrlhf"
    for check in ("rollout-temperature", "learning-rate"):
        assert {type(item) for item in found(command, framework, check)} == {Passed}


def test_a_temperature_that_only_the_shell_knows_is_not_passed() -> None:
    for check, word in (("rollout-temperature", f"{R}.temperature=$T"), ("learning-rate", f"{A}.optim.lr=$LR")):
        assert Unchecked in {type(item) for item in found([*VERL, word], "verl", check)}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["openrlhf", "trl", "verl"])
def test_a_command_whose_program_is_not_there_will_fail(framework: str, tmp_path: Path) -> None:
    path = {"PATH": str(tmp_path)}
    [absent] = absent_program(["nosuch", "args"], framework, path)
    assert absent.severity == "error" and absent.fix.startswith("echo $PATH")
    (tmp_path / "trainer").touch(0o755)
    [misspelt] = absent_program(["env", "A=1", "trianer", "x"], framework, path)
    assert misspelt.fix == f"harness doctor --framework {framework} -- env A=1 trainer x"
    assert not absent_program(["env", "A=1", "trainer", "x"], framework, path)
    assert not absent_program(["$PYTHON", "x"], framework, path)
