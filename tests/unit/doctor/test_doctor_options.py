"""Options and YAML files against what an installed version takes: packages planted as source, never imported."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from harness.doctor.frameworks import arguments, flags, traps
from harness.doctor.frameworks.plan import Plan, read
from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.detection import Job
from harness.frameworks.installed import Installation
from probes.adapters import ADAPTERS

SOURCES = {
    "transformers/__init__.py": "",
    "transformers/training_args.py": """
@dataclass
class TrainingArguments:
    framework = "pt"
    output_dir: str | None = field(default=None)
    bf16: bool = field(default=False)
    seed: int = field(default=42)
    remove_unused_columns: bool = field(default=True)
    _n_gpu: int = field(init=False, repr=False, default=-1)
    fsdp: str | None = field(default=None, metadata={"help": "", "nargs": "?", "const": True})
    def __post_init__(self): ...
""",
    "trl/__init__.py": "_import_structure = {'trainer': ['GRPOConfig']}",
    "trl/trainer/__init__.py": "",
    "trl/trainer/base_config.py": """
from transformers import TrainingArguments
@dataclass
class _BaseConfig(TrainingArguments):
    bf16: bool | None = field(default=None)
""",
    "trl/trainer/grpo_config.py": """
from .base_config import _BaseConfig
@dataclass
class GRPOConfig(_BaseConfig):
    _VALID: ClassVar[list[str]] = ["x"]
    use_vllm: bool = field(default=False)
    vllm_mode: str = field(default="colocate")
    num_generations: int | None = field(default=8)
    num_generations_eval: int | None = None
    generation_kwargs: dict | str | None = None
    reward_weights: list[float] | None = None
""",
    "trl/scripts/__init__.py": "",
    "trl/scripts/utils.py": """
@dataclass
class ScriptArguments:
    dataset_name: str | None = None
class TrlParser(HfArgumentParser): ...
""",
    "trl/scripts/grpo.py": """
from trl import ScriptArguments
def make_parser(prog=None):
    from trl import GRPOConfig, TrlParser
    dataclass_types = (ScriptArguments, GRPOConfig)
    parser = TrlParser(dataclass_types, prog=prog)
    return parser
if __name__ == "__main__":
    make_parser().parse_args_and_config(fail_with_unknown_args=False)
""",
    "trl/accelerate_configs/zero2.yaml": "mixed_precision: bf16\nnum_processes: 8\n",
    "accelerate/__init__.py": "",
    "accelerate/commands/__init__.py": "",
    "accelerate/commands/launch.py": """
parser.add_argument("--num_processes", type=int)
parser.add_argument("--config_file", default=None)
parser.add_argument("--mixed_precision", type=str, choices=["no", "bf16"])
parser.add_argument("--multi_gpu", action="store_true")
""",
}  # fmt: skip


@pytest.fixture
def trl(tmp_path: Path) -> Job:
    return planted(tmp_path, "trl", SOURCES, "1.16.0")


def planted(tmp_path: Path, framework: str, sources: dict[str, str], version: str) -> Job:
    for name, text in sources.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tops = {name.split("/")[0] for name in sources}
    places = {top: (str(tmp_path / "site" / top),) for top in tops}
    return Job(ADAPTERS[framework], "python", Installation("python", version, places), ())


def asked(job: Job, *command: str, **variables: str) -> Plan:
    return read(job, command, variables)


def said(job: Job, *command: str) -> list[Outcome]:
    return list(flags.known(asked(job, *command)))


def problems(job: Job, *command: str) -> list[str]:
    return [one.what for one in said(job, *command) if isinstance(one, Problem)]


def own(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--use_vllm --vllm-mode server --seed 3", ""),
        ("--use_vllm=False --num_processes 4 --accelerate_config zero2 --multi_gpu", ""),
        ("--no_remove_unused_columns --fsdp --generation_kwargs {}", ""),
        ("--max_prompt_length 512", "trl 1.16.0 does not know --max_prompt_length"),
        ("--vllm_mod server", ""),  # argparse takes a prefix
        ("--num_gen 4", "trl 1.16.0 does not know --num_gen"),  # of two
        ("--no_bf16", "trl 1.16.0 does not know --no_bf16"),  # it is not on by default
        ("--bf16", "trl 1.16.0 does not take --bf16"),  # `bool | None`: a value has to stand there
        ("--seed --use_vllm", "trl 1.16.0 does not take --seed"),
        ("--multi_gpu yes", "trl 1.16.0 does not take --multi_gpu"),
        ("--no_remove_unused_columns False", "trl 1.16.0 does not take --no_remove_unused_columns"),
        ("--_n_gpu 1", "trl 1.16.0 does not know --_n_gpu"),
        ("--framework tf", "trl 1.16.0 does not know --framework"),
    ],
)
def test_the_trl_commands_options(trl: Job, words: str, wrong: str) -> None:
    for command in (["trl", "grpo"], ["python", "-m", "trl.scripts.grpo"]):
        if command[0] == "python" and ("multi_gpu" in words or "num_processes" in words):
            continue  # those are accelerate's
        if words.startswith("--_"):
            continue
        assert problems(trl, *command, *words.split()) == ([wrong] if wrong else [])
        assert any(isinstance(one, Fine) for one in said(trl, *command, *words.split())) is not bool(wrong)


def test_a_near_name_is_told(trl: Job) -> None:
    assert "perhaps num_generations" in str(said(trl, "trl", "grpo", "--num-generation-s", "4"))


def test_a_command_without_a_script_and_an_unknown_installation_are_not_checked(trl: Job) -> None:
    assert [type(one) for one in said(trl, "trl", "ppo", "--x", "1")] == [Unseen]
    nowhere = dataclasses.replace(trl, installed=None)
    assert [type(one) for one in said(nowhere, "trl", "grpo", "--x", "1")] == [Unseen]


PARSED = """
from dataclasses import dataclass, field
from trl import GRPOConfig, TrlParser
from transformers import HfArgumentParser
@dataclass
class Mine:
    corpus: str = "x"
    quick: bool = False
