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


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("python -m verl.trainer.main_ppo", True),
        ("unset ROCR_VISIBLE_DEVICES; python -m verl.trainer.main_ppo", False),
        ("env -u ROCR_VISIBLE_DEVICES python -m verl.trainer.main_ppo", False),
        ("python -m verl.trainer.main_ppo; unset ROCR_VISIBLE_DEVICES", True),
        ("if $X; then unset ROCR_VISIBLE_DEVICES; fi; python -m verl.trainer.main_ppo", False),  # not checked
    ],
)
def test_variables_that_a_script_takes_away(text: str, problems: bool) -> None:
    given = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    for command in (["bash", "-c", text], ["env", "X=1", "bash", "-c", text]):
        assert bool(hazards(command, "verl", "verl-amd", **given)) is problems
        assert not hazards(["env", "-u", "ROCR_VISIBLE_DEVICES", *command], "verl", "verl-amd", **given)


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
TRL_TRAPS = {"trl-group", "trl-seed", "trl-dtype", "trl-sizes"}


def untold(command: list[str], framework: str) -> dict[str, str]:
    """The traps that were not checked, with the reason."""
    items = look(command, framework, {})
    return {one.check: one.reason for one in items if isinstance(one, Unchecked) and one.check.startswith(framework)}


def shell(path: Path, text: str) -> list[str]:
    (path / "run.sh").write_text(text)
    return ["bash", str(path / "run.sh")]


def test_a_setting_that_only_the_shell_knows_is_not_passed(tmp_path: Path) -> None:
    command = shell(tmp_path, f"""ENGINE=$1
python -m verl.trainer.main_ppo {R}.name=$ENGINE {R}.full_determinism=$FD {R}.dtype=$DT {R}.n=2 trainer.nnodes=1 \\
  2>&1 | tee $LOG
""")  # fmt: skip
    told = untold([*command, "sglang"], "verl")
    assert told == {
        "verl-seed": "rollout.name is $ENGINE, which only the shell knows",
        "verl-determinism": "rollout.full_determinism is $FD, which only the shell knows",
        "verl-dtype": "rollout.dtype is $DT, which only the shell knows",
    }
    assert set(untold([*command, f"{R}.name=vllm"], "verl")) == {"verl-determinism", "verl-dtype"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--config-path", "/nowhere", "--config-name", "mine"],
         "settings come from /nowhere/mine.yaml, which cannot be read: there is no such file"),
        (["--config-name=mine"], "settings come from mine, which is not read"),
        (["-cn", "mine"], "settings come from mine, which is not read"),
        (["rollout@actor_rollout_ref.rollout=mine"],
         "settings come from rollout@actor_rollout_ref.rollout=mine, which is not read"),
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
    assert not untold([*VERL, "--config-name", "ppo_trainer", *literal], "verl")


def test_a_node_that_is_given_as_a_whole_is_not_taken_apart() -> None:
    assert set(untold([*VERL, f"{R}.name=sglang", f"{R}.engine_kwargs={{sglang:{{random_seed:1}}}}"], "verl")) == {
        "verl-seed"
    }


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


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed --module $training_commands\n",
        "for s in sft dpo; do deepspeed --module openrlhf.cli.train_$s; done\n",
        "deepspeed --module openrlhf.cli.train_sft --data.max_len 1\n", "python src/train_ppo_ray.py --mine 2\n",
    ],
)  # fmt: skip
def test_prompts_and_samples_of_no_known_ppo_are_not_judged(tmp_path: Path, text: str) -> None:
    made = shell(tmp_path, text)
    items = found(made, "openrlhf", "openrlhf-data") + found(made, "openrlhf", "openrlhf-order")
    assert [type(one) for one in items] == ([] if "train_sft" in text else [Unchecked, Unchecked])


def test_each_start_of_a_script_is_judged_alone(tmp_path: Path) -> None:
    sft = "deepspeed --module openrlhf.cli.train_sft --ds.param_dtype fp16\n"
    made = shell(tmp_path, f"{sft}python -m openrlhf.cli.train_ppo_ray --vllm.num_engines 1\n")
    assert not hazards(made, "openrlhf", "openrlhf-dtype") and len(found(made, "openrlhf", "openrlhf-dtype")) == 1
    made = shell(tmp_path, f"{sft}python -m openrlhf.cli.train_ppo_ray --ds.param_dtype fp16\n")
    (problem,) = hazards(made, "openrlhf", "openrlhf-dtype")
    assert problem.where == ("start 2 of 2: openrlhf.cli.train_ppo_ray",)
    assert len(found(made, "openrlhf", "framework-version")) == 1
    first, second = (f"python -m verl.trainer.main_ppo {R}.name={name}\n" for name in ("vllm", "sglang"))
    (problem,) = hazards(shell(tmp_path, first + second), "verl", "verl-seed")
    assert problem.where == ("start 2 of 2: verl.trainer.main_ppo",)


def test_a_job_whose_start_is_not_seen_is_not_passed(tmp_path: Path) -> None:
    assert set(untold(shell(tmp_path, "bash inner.sh\n"), "verl")) == VERL_TRAPS
    both = {"openrlhf-data", "openrlhf-order"}  # which no setting changes
    assert set(untold(shell(tmp_path, "bash inner.sh\n"), "openrlhf")) == OPENRLHF_TRAPS | both
    assert set(untold(shell(tmp_path, "python grpo.py\n"), "trl")) == TRL_TRAPS
    assert set(untold(shell(tmp_path, "python -m verl.trainer.main_ppo 'a\nb\n"), "verl")) == VERL_TRAPS


def test_the_commands_own_words_and_a_scripts_arrays_are_read(tmp_path: Path) -> None:
    made = shell(
        tmp_path,
        f"""A=(
  {R}.name=sglang
)
python -m verl.trainer.main_ppo "${{A[@]}}" {R}.n=2 "$@"
""",
    )
    assert not untold(made, "verl") and hazards(made, "verl", "verl-seed")
    assert set(untold(shell(tmp_path, 'python -m verl.trainer.main_ppo "${A[@]}"\n'), "verl")) == VERL_TRAPS
    entry = "python -m openrlhf.cli.train_ppo_ray"
    made = shell(tmp_path, f'{entry} --ds.param_dtype fp16 "$@" | tee x\n')
    assert not untold(made, "openrlhf") and hazards(made, "openrlhf", "openrlhf-dtype")


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
        ("use_vllm=True, generation_kwargs={'seed': SEED}", {"trl-group"}),
        ("use_vllm=True, generation_kwargs={'seed': 3}, num_generations=N", {"trl-group", "trl-sizes"}),
        ("use_vllm=True, vllm_mode=MODE", {"trl-seed"}),
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
    assert set(untold([*command, "--use_vllm", "--generation_kwargs", "k.json"], "trl")) == {"trl-group"}


def installed(tmp_path: Path, framework: str, files: dict[str, str], version: str) -> Job:
    package = tmp_path / framework
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    there = Installation("python", version, {framework: (str(package),)})
    return Job(ADAPTERS[framework], "python", there, ())


def unknown(plan: Plan) -> list[str]:
    from harness.doctor.frameworks.flags import known
    from harness.doctor.outcome import Problem

    return [item.what for item in known(plan) if isinstance(item, Problem)]


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
