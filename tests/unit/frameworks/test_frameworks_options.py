"""Options and YAML files against what an installed version takes: packages planted as source, never imported."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.errors import BadInput
from harness.frameworks import detection
from harness.frameworks.argv import taken_apart
from harness.frameworks.detection import Job
from harness.frameworks.examine import look
from harness.frameworks.installed import Installation
from harness.frameworks.spec import Examined, frameworks
from harness.frameworks.trl.traps import MIXED
from harness.frameworks.verl import command as verl_command
from reports.doctor_model import Unchecked

SOURCES = {
    "trl/__init__.py": """
class GRPOConfig:
    def __init__(self, use_vllm=False, seed=42, num_generations=8): ...
""",
    "trl/scripts/__init__.py": "",
    "trl/scripts/grpo.py": """
import argparse
def make_parser(prog=None):
    parser = argparse.ArgumentParser(prog=prog)
    for name in ("vllm_mode", "num_generations", "num_generations_eval", "generation_kwargs", "seed", "beta", "dtype"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", default={"num_generations": 8}.get(name))
    parser.add_argument("--use_vllm", nargs="?", const=True, default=False)
    parser.add_argument("--bf16", default=None)
    parser.add_argument("--fsdp", nargs="?", const=True)
    parser.add_argument("--reward_weights", nargs="+")
    parser.add_argument("--no_remove_unused_columns", action="store_true")
    return parser
""",
    "trl/accelerate_configs/zero2.yaml": "mixed_precision: bf16\nnum_processes: 8\n",
    "accelerate/__init__.py": "",
    "accelerate/commands/__init__.py": "",
    "accelerate/commands/launch.py": """
import argparse
def launch_command_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_processes", type=int)
    parser.add_argument("--config_file")
    parser.add_argument("--mixed_precision", choices=["no", "bf16"])
    parser.add_argument("--multi_gpu", action="store_true")
    return parser
""",
}


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
    environ = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    return Job(frameworks()[framework], sys.executable, Installation(sys.executable, version, places, environ), ())


def asked(job: Job, *command: str, **variables: str) -> Examined:
    return job.framework.examine(taken_apart(command, job.framework.starts, variables), job.installed)


def said(job: Job, *command: str) -> list[Outcome]:
    return list(asked(job, *command).options)


def problems(job: Job, *command: str) -> list[str]:
    return [one.what for one in said(job, *command) if isinstance(one, Problem)]


def own(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


@pytest.mark.by_day(4)
@pytest.mark.slow
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


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """TRL in a folder of an installer's, with an empty home of the harness."""
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    job = planted(tmp_path, "trl", SOURCES, "1.16.0")
    (tmp_path / "site").rename(tmp_path / "site-packages")
    assert job.installed is not None
    places = {top: tuple(place.replace("/site/", "/site-packages/") for place in paths)
              for top, paths in job.installed.places.items()}  # fmt: skip
    environ = {**job.installed.environ, "PYTHONPATH": str(tmp_path / "site-packages")}
    return replace(job, installed=replace(job.installed, places=places, environ=environ))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "mended"),
    [
        ("--beta 1 --no_such a b --seed 2", "--beta 1 --seed 2"),
        ("--no-such=3", ""),
        ("--num_generation_eval=4", "--num_generations_eval=4"),
        ("--num_gen 4 --conf x --seed $MORE --use-vllm --help", None),  # a short form, whatever it means
    ],
)
def test_an_unknown_option_of_trls_own_script_is_refused_with_the_rest(
    released: Job, words: str, mended: str | None
) -> None:
    for command in (["trl", "grpo"], ["python", "-m", "trl.scripts.grpo"]):
        if mended is None:
            detection.refuse_unknown_option(released, [*command, *words.split()], {})
            continue
        with pytest.raises(BadInput) as refused:
            detection.refuse_unknown_option(released, [*command, *words.split()], {})
        assert refused.value.fix == " ".join(["--", *command, *mended.split()])


def test_no_option_of_a_users_script_is_refused(released: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Installation, "query", lambda *_: pytest.fail("a parser was asked"))
    command = ["python", own(tmp_path, "from trl import GRPOConfig, TrlParser"), "--no_such", "1"]
    detection.refuse_unknown_option(released, command, {})