"""


@pytest.mark.parametrize(
    ("parser", "words", "wrong"),
    [
        ("TrlParser((Mine, GRPOConfig)).parse_args_and_config()", "--corpus y --quick --use_vllm true", 0),
        ("TrlParser((Mine, GRPOConfig)).parse_args_and_config()", "--corpsu y --bta 1", 2),
        ("TrlParser(dataclass_types=[Mine, GRPOConfig]).parse_args_and_config()", "--bta 1", 1),
        ("HfArgumentParser([Mine, GRPOConfig]).parse_args_into_dataclasses()", "--bta 1", 1),
        ("kinds = (Mine, GRPOConfig)\nTrlParser(kinds).parse_args_and_config()", "--bta 1 --corpus y", 1),
        ("p = TrlParser(GRPOConfig)\np.add_argument('--more', type=int)\np.parse_args_and_config()", "--more 1", 0),
        ("p = TrlParser(GRPOConfig)\np.add_argument('--more', type=int)\np.parse_args_and_config()", "--more", 1),
    ],
)
def test_a_scripts_own_parser(trl: Job, tmp_path: Path, parser: str, words: str, wrong: int) -> None:
    file = own(tmp_path, f"{PARSED}{parser}\n")
    assert len(problems(trl, "python", file, *words.split())) == wrong
    assert len(problems(trl, "accelerate", "launch", "--odd_one", "1", file, *words.split())) == wrong


@pytest.mark.parametrize(
    "parser",
    [
        "TrlParser((Mine, GRPOConfig)).parse_known_args()",
        "HfArgumentParser((Mine, GRPOConfig)).parse_args_into_dataclasses(return_remaining_strings=True)",
        "from elsewhere import Other\nTrlParser((Other, GRPOConfig)).parse_args_and_config()",
        "TrlParser(kinds()).parse_args_and_config()",
        "from elsewhere import add\np = TrlParser(GRPOConfig)\nadd(p)\np.parse_args_and_config()",
        "import sys\nprint(sys.argv)",
        "from elsewhere import FancyParser\nFancyParser(GRPOConfig)",
    ],
)
def test_an_option_that_cannot_be_known_is_neither_passed_nor_refused(trl: Job, tmp_path: Path, parser: str) -> None:
    file = own(tmp_path, f"{PARSED}{parser}\n")
    assert [type(one) for one in said(trl, "python", file, "--bta", "1")] == [Unseen]
    assert [type(one) for one in said(trl, "python", str(tmp_path / "gone.py"), "--bta", "1")] == [Unseen]


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("GRPOConfig(use_vllm=True, seed=1)", []),
        ("GRPOConfig(use_vllm=True, max_prompt_length=512)", ["trl 1.16.0 does not know max_prompt_length=…"]),
        ("GRPOConfig(no_remove_unused_columns=True)", ["trl 1.16.0 does not know no_remove_unused_columns=…"]),
        ("GRPOConfig(_n_gpu=3)", ["trl 1.16.0 does not know _n_gpu=…"]),
        ("trl.GRPOConfig(sed=1)", ["trl 1.16.0 does not know sed=…"]),
        ("LoraConfig(sed=1)", []), ("OwnConfig(sed=1)", []),
    ],
)  # fmt: skip
def test_arguments_of_a_scripts_configuration(trl: Job, tmp_path: Path, call: str, wrong: list[str]) -> None:
    text = (
        f"import trl\nfrom trl import GRPOConfig\nfrom peft import LoraConfig\nfrom mine import OwnConfig\nx = {call}\n"
    )
    assert problems(trl, "python", own(tmp_path, text)) == wrong


def yaml(tmp_path: Path, text: str, name: str = "x.yaml") -> str:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def trap(check: str, plan: Plan) -> list[Outcome]:
    return list(dict(traps.TRAPS[plan.job.adapter.framework])[check](plan))


def test_the_settings_of_trls_file_are_read_and_the_command_holds_over_them(trl: Job, tmp_path: Path) -> None:
    text = "use_vllm: true\ngeneration_kwargs: {seed: 3}\nnum_generations: 4\nenv: {WANDB_MODE: offline}\n"
    file = yaml(tmp_path, text)
    script = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args_and_config()\n")
    for start in (["trl", "grpo"], ["python", script]):
        plan = asked(trl, *start, "--config", file)
        assert [type(one) for one in trap("trl-group", plan)] == [Problem]
        assert [type(one) for one in trap("trl-seed", plan)] == [Problem]
        assert plan.variables["WANDB_MODE"] == "offline"
        assert not problems(trl, *start, "--config", file)
        for fine in (["--num_generations", "1"], ["--use_vllm=no"]):
            assert [type(one) for one in trap("trl-group", asked(trl, *start, "--config", file, *fine))] == [Fine]


def test_a_key_of_the_file_that_nobody_takes(trl: Job, tmp_path: Path) -> None:
    file = yaml(tmp_path, "use_vlm: true\nnum_processes: 4\n")
    assert problems(trl, "trl", "grpo", "--config", file) == [f"trl 1.16.0 does not know use_vlm: of {file}"]
    strict = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args_and_config()\n")
    assert len(problems(trl, "python", strict, "--config", file)) == 2  # accelerate's is none of the script's
    strict = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args_and_config(fail_with_unknown_args=False)\n")
    assert {type(one) for one in said(trl, "python", strict, "--config", file)} == {Unseen}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no such file"), ("a: [1\nb: 2\n", "no YAML that can be read in line 2"),
        ("- 1\n", "holds no settings by name"), ("x: !!python/object/apply:os.system [true]\n", "no YAML"),
        ("x" * (1 << 20) + "y", "larger than 1 MiB"), ("\x00", "no YAML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_sentence_and_passes_nothing(
    trl: Job, tmp_path: Path, text: str | None, why: str
) -> None:
    file = str(tmp_path / "x.yaml") if text is None else yaml(tmp_path, text)
    plan = asked(trl, "trl", "grpo", "--config", file)
    assert len(plan.unread) == 1 and why in plan.unread[0] and "\n" not in plan.unread[0]
    assert [type(one) for one in trap("trl-group", plan)] == [Unseen]


def test_a_config_option_of_the_scripts_own_is_not_read(trl: Job, tmp_path: Path) -> None:
    script = own(tmp_path, "import argparse, trl\np = argparse.ArgumentParser()\np.add_argument('--config')\n")
    plan = asked(trl, "python", script, "--config", yaml(tmp_path, "use_vllm: true\n"))
    assert "which is not read" in plan.unread[-1] and not plan.keywords


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["accelerate", "launch", "--config_file", "FILE"], [], "bf16"),
        (["accelerate", "launch", "--config_file=FILE", "--mixed_precision", "no"], [], "no"),
        (["accelerate", "launch", "--mixed_precision=fp16"], [], "fp16"),
        (["python"], [], ""),
        (["torchrun", "--nproc_per_node", "2"], [], ""),
        (["env", "ACCELERATE_MIXED_PRECISION=bf16", "python"], [], "bf16"),
        (["trl"], ["--accelerate_config", "zero2"], "bf16"),
        (["trl"], ["--accelerate_config", "FILE"], "bf16"),
        (["trl"], [], ""),
    ],
)  # fmt: skip
def test_accelerates_mixed_precision_is_the_trainers(
    trl: Job, tmp_path: Path, before: list[str], after: list[str], expected: str
) -> None:
    file = yaml(tmp_path, "mixed_precision: bf16\nnum_processes: 4\nfsdp_config: {a: 1}\n")
    start = ["grpo"] if before == ["trl"] else [own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args()\n")]
    words = [word.replace("FILE", file) for word in (*before, *start, *after)]
    plan = asked(trl, *words, "--use_vllm", "--bf16", "false", HOME=str(tmp_path))
    assert plan.launch.get("mixed_precision", "") == expected
    outcome = trap("trl-dtype", plan)
    assert [type(one) for one in outcome] == [Fine if expected in ("bf16", "fp16") else Problem]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (["python"], [], Fine), (["python"], ["--num_generations", "3"], Problem),
        (["python"], ["--num_generations", "16"], Problem),
        (["torchrun", "--nproc_per_node", "2"], ["--num_generations", "16"], Fine),
        (["torchrun", "--nproc-per-node=3"], ["--num_generations", "16"], Problem),
        (["torchrun", "--nproc_per_node", "gpu"], ["--num_generations", "16"], Unseen),
        (["torchrun", "--nproc_per_node", "gpu"], ["--num_generations", "4"], Fine),
        (["python", "-m", "torch.distributed.launch", "--nproc_per_node=4"], ["--num_generations", "32"], Fine),
        (["python", "-m", "torch.distributed.launch", "--nproc_per_node=3"], ["--num_generations", "32"], Problem),
        (["python", "-m", "torch.distributed.launch"], ["--num_generations", "32"], Unseen),
        (["mpiexec", "-n", "4", "python"], ["--num_generations", "32"], Unseen),
        (["python", "-m", "accelerate.commands.launch"], ["--num_generations", "32"], Unseen),
        (["accelerate", "launch", "--config_file", "FILE"], ["--num_generations", "32"], Fine),
        (["accelerate", "launch", "--config_file", "FILE", "--num_processes", "3"], ["--num_generations", "32"],
         Problem),
        (["accelerate", "launch"], ["--num_generations", "32"], Unseen),
        (["python"], ["--num_generations", "$N"], Unseen),
        (["python"], ["--generation_batch_size", "12", "--num_generations", "8"], Problem),
        (["accelerate", "launch"], ["--generation_batch_size", "32"], Fine),
        (["python"], ["--num_generations", "16", "--gradient_accumulation_steps", "4"], Fine),
        (["python"], ["--num_generations", "16", "--gradient_accumulation_steps", "4", "--steps_per_generation", "1"],
         Problem),
    ],
)  # fmt: skip
def test_whole_groups_in_a_generation_batch(
    trl: Job, tmp_path: Path, before: list[str], after: list[str], kind: type
) -> None:
    file = yaml(tmp_path, "mixed_precision: bf16\nnum_processes: 4\n")
    script = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args()\n")
    words = [word.replace("FILE", file) for word in (*before, script, *after)]
    assert [type(one) for one in trap("trl-sizes", asked(trl, *words, HOME=str(tmp_path)))] == [kind]


@pytest.mark.parametrize("call", ["notebook_launcher(f, num_processes=4)", "mp.spawn(f, nprocs=4)", "f()"])
def test_processes_that_a_script_starts_itself_are_not_counted(trl: Job, tmp_path: Path, call: str) -> None:
    text = "from trl import GRPOConfig\ndef f(): GRPOConfig(per_device_train_batch_size=2, num_generations=8)\n"
    plan = asked(trl, "python", own(tmp_path, text + call))
    assert [type(one) for one in trap("trl-sizes", plan)] == [Problem if call == "f()" else Unseen]


@pytest.mark.parametrize("line", ["import unsloth", "from unsloth import FastLanguageModel", "import os"])
def test_unsloths_configuration_is_none_of_trls(trl: Job, tmp_path: Path, line: str) -> None:
    text = f"{line}\nfrom trl import GRPOConfig\na = GRPOConfig(sampling=1, num_generations=5)\n"
    script = own(tmp_path, text)
    kind = Problem if line == "import os" else Unseen
    assert [type(one) for one in said(trl, "python", script)] == [kind]
    assert [type(one) for one in trap("trl-sizes", asked(trl, "python", script))] == [kind]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("--bf16 true --model_init_kwargs {\"dtype\":\"float32\"}", Fine),
        ("--model_init_kwargs {\"dtype\":\"float32\"}", Fine),
        ("--bf16 false --dtype bfloat16", Fine), ("--bf16 false --model_init_kwargs {\"dtype\":\"bfloat16\"}", Fine),
        ("--bf16 false --dtype bfloat16 --model_init_kwargs {\"dtype\":\"float32\"}", Problem),  # which holds
        ("--bf16 false --dtype float32", Problem), ("--bf16 false", Problem), ("--bf16 false --fp16 true", Fine),
        ("--bf16 false --dtype auto", Unseen), ("--bf16 false --dtype $D", Unseen), ("--bf16 $B", Unseen),
    ],
)  # fmt: skip
def test_a_trainer_is_float32_only_without_mixed_precision(trl: Job, tmp_path: Path, words: str, kind: type) -> None:
    command = ["trl", "grpo", "--model_name_or_path", "a", "--use_vllm", "--vllm_mode", "server", *words.split()]
    assert [type(one) for one in trap("trl-dtype", asked(trl, *command, HOME=str(tmp_path)))] == [kind]


def test_the_sizes_of_another_trainer_are_not_checked(trl: Job, tmp_path: Path) -> None:
    assert [type(one) for one in trap("trl-sizes", asked(trl, "trl", "sft"))] == [Unseen]
    assert [type(one) for one in trap("trl-sizes", asked(trl, "trl", "grpo", "--num_processes", "1"))] == [Fine]
    assert [type(one) for one in trap("trl-sizes", asked(trl, "python", own(tmp_path, "import trl")))] == [Unseen]


def test_the_file_that_accelerate_config_wrote_counts_and_a_missing_one_is_told(trl: Job, tmp_path: Path) -> None:
    yaml(tmp_path, "mixed_precision: bf16\n", ".cache/huggingface/accelerate/default_config.yaml")
    words = ["--use_vllm", "--bf16", "false"]
    script = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args()\n")
    home = {"HOME": str(tmp_path)}
    plan = asked(trl, "accelerate", "launch", script, *words, **home)
    assert [type(one) for one in trap("trl-dtype", plan)] == [Fine]
    assert [type(one) for one in trap("trl-dtype", asked(trl, "python", script, *words, **home))] == [Problem]
    gone = asked(trl, "accelerate", "launch", "--config_file", "gone.yaml", script, *words, **home)
    assert [type(one) for one in trap("trl-dtype", gone)] == [Unseen] and "no such file" in gone.launch_unread


REFERENCE = """
data: {train_batch_size: 1024, train_files: x}
custom: {}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 256}
  rollout: {name: vllm, n: 1, dtype: bfloat16, full_determinism: false}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