@pytest.mark.slow
def test_a_parser_is_asked_once_for_the_same_packages(
    released: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(released, "trl", "grpo", "--no_such", "1")
    with monkeypatch.context() as unasked:
        unasked.setattr(Installation, "query", lambda *_: pytest.fail("it was asked again"))
        assert problems(released, "trl", "grpo", "--no_such", "1")
    os.utime(tmp_path / "site-packages", (1, 1))  # another version was installed
    monkeypatch.setattr(Installation, "query", lambda *_: {"unknown": "asked"})
    assert not problems(released, "trl", "grpo", "--no_such", "1")


def test_a_near_name_is_told(trl: Job) -> None:
    assert "perhaps num_generations" in str(said(trl, "trl", "grpo", "--num-generation-s", "4"))


def test_a_command_without_a_script_and_an_unknown_installation_are_not_checked(trl: Job) -> None:
    assert [type(one) for one in said(trl, "trl", "sft", "--x", "1")] == [Unseen]
    items = [one for one in look(["trl", "grpo", "--x", "1"], "trl", {}) if one.check == "framework-options"]
    assert [type(one) for one in items] == [Unchecked]


PARSED = """
from dataclasses import dataclass, field
from trl import GRPOConfig, TrlParser
from transformers import HfArgumentParser
@dataclass
class Mine:
    corpus: str = "x"
    quick: bool = False
"""


@pytest.mark.slow
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


def trap(check: str, examined: Examined) -> list[Outcome]:
    traps = [one for framework in frameworks().values() for one in framework.traps if one.check == check]
    return list(traps[0].look(examined.settings))


@pytest.mark.slow
def test_the_settings_of_trls_file_are_read_and_the_command_holds_over_them(trl: Job, tmp_path: Path) -> None:
    text = "use_vllm: true\ngeneration_kwargs: {seed: 3}\nnum_generations: 4\nenv: {WANDB_MODE: offline}\n"
    file = yaml(tmp_path, text)
    script = own(tmp_path, f"{PARSED}TrlParser(GRPOConfig).parse_args_and_config()\n")
    for start in (["trl", "grpo"], ["python", script]):
        plan = asked(trl, *start, "--config", file)
        assert [type(one) for one in trap("trl-group", plan)] == [Problem]
        assert [type(one) for one in trap("trl-seed", plan)] == [Problem]
        assert plan.settings.variables["WANDB_MODE"] == "offline"
        assert not problems(trl, *start, "--config", file)
        for fine in (["--num_generations", "1"], ["--use_vllm=no"]):
            assert [type(one) for one in trap("trl-group", asked(trl, *start, "--config", file, *fine))] == [Fine]


@pytest.mark.slow
def test_a_key_of_the_file_that_nobody_takes(trl: Job, tmp_path: Path) -> None:
    file = yaml(tmp_path, "use_vlm: true\nnum_processes: 4\n")
    assert problems(trl, "trl", "grpo", "--config", file) == [f"trl 1.16.0 does not know use_vlm: of {file}"]
    dropped = said(trl, "python", "-m", "trl.scripts.grpo", "--config", file)
    assert [type(one) for one in dropped] == [Unseen, Unseen] and "which drops it" in str(dropped)


@pytest.mark.slow
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
    assert why in plan.settings.unread and "\n" not in plan.settings.unread
    assert [type(one) for one in trap("trl-group", plan)] == [Unseen]


@pytest.mark.slow
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
    assert plan.settings.get(MIXED, "") == expected
    outcome = trap("trl-dtype", plan)
    assert [type(one) for one in outcome] == [Fine if expected in ("bf16", "fp16") else Problem]


@pytest.mark.slow
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
        (["python", "-m", "torch.distributed.launch"], ["--num_generations", "32"], Problem),
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("N = 5", "", Problem), ("N: int = 16", "", Problem), ("N = 8", "", Fine), ("N = 1", "", Problem),
        ("N = 5\nN = 8", "", Unseen), ("N = 5", "def f(N): pass", Unseen), ("N = 5", "for N in (8,): pass", Unseen),
        ("N = 5", "def f():\n    global N\n    N = 8", Unseen), ("N = 5\nfrom sizes import *", "", Unseen),
        ("N = int('5')", "", Unseen), ("if True:\n    N = 5", "", Unseen), ("import sizes as N", "", Unseen),
    ],
)  # fmt: skip
def test_a_constant_of_the_module_is_what_it_says(
    trl: Job, tmp_path: Path, before: str, after: str, kind: type
) -> None:
    text = f"from trl import GRPOConfig\n{before}\n{after}\na = GRPOConfig(num_generations=N)\n"
    assert [type(one) for one in trap("trl-sizes", asked(trl, "python", own(tmp_path, text)))] == [kind]


@pytest.mark.slow
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
    assert [type(one) for one in trap("trl-dtype", gone)] == [Unseen] and "no such file" in gone.settings.unknown[MIXED]


VERL = ["python", "-m", "verl.trainer.main_ppo"]


ROLLOUT = "actor_rollout_ref.rollout"


def test_nothing_and_what_is_taken_out_are_no_seed(tmp_path: Path) -> None:
    verl = Job(frameworks()["verl"], "", None, ())
    seed, name = f"+{ROLLOUT}.engine_kwargs.sglang.random_seed", f"{ROLLOUT}.name=sglang"
    for word, kind in ((f"{seed}=3", Fine), (f"{seed}=null", Problem), (f"+{seed}=3", Fine)):
        assert [type(one) for one in trap("verl-seed", asked(verl, *VERL, name, word))] == [kind]
    assert [type(one) for one in trap("verl-seed", asked(verl, *VERL, name, f"{seed}=3", f"~{seed[1:]}"))] == [Unseen]


ARGUMENTS = """
import argparse
from datetime import datetime
import torch_that_is_not_there
class Own(argparse.Action): ...
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm.num_engines", type=int, default=1)
    parser.add_argument("--train.colocate_all", action="store_true", default=False)
    parser.add_argument("--train.async", action=argparse.BooleanOptionalAction)
    parser.add_argument("--adam.betas", type=float, nargs=2)
    parser.add_argument("--remote", nargs="*")
    for prefix in ("actor", "critic"):
        parser.add_argument(f"--{prefix}.adam.lr", type=float)
    args = parser.parse_args()
    raise SystemExit("parsed")
"""