VERL = ["python", "-m", "verl.trainer.main_ppo"]


@pytest.fixture
def verl(tmp_path: Path) -> Job:
    sources = {"verl/__init__.py": "", "verl/trainer/__init__.py": "", "verl/trainer/main_ppo.py": "",
               "verl/trainer/config/_generated_ppo_trainer.yaml": REFERENCE}  # fmt: skip
    return planted(tmp_path, "verl", sources, "0.9.1")


OWN = """
hydra: {searchpath: ["pkg://verl.trainer.config"]}
defaults: [ppo_trainer, _self_]
actor_rollout_ref:
  rollout: {name: sglang, n: 4, full_determinism: true}
custom: {reward: {scale: 2}}
"""


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--train.batch_size=4", "verl 0.9.1 does not know --train.batch_size"),
        ("--colocate_all_models", "verl 0.9.1 does not know --colocate_all_models"),
        ("data.train_files", "verl 0.9.1 does not know data.train_files"),
        ("--multirun -m --cfg job --info=all -cn ppo_trainer.yaml data.train_files=x", ""),
        ("$EXTRA data.train_files=x", ""),
    ],
)
def test_a_word_that_is_no_override_of_hydras(verl: Job, words: str, wrong: str) -> None:
    assert problems(verl, *VERL, *words.split()) == [wrong] * bool(wrong)


def test_what_a_shell_takes_itself_is_no_override(verl: Job, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{' '.join(VERL)} data.train_files=x \\\n  > train.log 2>err.log < in.txt | tee out.log\n")
    assert problems(verl, "bash", str(script)) == []


def test_a_file_of_ones_own_that_builds_on_verls_is_read(verl: Job, tmp_path: Path) -> None:
    yaml(tmp_path, OWN, "conf/mine.yaml")
    ways = [["--config-path", str(tmp_path / "conf"), "--config-name=mine"],
            [f"--config-path={tmp_path / 'conf'}", "-cn", "mine.yaml"],
            ["--config-dir", str(tmp_path / "conf"), "--config-name", "mine"]]  # fmt: skip
    for words in ways:
        plan = asked(verl, *VERL, *words)
        assert plan.unread == ()
        assert [type(one) for one in trap("verl-seed", plan)] == [Problem]
        assert [type(one) for one in trap("verl-seed", asked(verl, *VERL, *words, f"{ROLLOUT}.name=vllm"))] == [Fine]
        held = asked(verl, *VERL, *words, f"{ROLLOUT}.name=vllm")
        assert [type(one) for one in trap("verl-determinism", held)] == [Problem]
        assert [type(one) for one in trap("verl-determinism", asked(verl, *VERL))] == [Fine]
        assert [type(one) for one in said(verl, *VERL, *words, "data.train_files=y", "custom.reward.scale=3")] == [Fine]
        assert len(problems(verl, *VERL, *words, "data.train_fils=y")) == 1
        assert len(problems(verl, *VERL, *words, "+custom.reward.scale=3")) == 1


ROLLOUT = "actor_rollout_ref.rollout"


def test_verls_relative_path_lies_beside_its_main(verl: Job, tmp_path: Path) -> None:
    yaml(tmp_path, OWN, "site/verl/trainer/own/mine.yaml")
    plan = asked(verl, *VERL, "--config-path=own", "--config-name=mine")
    assert plan.unread == () and plan.get(f"{ROLLOUT}.name") == "sglang"
    nowhere = asked(dataclasses.replace(verl, installed=None), *VERL, "--config-path=own", "--config-name=mine")
    assert "beside verl's own files" in nowhere.unread[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{ROLLOUT.split('.')[0]}: {{rollout: {{name: sglang}}}}\n", "does not build on verl's ppo_trainer"),
        ("defaults: [ppo_trainer, {actor@actor_rollout_ref.actor: mine}]\n", "actor@actor_rollout_ref.actor: mine"),
        ("defaults: [gone, ppo_trainer]\n", "settings come from gone in the defaults"),
        ("a: [\n", "no YAML"), (None, "no such file"),
    ],
)  # fmt: skip
def test_what_such_a_file_leaves_open_is_not_passed(verl: Job, tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        yaml(tmp_path, text, "mine.yaml")
    plan = asked(verl, *VERL, "--config-path", str(tmp_path), "--config-name", "mine")
    assert len(plan.unread) == 1 and why in plan.unread[0]
    assert [type(one) for one in trap("verl-determinism", plan)] == [Unseen]
    options = said(verl, *VERL, "--config-path", str(tmp_path), "--config-name", "mine", "data.shuffel=1")
    assert [type(one) for one in options] == [Unseen]


def test_files_build_on_each_other_and_the_later_holds(verl: Job, tmp_path: Path) -> None:
    yaml(tmp_path, OWN, "base.yaml")
    yaml(tmp_path, f"defaults: [base]\n{ROLLOUT.split('.')[0]}: {{rollout: {{n: 8}}}}\nstrange: 1\n", "mine.yaml")
    words = ["--config-path", str(tmp_path), "--config-name", "mine"]
    plan = asked(verl, *VERL, *words)
    assert plan.unread == ()
    assert (plan.get(f"{ROLLOUT}.n"), plan.get(f"{ROLLOUT}.name")) == ("8", "sglang")
    told = [one.reason for one in said(verl, *VERL, *words) if isinstance(one, Unseen)]
    assert len(told) == 1 and told[0].startswith("the configuration file sets strange")


def test_a_setting_that_hydra_works_out_is_not_passed(verl: Job, tmp_path: Path) -> None:
    yaml(tmp_path, OWN.replace("name: sglang", "name: '${engine}'"), "mine.yaml")
    plan = asked(verl, *VERL, "--config-path", str(tmp_path), "--config-name", "mine")
    (told,) = trap("verl-seed", plan)
    assert isinstance(told, Unseen) and told.reason == "rollout.name is ${engine}, which only Hydra knows"


def test_nothing_and_what_is_taken_out_are_no_seed(verl: Job) -> None:
    seed, name = f"+{ROLLOUT}.engine_kwargs.sglang.random_seed", f"{ROLLOUT}.name=sglang"
    for word, kind in ((f"{seed}=3", Fine), (f"{seed}=null", Problem), (f"+{seed}=3", Fine)):
        assert [type(one) for one in trap("verl-seed", asked(verl, *VERL, name, word))] == [kind]
    assert [type(one) for one in trap("verl-seed", asked(verl, *VERL, name, f"{seed}=3", f"~{seed[1:]}"))] == [Unseen]


ARGUMENTS = """
import argparse
parser.add_argument("--vllm.num_engines", type=int)
parser.add_argument("--train.colocate_all", action="store_true", default=False)
parser.add_argument("--train.async", action=argparse.BooleanOptionalAction)
parser.add_argument("--adam.betas", type=float, nargs=2)
parser.add_argument("--remote", nargs="*")
parser.add_argument("--odd", action=Own)
"""


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("--vllm.num_engines 2 --train.colocate_all --adam.betas 0.9 0.95 --remote --odd", [Fine]),
        ("--no-train.async", [Fine]), ("--remote a b", [Fine]), ("--odd x", [Fine]),
        ("--train.colocate_all=False", [Problem]), ("--train.colocate_all False", [Problem]),
        ("--no-train.colocate_all", [Problem]), ("--train.async=1", [Problem]),
        ("--vllm.num_engines", [Problem]), ("--vllm.num_engines --train.colocate_all", [Problem]),
        ("--train.colocate_all $MORE", [Unseen]), ("--vllm.num_engines $N", [Fine]),
    ],
)  # fmt: skip
def test_switches_and_values_of_openrlhfs_parser(tmp_path: Path, words: str, kinds: list[type]) -> None:
    sources = {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": "", "openrlhf/cli/train_ppo_ray.py": ARGUMENTS}
    job = planted(tmp_path, "openrlhf", sources, "0.11.2")
    submitted = ["ray", "job", "submit", "--address", "x", "--no-wait", "--entrypoint-num-cpus", "1", "--"]
    for before in ([], submitted, ["deepspeed", "--odd_one", "1"]):
        command = [*before, "python", "-m", "openrlhf.cli.train_ppo_ray", *words.split()]
        assert [type(one) for one in said(job, *command)] == kinds


def test_a_file_of_ones_own_is_none_of_openrlhfs(tmp_path: Path) -> None:
    sources = {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": "", "openrlhf/cli/train_ppo_ray.py": ARGUMENTS}
    job = planted(tmp_path, "openrlhf", sources, "0.11.2")
    for file, kind in (("own/train_ppo_ray.py", Unseen), ("x/openrlhf/cli/train_ppo_ray.py", Problem)):
        plan = asked(job, "python", file, "--mine", "2")
        assert [type(one) for one in flags.known(plan)] == [kind]
        assert [type(one) for one in trap("openrlhf-colocation", plan)] == [Unseen if kind is Unseen else Fine]


MADE = {
    "for p in ('actor', 'critic'):\n    parser.add_argument(f'--{p}.adam.lr', type=float)":
        ({"actor.adam.lr", "critic.adam.lr"}, ""),
    "for n in ['lr', 'beta']:\n    g.add_argument('--' + n)\n    g.add_argument(f'--no_{n}', action='store_true')":
        ({"lr", "beta", "no_lr", "no_beta"}, ""),
    "for n, t in (('lr', float), ('n', int)):\n    p.add_argument(f'--{n}', type=t)": ({"lr", "n"}, ""),
    "for n in ('a', NAME):\n    p.add_argument(f'--{n}')": ({"a"}, "f'--{n}'"),
    "for n, d in (('lr', 1), ('n', 2)):\n    p.add_argument(f'--{n}', default=d)": ({"lr", "n"}, ""),
    "for n in ('a', 'b'):\n    for m in ('x', 'y'):\n        p.add_argument(f'--{n}.{m}')":
        ({"a.x", "a.y", "b.x", "b.y"}, ""),
    "def add(p, of):\n    p.add_argument(f'--{of}.lr')\nadd(p, 'actor')\nadd(p, of='critic')":
        ({"actor.lr", "critic.lr"}, ""),
    "def add(p, of):\n    p.add_argument(f'--{of}.lr')\nadd(p, NAME)": (set(), "f'--{of}.lr'"),
    "def add(p, of='x'):\n    p.add_argument(f'--{of}.lr')\nadd(p)": (set(), "f'--{of}.lr'"),
    "for n in NAMES:\n    p.add_argument(f'--{n}')\np.add_argument('--more')": ({"more"}, "f'--{n}'"),
    "for n in ('a', 'b'):\n    n = n.upper()\n    p.add_argument(f'--{n}')": (set(), "f'--{n}'"),
    "for n in ('a', 'b'):\n    p.add_argument(f'--{n:>4}')": (set(), "f'--{n:>4}'"),
    "p.add_argument(*names)": (set(), "*names"),
    "p.add_argument('-m', '--model', required=True)\np.add_argument('path')": ({"model"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("text", MADE)
def test_names_of_options_that_a_source_makes(text: str) -> None:
    found = arguments.options(ast.parse(text))
    assert (set(found.names), found.unknown) == MADE[text]


@pytest.mark.parametrize(
    ("loop", "kinds"), [("for prefix in ('actor', 'critic')", [Fine]), ("for prefix in PREFIXES", [Unseen])]
)
def test_options_that_openrlhf_makes_in_a_loop(tmp_path: Path, loop: str, kinds: list[type]) -> None:
    text = f'{ARGUMENTS}{loop}:\n    parser.add_argument(f"--{{prefix}}.adam.lr", type=float)\n'
    sources = {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": "", "openrlhf/cli/train_ppo_ray.py": text}
    job = planted(tmp_path, "openrlhf", sources, "0.11.2")
    command = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--vllm.num_engines", "1"]
    assert [type(one) for one in said(job, *command, "--actor.adam.lr", "5e-7", "--critic.adam.lr", "9e-6")] == kinds
    assert [type(one) for one in said(job, *command, "--help")] == [Fine]
    assert [type(one) for one in said(job, *command, "--train.colocate_all=x")] == [Problem]


def test_options_that_a_script_of_trls_makes_in_a_loop(trl: Job, tmp_path: Path) -> None:
    text = "import argparse, trl\np = argparse.ArgumentParser()\nfor n in {}:\n    p.add_argument(f'--{{n}}')\n"
    words = ["--lr", "1e-6", "--beta", "0.1"]
    assert not problems(trl, "python", own(tmp_path, text.format("('lr', 'beta')")), *words)
    assert len(problems(trl, "python", own(tmp_path, text.format("('lr', 'alpha')")), *words)) == 1
    assert [type(one) for one in said(trl, "python", own(tmp_path, text.format("NAMES")), *words)] == [Unseen]


ALIASED = """
from dataclasses import dataclass
from trl import GRPOConfig as TrlGRPOConfig, TrlParser
@dataclass
class GRPOConfig(TrlGRPOConfig):
    benchmarks: str | None = None
TrlParser(GRPOConfig).parse_args_and_config()
"""


def test_a_class_under_another_name_is_followed(trl: Job, tmp_path: Path) -> None:
    file = own(tmp_path, ALIASED)
    assert [type(one) for one in said(trl, "python", file, "--benchmarks", "x", "--use_vllm")] == [Fine]
    assert problems(trl, "python", file, "--bench", "x", "--bta", "1") == ["trl 1.16.0 does not know --bta"]
    text = ALIASED.replace("TrlParser(GRPOConfig).parse_args_and_config()", "TrlGRPOConfig(sed=1)")
    assert problems(trl, "python", own(tmp_path, text)) == ["trl 1.16.0 does not know sed=…"]


ENGINES = {
    "verl/trainer/config/model_engine/dp.yaml": "model_engine: dp\n",
    "verl/trainer/config/_generated_ppo_trainer.yaml": """
data: {train_batch_size: 1024, custom_cls: {path: null}}
ray_kwargs: {ray_init: {num_cpus: null}}
actor_rollout_ref:
  actor: {strategy: fsdp, fsdp_config: {param_offload: false}}
  rollout: {n: 1, missing: "???", worked_out: "${a.b}", engine_kwargs: {vllm: {}}}
trainer: {nnodes: 1, logger: [console]}
""",
    "verl/trainer/config/_generated_ppo_megatron_trainer.yaml": """
data: {train_batch_size: 1024}
actor_rollout_ref: {actor: {strategy: megatron, megatron: {param_offload: false}}, rollout: {n: 1}}
""",
}


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("model_engine=megatron actor_rollout_ref.actor.megatron.param_offload=True", [Fine]),
        ("actor_rollout_ref.actor.megatron.param_offload=True model_engine=megatron", [Fine]),
        ("model_engine=dp actor_rollout_ref.actor.fsdp_config.param_offload=True", [Fine]),
        ("model_engine=megatron actor_rollout_ref.actor.fsdp_config.param_offload=True", [Problem]),
        ("model_engine=veomni actor_rollout_ref.actor.veomni.x=1", [Unseen]),  # no reference of it
        ("model_engine=$E actor_rollout_ref.actor.veomni.x=1", [Unseen]),
        ("actor@actor_rollout_ref.actor=megatron_actor actor_rollout_ref.actor.megatron.param_offload=True", [Unseen]),
        ("actor@actor_rollout_ref.actor=megatron_actor actor_rollout_ref.rollout.m=1", [Problem]),
        ("+data.custom_cls.path=/x.py +ray_kwargs.ray_init.num_cpus=8", [Fine]),
        ("+actor_rollout_ref.rollout.engine_kwargs.vllm={enable_expert_parallel:true}", [Fine]),
        ("+actor_rollout_ref.rollout.missing=1 +actor_rollout_ref.rollout.worked_out=1", [Fine]),
        ("+trainer.logger=[wandb]", [Fine]), ("+trainer.logger=wandb", [Problem]), ("+trainer.nnodes=$N", [Fine]),
        ("+trainer.nnodes=1", [Problem]), ("+trainer=1", [Problem]),
        ("+my.x=1 my.x=2 ++my.x=3", [Fine]), ("my.x=2 +my.x=1", [Problem]), ("+my.x=1 +my.x=2", [Problem]),
        ("+my.x=1 my.y=2", [Problem]), ("+my={} my.x=1", [Problem]), ("~trainer.nnodes trainer.nnodes=1", [Problem]),
        ("~trainer.nnodes +trainer.nnodes=1", [Fine]), ("~trainer trainer.nnodes=1", [Problem]),
    ],
)  # fmt: skip
def test_overrides_one_after_the_other_and_another_engines_reference(
    tmp_path: Path, words: str, kinds: list[type]
) -> None:
    sources = {"verl/__init__.py": "", "verl/trainer/__init__.py": "", "verl/trainer/main_ppo.py": "", **ENGINES}
    job = planted(tmp_path, "verl", sources, "0.9.1")
    assert [type(one) for one in said(job, *VERL, *words.split())] == kinds