@pytest.mark.by_day(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("--vllm.num_engines 2 --train.colocate_all --adam.betas 0.9 0.95 --remote", [Fine]),
        ("--no-train.async", [Fine]), ("--remote a b", [Fine]), ("--odd x", [Problem]),
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
        assert [type(one) for one in plan.options] == [kind]
        assert [type(one) for one in trap("openrlhf-colocation", plan)] == [Unseen if kind is Unseen else Fine]


def test_options_that_openrlhf_makes_in_a_loop_and_its_defaults(tmp_path: Path) -> None:
    sources = {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": "", "openrlhf/cli/train_ppo_ray.py": ARGUMENTS}
    job = planted(tmp_path, "openrlhf", sources, "0.11.2")
    command = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--actor.adam.lr", "5e-7", "--help"]
    assert [type(one) for one in said(job, *command)] == [Fine]
    assert asked(job, *command).settings.get("vllm.num_engines") == 1


@pytest.mark.slow
def test_a_module_that_makes_its_parser_otherwise_is_not_checked(tmp_path: Path) -> None:
    for text in ("def main():\n    pass\n", f"{ARGUMENTS.replace('argparse.ArgumentParser()', 'own_parser()')}", "(\n"):
        sources = {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": "", "openrlhf/cli/train_ppo_ray.py": text}
        job = planted(tmp_path, "openrlhf", sources, "0.11.2")
        told = said(job, "python", "-m", "openrlhf.cli.train_ppo_ray", "--x", "1")
        assert [type(one) for one in told] == [Unseen] and "cannot be asked" in str(told)


def test_the_options_of_a_scripts_own_parser_are_not_checked(trl: Job, tmp_path: Path) -> None:
    file = own(tmp_path, f"{PARSED}TrlParser((Mine, GRPOConfig)).parse_args_and_config()\n")
    assert [type(one) for one in said(trl, "python", file, "--bta", "1")] == [Unseen]
    assert [type(one) for one in said(trl, "python", str(tmp_path / "gone.py"), "--bta", "1")] == [Unseen]


COMPOSED = {f"{ROLLOUT}.name": "sglang", f"{ROLLOUT}.n": 4, f"{ROLLOUT}.seed": "${data.seed}"}


def hydra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **answer: Any) -> tuple[Job, list[tuple[str, ...]]]:
    """A job of verl whose interpreter has a Hydra that answers so, and the words that it was asked with."""
    job = planted(tmp_path, "verl", {"verl/trainer/main_ppo.py": "", "verl/__init__.py": ""}, "0.9.1")
    words: list[tuple[str, ...]] = []
    monkeypatch.setattr(Installation, "query", lambda self, code, *given: words.append(given) or answer)
    return job, words


def test_verls_settings_are_those_that_hydra_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"actor_rollout_ref": {"rollout": {"name": "sglang", "n": 4, "dtype": "${a.b}", "missing": "???"}}}
    job, words = hydra(monkeypatch, tmp_path, values=nested, refused=[])
    examined = asked(job, *VERL, "--config-name", "mine", "data.x=1", "a.b=$N")
    assert [type(one) for one in examined.options] == [Fine] and words[0][2:] == ("--config-name", "mine", "data.x=1")
    assert examined.settings.unread == "" and examined.settings.get(f"{ROLLOUT}.n") == 4
    assert [type(one) for one in trap("verl-seed", examined)] == [Problem]
    [told] = trap("verl-dtype", examined)
    assert isinstance(told, Unseen) and told.reason.endswith("which only Hydra knows")


def test_what_hydra_refuses_is_a_problem_with_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [["data.shuffel=1", "Could not override 'data.shuffel'."], ["", "unrecognized arguments: --x"]]
    job, _ = hydra(monkeypatch, tmp_path, values={"data": {"shuffle": True}}, refused=refused)
    first, second = said(job, *VERL, "data.shuffel=1", "--x")
    assert isinstance(first, Problem) and first.what == "verl 0.9.1 does not take data.shuffel=…"
    assert first.measured.endswith("; perhaps data.shuffle")
    assert isinstance(second, Problem) and "--x" in second.measured


def test_without_hydra_the_overrides_alone_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = hydra(monkeypatch, tmp_path, unknown="Hydra is not there: No module named 'hydra'")
    examined = asked(job, *VERL, f"{ROLLOUT}.name=sglang")
    assert [type(one) for one in examined.options] == [Unseen]
    assert [type(one) for one in trap("verl-seed", examined)] == [Problem]
    with_file = asked(job, *VERL, "--config-name", "mine")
    assert [type(one) for one in trap("verl-seed", with_file)] == [Unseen]


@pytest.mark.parametrize(
    ("words", "values", "unknown"),
    [
        (["a.x=True"], {"a.x": True}, set()), (["a.x=null"], {"a.x": None}, set()), (["++a.x=1"], {"a.x": 1}, set()),
        (["a.x=1", "~a.x"], {}, {"a.x"}), (["~a.x", "++a.x=1"], {"a.x": 1}, set()),
        (["a.x='a b'"], {"a.x": "a b"}, set()),
        (["a.x=[1,2]"], {"a.x": [1, 2]}, set()), (["+a={b:{c:1},d:x}"], {"a.b.c": 1, "a.d": "x"}, set()),
        (["a.x=$N"], {}, {"a.x"}), (["a.x=$N", "a.x=2"], {"a.x": 2}, set()),
        (["PATH_X=1", "a.y="], {"PATH_X": 1, "a.y": None}, set()),
    ],
)  # fmt: skip
def test_overrides_of_hydras(words: list[str], values: dict[str, object], unknown: set[str]) -> None:
    read, unsure = verl_command._overrides(words)
    assert read == values and set(unsure) == unknown
