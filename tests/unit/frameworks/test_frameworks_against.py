"""Two commands compared before anything runs: planted differences, and pairs in which nothing differs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.doctor.doctor_options import DoctorOptions
from harness.doctor.examine import compared
from harness.errors import BadInput
from harness.frameworks import detection, servers
from harness.frameworks.against import compare, words
from harness.frameworks.installed import Installation
from reports.doctor_model import Hazard, Report, Unchecked

# As a user wrote them: one job on each engine, in a shell, with a batch that is another one.
SGLANG = """ray job submit --address="172.17.0.2:1234" \\
--runtime-env-json='{"working_dir": "/root", "env_vars": {"WORKERS": "4"}}' \\
   -- python3 -m openrlhf.cli.train_ppo_ray --backend sglang --pretrain org/model \\
   --save_path ${DIR}/sglang-$(now) --micro_train_batch_size 8 --train_batch_size 32 --actor_learning_rate 5e-7 \\
   --bf16 --packing_samples --wandb_run_name sglang-$TIME >> ~/log/sglang-$TIME.log
"""
VLLM = SGLANG.replace("backend sglang", "backend vllm").replace("sglang-", "vllm-").replace("5e-7", "0.0000005")
VERL = "python -m verl.trainer.main_ppo data.train_batch_size=512 actor_rollout_ref.rollout.top_p=0.9"
KWARGS = "+actor_rollout_ref.rollout.engine_kwargs"


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "ask", lambda python, *_, **__: Installation(python, "", {}))


def differences(one: str, two: str, severity: str = "error") -> list[str]:
    return [item.what for item in report(one, two).hazards if item.severity == severity]


def report(one: str, two: str) -> Report:
    return compared(DoctorOptions(command=words(one), against=two))


def named(found: Report, check: str = "same-settings") -> list[str]:
    return [item.what.removesuffix(" differs") for item in found.hazards if item.check == check]


def test_a_batch_that_differs_is_the_answer() -> None:
    found = report(SGLANG, VLLM.replace("train_batch_size 32", "train_batch_size 64"))
    (worst,) = [item for item in found.hazards if item.severity == "error"]
    assert worst.what == "train_batch_size differs" and found.exit_code == 1 and found.verdict == "DIFFERENT"
    assert "train_batch_size=32" in worst.measured and "train_batch_size=64" in worst.measured
    assert named(found) == ["train_batch_size", "backend"]  # where results go is no difference
    assert json.loads(found.to_json())["exit_code"] == 1


def test_equal_jobs_on_two_engines_differ_in_the_engine_alone() -> None:
    found = report(SGLANG, VLLM)
    assert named(found) == ["backend"] and found.exit_code == 0
    [engine] = [item for item in found.hazards if item.check == "same-settings"]
    assert engine.fix.startswith("harness mapping FILE.py --engine vllm ")  # of the user's own, to the second's engine
    assert not found.unchecked


def test_a_command_is_the_same_as_itself() -> None:
    for command in (SGLANG, VERL):
        found = report(command, command)
        assert not [item for item in found.hazards if item.severity != "info"] and found.exit_code == 0


@pytest.mark.parametrize(
    ("more", "severity"),
    [
        ("--normalize_reward", "unknown"),
        ("--temperature 0.9", "error"),
        ("--save_steps 5", "info"),
        ("--zero_stage 2", "warning"),
    ],
)
def test_a_setting_of_one_command_alone_differs(more: str, severity: str) -> None:
    name = more.split()[0].removeprefix("--")
    command = VLLM.replace("--bf16", f"--bf16 {more}")
    assert differences(VLLM, command, severity)[:1] == [f"{name} differs"]
    assert differences(command, VLLM, severity)[:1] == [f"{name} differs"]


def test_variables_of_a_job_are_settings() -> None:
    found = report(SGLANG, VLLM.replace('"WORKERS": "4"', '"WORKERS": "8"'))
    assert "the variable WORKERS" in named(found)


def test_a_default_that_is_written_down_is_no_difference() -> None:
    assert differences(VERL, f"{VERL} actor_rollout_ref.rollout.n=1 algorithm.gamma=1.0") == []
    assert differences(VERL, f"{VERL} actor_rollout_ref.rollout.n=4") == ["actor_rollout_ref.rollout.n differs"]


def test_what_only_the_shell_knows_is_not_equal() -> None:
    found = report(VERL, f"{VERL} actor_rollout_ref.rollout.n=$GROUP")
    assert not [item for item in found.hazards if item.severity == "error"] and found.unchecked
    unread = report(VERL, VERL.replace("top_p=0.9", "top_p=0.9 $MORE").replace("data.train_batch_size=512", ""))
    assert unread.unchecked and "data.train_batch_size" not in named(unread)


def test_what_an_engine_takes_another_way_is_named() -> None:
    both = f"{VERL} actor_rollout_ref.rollout.top_k=20"
    found = report(f"{both} actor_rollout_ref.rollout.name=vllm", f"{both} actor_rollout_ref.rollout.name=sglang")
    assert "top_k with top_p means another thing in SGLang" in named(found, "same-meaning")
    assert [item.where for item in found.hazards if item.check == "verl-seed"] == [("command B",)]
    alone = report(f"{VERL} actor_rollout_ref.rollout.name=vllm", f"{VERL} actor_rollout_ref.rollout.name=sglang")
    assert not [item for item in alone.hazards if "another thing" in item.what]


@pytest.mark.parametrize(
    ("vllm", "sglang", "differs"),
    [
        ("enable_prefix_caching=False", "disable_radix_cache=True", False),
        ("enable_prefix_caching=True", "disable_radix_cache=True", True),
        ("enforce_eager=True", "disable_cuda_graph=True", False),
        ("max_model_len=2048", "context_length=2048", True),
        ("max_model_len=2048", "context_length=2050", False),
    ],
)
def test_arguments_of_the_engines_are_compared_by_what_they_amount_to(vllm: str, sglang: str, differs: bool) -> None:
    found = report(
        f"{VERL} actor_rollout_ref.rollout.name=vllm {KWARGS}.vllm.{vllm}",
        f"{VERL} actor_rollout_ref.rollout.name=sglang {KWARGS}.sglang.{sglang} {KWARGS}.sglang.random_seed=0",
    )
    assert bool([name for name in named(found) if name.endswith("of the engine")]) is differs


def test_two_frameworks_are_compared_in_the_terms_of_both() -> None:
    verl = (
        "python -m verl.trainer.main_ppo data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
        "actor_rollout_ref.rollout.n=4 data.max_response_length=1024"
    )
    openrlhf = (
        "python -m openrlhf.cli.train_ppo_ray --rollout.batch_size 128 --train.batch_size 128 "
        "--rollout.n_samples_per_prompt 4 --rollout.max_new_tokens {}"
    )
    assert "response length" in named(report(openrlhf.format(1000), verl))
    alike = named(report(openrlhf.format(1024), verl))
    assert not {"response length", "prompts a step", "samples an update", "samples a prompt"} & set(alike)
    other = verl.replace("mini_batch_size=32", "mini_batch_size=64")
    assert "samples an update" in named(report(openrlhf.format(1024), other))


def test_an_option_without_a_counterpart_is_not_compared() -> None:
    found = report("python -m openrlhf.cli.train_ppo_ray --ds.packing_samples", VERL)
    assert any("ds.packing_samples" in item.reason for item in found.unchecked)


def test_a_shell_script_is_refused() -> None:
    with pytest.raises(BadInput, match="run_verl"):
        compared(DoctorOptions(command=words(VERL), against="bash run_verl.sh", framework="verl"))
    with pytest.raises(BadInput, match="--against"):
        words("python 'unfinished")


def test_secrets_are_withheld() -> None:
    secret = "sk-0123456789abcdef0123456789abcdef"
    found = report(VERL, f"{VERL} +trainer.api_key={secret}")
    assert secret not in found.to_json() and all(isinstance(item, Hazard) for item in found.hazards)


ROLLOUT = "actor_rollout_ref.rollout"
GIVEN = f"{ROLLOUT}.seed=1 {ROLLOUT}.max_model_len=2048 data.max_prompt_length=1024 data.max_response_length=1000"


def test_what_engines_do_where_nothing_is_given_is_filed_by_what_it_changes() -> None:
    """Only the engine differs on purpose. Lengths and seeds change results, given or not."""
    found = report(f"{VERL} {ROLLOUT}.name=vllm", f"{VERL} {ROLLOUT}.name=sglang")
    assert named(found, "same-meaning") == ["the engines count the context another way"]
    assert differences(f"{VERL} {ROLLOUT}.name=vllm", f"{VERL} {ROLLOUT}.name=sglang", "info") == [
        f"{ROLLOUT}.name differs"
    ]
    fork = report(SGLANG, VLLM)  # whether this fork gives its engines a length is not known here
    unknown = [item.what for item in fork.hazards if item.severity == "unknown"]
    assert unknown == ["the engines have another most tokens where none is given"] and fork.verdict == "MAY DIFFER"
    both = [f"{VERL} {ROLLOUT}.name={engine} {GIVEN}" for engine in ("vllm", "sglang")]
    assert not named(report(*both), "same-meaning")


@pytest.mark.parametrize(
    ("setting", "severity"),
    [
        (f"{ROLLOUT}.seed=7", "error"),
        ("data.max_prompt_length=7", "error"),
        ("data.max_response_length=7", "error"),
        ("trainer.resume_mode=disable", "warning"),
        ("trainer.nosuch=1", "unknown"),
        ("trainer.project_name=mine", "info"),
        (f"{KWARGS}.vllm.nosuch=1", ""),
    ],
)
def test_a_difference_is_filed_by_what_it_changes(setting: str, severity: str) -> None:
    name = setting.partition("=")[0].lstrip("+")
    found = [item for item in report(VERL, f"{VERL} {setting}").hazards if item.what == f"{name} differs"]
    assert [item.severity for item in found] == [severity] * bool(severity)


def test_two_servers_of_two_engines_that_give_nothing_differ_in_what_they_do_then() -> None:
    servers_of_both = "vllm serve m", "python -m sglang.launch_server --model-path m"
    assert differing(*servers_of_both) == {
        "the engines differ": "info",
        "the engines have another data type where none is given": "warning",
        "the engines have another engine seed where none is given": "warning",
        "the engines count the context another way": "warning",
    }
    given = (
        f"{servers_of_both[0]} --seed 1 --dtype float16 --max-model-len 1024",
        f"{servers_of_both[1]} --random-seed 1 --dtype float16 --context-length 1026",
    )
    assert differing(*given) == {"the engines differ": "info"}


def test_a_servers_default_that_is_written_down_is_no_difference() -> None:
    assert differing("vllm serve m", "vllm serve m --seed 0 --tensor-parallel-size 1") == {}
    assert differing("vllm serve m", "vllm serve m --seed 1") == {"seed": "error"}


def test_where_the_output_goes_is_no_word_of_the_command() -> None:
    assert words("a --b 1 >> log 2>&1") == ["a", "--b", "1"]
    assert words(shlex.join(["a", "x>y"])) == ["a", "x>y"]


DPO = "-m openrlhf.cli.train_dpo --train_batch_size 32"


@pytest.mark.parametrize(
    ("one", "two", "setting"),
    [
        ("deepspeed --num_gpus 4 --module", "deepspeed --num_gpus 8 --module", "processes_per_node"),
        ("torchrun --nproc-per-node 4 -m", "torchrun --nproc_per_node=2 -m", "processes_per_node"),
        ("torchrun --nproc-per-node 4 -m", "torchrun -m", "processes_per_node"),
        ("python -m", "torchrun --nproc-per-node 4 -m", "processes_per_node"),
        ("python -m torch.distributed.run --nnodes 2 -m", "torchrun -m", "nodes"),
        ("deepspeed --num_gpus 4 --num_nodes 2 --module", "deepspeed --num_gpus 4 --module", "nodes"),
        ("accelerate launch --num_processes 8 -m", "accelerate launch --num_processes 4 -m", "processes_per_node"),
        ("env PET_NPROC_PER_NODE=4 torchrun -m", "torchrun -m", "processes_per_node"),
    ],
)
def test_another_number_of_ranks_is_a_difference_of_every_framework(one: str, two: str, setting: str) -> None:
    for start in ("openrlhf.cli.train_dpo", "openrlhf.cli.train_ppo_ray", "verl.trainer.main_ppo", "trl.scripts.dpo"):
        found = report(f"{one} {start}", f"{two} {start}")
        [item] = [item for item in found.hazards if item.what == f"launch.{setting} differs"]
        assert (item.severity, found.verdict, found.exit_code) == ("error", "DIFFERENT", 1), start
        assert "in its configuration, a file or a default" not in item.measured


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("torchrun --nproc-per-node 4 -m", "python -m torch.distributed.run --nproc_per_node=4 --nnodes 1 -m"),
        ("torchrun --nproc-per-node 4 -m", "deepspeed --num_gpus 4 --module"),
        ("torchrun --nproc-per-node 4 --nnodes 2 -m", "accelerate launch --num_processes 8 --num_machines 2 -m"),
        ("torchrun --nproc-per-node 4 --master-port 1 -m", "torchrun --master_port=29501 --nproc-per-node 4 -m"),
        ("python -m", "torchrun -m"),
        ("torchrun --nproc-per-node gpu -m", "torchrun --nproc-per-node gpu -m"),
        ("mpirun -np 4 python -m", "mpirun -np 4 python3 -u -m"),
        ("nice -n 5 python -m", "python -m"),
    ],
)
def test_equal_numbers_of_ranks_are_no_difference_whatever_starts_them(one: str, two: str) -> None:
    for start in ("openrlhf.cli.train_dpo", "trl.scripts.dpo"):
        found = report(f"{one} {start} --seed 1", f"{two} {start} --seed 1")
        assert [item.what for item in found.hazards if item.severity != "info"] == [], start


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("mpirun -np 4 python -m", "mpirun -np 8 python -m"),
        ("srun -N 2 python -m", "srun -N 4 python -m"),
        ("srun -n 2 python -m", "srun --ntasks=4 python -m"),
        ("deepspeed --include localhost:0,1 --module", "deepspeed --include localhost:0 --module"),
        ("torchrun --nproc-per-node gpu -m", "torchrun --nproc-per-node 4 -m"),
        ("torchrun --nproc-per-node $N -m", "torchrun --nproc-per-node 4 -m"),
        ("deepspeed --module", "deepspeed --num_gpus 4 --module"),
    ],
)
def test_ranks_that_the_command_does_not_tell_are_never_the_same(one: str, two: str) -> None:
    found = report(f"{one} openrlhf.cli.train_dpo", f"{two} openrlhf.cli.train_dpo")
    assert found.verdict == "MAY DIFFER" or found.unchecked


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        ("torchrun --nnodes=1:2 -m", "torchrun --nnodes=1:4 -m", "MAY DIFFER"),
        ("torchrun --nnodes=1:2 -m", "torchrun --nnodes 1:2 -m", "SAME"),
        ("torchrun --nproc-per-node gpu -m", "torchrun --nproc-per-node auto -m", "MAY DIFFER"),
        ("deepspeed --include localhost:0,1 --module", "deepspeed --include localhost:0 --module", "MAY DIFFER"),
        ("mpirun -np 4 python -m", "mpirun -n 4 python -m", "SAME"),
        ("srun -n 4 -N 2 python -m", "srun --ntasks=4 --nodes 2 python -m", "SAME"),
        ("srun -n 4 -N 2 python -m", "srun --ntasks=4 --nodes 1 python -m", "MAY DIFFER"),
    ],
)
def test_what_a_launcher_is_told_is_compared_where_no_number_is_read(one: str, two: str, verdict: str) -> None:
    assert report(f"{one} openrlhf.cli.train_dpo", f"{two} openrlhf.cli.train_dpo").verdict == verdict


def test_a_launchers_configuration_file_counts_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text("num_processes: 8\nnum_machines: 2\n")
    start = "-m openrlhf.cli.train_dpo"
    found = report(f"accelerate launch --config_file {file} {start}", f"torchrun --nproc-per-node 2 --nnodes 2 {start}")
    [item] = [item for item in found.hazards if item.severity == "error"]
    assert item.what == "launch.processes_per_node differs" and str(file) in item.measured
    assert "torchrun --nproc-per-node 2, in the command" in item.measured


OWN = """
import argparse
from trl import GRPOConfig
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--other", type=int, default=8)
args = parser.parse_args()
config = GRPOConfig(per_device_train_batch_size=args.batch)
"""
BATCH = "per_device_train_batch_size"


def test_a_value_that_a_script_takes_from_its_own_option_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    found = report(f"python {file} --batch 64", f"python {file} --batch 32")
    [item] = [item for item in found.hazards if item.what == f"{BATCH} differs"]
    assert (item.severity, found.verdict) == ("error", "DIFFERENT")
    assert f"--batch 64 in the command, by {file}:8" in item.measured
    assert differences(f"python {file}", f"python {file} --batch 32") == [f"{BATCH} differs"]
    assert differences(f"python {file}", f"python {file} --batch 8") == []
    assert report(f"python {file} --other 1", f"python {file} --other 2").verdict == "MAY DIFFER"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("=args.batch)", "=args.batch * 2)"),
        ("config =", "args.batch = 4\nconfig ="),
        ("config =", "args = change(args)\nconfig ="),
        ("config =", "change(args)\nconfig ="),
        ("type=int, default=8)\nargs", "dest='batch')\nargs"),
        ("type=int, default=8)\nparser", "type=odd)\nparser"),
        ("parser.parse_args()", "parser.parse_args(['--batch', '8'])"),
        ("from trl import", "parser = argparse.ArgumentParser()\nfrom trl import"),
    ],
)
def test_a_value_whose_way_is_not_plain_may_differ(right: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert right in OWN
    file.write_text(OWN.replace(right, wrong))
    found = report(f"python {file} --batch 64", f"python {file} --batch 32")
    assert found.verdict == "MAY DIFFER" and f"{BATCH} differs" not in {item.what for item in found.hazards}


def test_words_that_no_setting_was_read_from_are_never_the_same(tmp_path: Path) -> None:
    """A short option, of which the long one is followed."""
    file = tmp_path / "train.py"
    file.write_text(OWN.replace('"--batch"', '"-b", "--batch"'))
    found = report(f"python {file} -b 64", f"python {file} -b 32")
    assert found.verdict == "MAY DIFFER"
    assert report(f"python {file} -b 64", f"python {file} -b 64").verdict == "SAME"
    assert report(f"python {file} --other 1e-6", f"python {file} --other 0.000001").verdict == "SAME"


def differing(command_a: str, command_b: str) -> dict[str, str]:
    """What differs between two commands -> how grave it is."""
    report_items = compare(command_a.split(), command_b.split())
    return {item.what.removesuffix(" differs"): item.severity for item in report_items if isinstance(item, Hazard)}


def test_two_servers_of_one_engine_are_compared_by_its_arguments() -> None:
    command = "vllm serve m --max-model-len 8 --port 1 --enforce-eager"
    assert differing(command, command) == {}
    assert differing(command, "env A=1 vllm serve m --max-model-len=16 --port 2 --no-enforce-eager --foo 3") == {
        "max_model_len": "error",
        "enforce_eager": "warning",
        "port": "info",
        "foo": "unknown",
        "the variable A": "unknown",
    }


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("-tp 2", "--tensor-parallel-size 2"), ("-tp=2", "--tensor_parallel_size=2"), ("-q awq", "--quantization awq"),
        ("-qawq", "--quantization=awq"), ("-O3", "--optimization-level 3"), ("-O 3", "--optimization-level=3"),
        ("-O=3", "--optimization-level=3"), ("-dp 2 -dpn 1", "--data-parallel-size 2 --data-parallel-rank 1"),
        ("-cc.mode=3", "--compilation-config.mode 3"), ("-ep -tp 2", "--enable-expert-parallel -tp=2"),
        ("--seed -1 -tp 2", "-tp 2 --seed=-1"), ("--enforce-eager", "--enforce-eager=true"),
    ],
)  # fmt: skip
def test_a_short_option_of_a_server_is_the_long_one(short: str, long: str) -> None:
    assert differing(f"vllm serve {short} m", f"vllm serve m {long}") == {}
    other = long.rpartition("2")[0] + "4" if "2" in long else f"{long}4"
    assert differing(f"vllm serve {short} m", f"vllm serve m {other}") or "eager" in long


def test_spellings_of_sglangs_options_are_one() -> None:
    serve = "python -m sglang.launch_server"
    assert differing(f"{serve} --model m --tp 2", f"{serve} --model-path m --tensor-parallel-size 2") == {}
    assert differing("vllm serve m -tp 2", f"{serve} --model n --tp 4").keys() >= {"model", "tensor_parallel"}


def test_the_versions_of_the_engines_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    programs = []
    for version in ("0.31.0", "0.32.0"):
        venv = tmp_path / version
        info = venv / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (venv / "bin").mkdir()
        (program := venv / "bin" / "vllm").write_text("#!/bin/sh\n")
        program.chmod(0o755)
        programs.append(f"{program} serve m")
    assert differing(*programs) == {"the versions of the engine differ": "unknown"}
    alike = compare(programs[0].split(), programs[0].split())
    assert any("0.31.0" in str(item) for item in alike) and not any(isinstance(item, Hazard) for item in alike)
    unknown = [item for item in compare(programs[0].split(), ["vllm", "serve", "m"]) if isinstance(item, Unchecked)]
    assert any("not known" in item.reason and "0.31.0" in item.reason for item in unknown)


def test_servers_of_two_engines_are_compared_by_what_their_arguments_mean() -> None:
    vllm = "vllm serve m --max-model-len 1024"
    sglang = "python -m sglang.launch_server --context-length"
    assert "max_model_len" not in differing(vllm, f"{sglang} 1026")
    assert differing(vllm, f"{sglang} 1024")["max_model_len"] == "error"
    assert "max_model_len" not in differing(vllm, f"{sglang} 1032")  # what `harness mapping` writes for it
    problems = compare(vllm.split(), f"{sglang} 1024 --disable-cuda-graph".split())
    fixes = {problem.what: problem.fix for problem in problems if isinstance(problem, Hazard)}
    assert fixes["max_model_len differs"] == "--max-model-len 1022 in A, or --context-length 1032 in B"
    assert fixes["enforce_eager differs"] == "--enforce-eager in A, or no --disable-cuda-graph in B"
    unknown = [item for item in compare(vllm.split(), f"{sglang} 1026 --foo 3".split()) if isinstance(item, Unchecked)]
    assert any("foo" in item.reason for item in unknown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_a", "model_b", "severity"),
    [
        ("org/A", "org/A", None),
        ("org/A", "org/B", "error"),
        ("org/A", "other/A", "error"),
        ("/models/A/", "/models/A", None),
        ("org/A", "/models/A", "warning"),
        ("./A", "/models/A", "warning"),
        ("org/A", "/models/B", "error"),
    ],
)
def test_another_model_is_the_first_difference_of_two_servers(model_a: str, model_b: str, severity: str | None) -> None:
    starts = ("vllm serve {}", "python -m sglang.launch_server --model-path {}", "sglang serve --model {}",
              "python -m vllm.entrypoints.openai.api_server --model={}")  # fmt: skip
    for first in starts:
        for second in starts:
            commands = first.format(model_a) + " --dtype half", second.format(model_b) + " --dtype bfloat16"
            severities = differing(*commands)
            assert severities.get("model") == severity
            assert "dtype" in severities and (severity is None or next(iter(severities)) == "model")


@pytest.mark.parametrize(
    ("words", "unknown"),
    [
        ("--port 1 --max-model-len 8 --max-num-seq 3 --no-enforce-eager --compilation-config.level 3", None),
        ("--no-such-flag 3", "no-such-flag"),
        ("--max-modell-len=8", "max-modell-len"),
    ],
)
def test_an_option_that_the_engines_server_does_not_have_is_named(
    words: str, unknown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("port", "max_model_len", "max_num_seqs", "no_enforce_eager", "compilation_config")
    monkeypatch.setattr(servers, "_version", lambda engine, program: "0.32.0")
    # Without a list, or with that of another version, nothing is said.
    for listed, named in ((("0.32.0", names), unknown), (("0.32.0", ()), None), (("0.31.0", names), None)):
        outcomes = compare(
            ["vllm", "serve", "m"], ["vllm", "serve", "m", *words.split()], served=lambda engine, listed=listed: listed
        )
        hazards = [item for item in outcomes if isinstance(item, Hazard) and item.where == ("command B",)]
        assert [(item.severity, item.measured) for item in hazards] == ([("error", f"B: --{named}")] if named else [])


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("--no-such-flag 3 m", []),
        ("--no-such-flag m", []),
        ("m --no-such-flag", []),
        ("m --no-such-flag 3", []),
        ("--no-such-flag=3 m", []),
        ("--no-such-flag 3 --seed 1 m", ["seed differs"]),
        ("--no-such-flag 3 other", ["model differs"]),
    ],
)
def test_an_option_that_the_server_does_not_have_comes_first_and_takes_no_model(
    words: str, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_version", lambda engine, program: "0.32.0")
    listed = "0.32.0", ("port", "seed")
    outcomes = compare(["vllm", "serve", "m"], ["vllm", "serve", *words.split()], served=lambda engine: listed)
    hazards = [item for item in outcomes if isinstance(item, Hazard)]
    assert hazards[0].measured == "B: --no-such-flag" and [item.what for item in hazards[1:]] == others


def test_a_model_that_only_the_shell_knows_is_not_compared() -> None:
    unknown = compare(["vllm", "serve", "$MODEL"], ["vllm", "serve", "org/B"])
    assert [item for item in unknown if isinstance(item, Unchecked)]


@pytest.mark.parametrize("command_b", [VERL, "vllm serve m"])
def test_a_command_that_nobody_reads_is_refused_with_what_the_doctor_can_do(command_b: str) -> None:
    with pytest.raises(BadInput) as refused:
        compare(["python", "train.py"], command_b.split())
    assert str(refused.value.fix).startswith("harness doctor   #")


@pytest.mark.parametrize(
    ("one", "strict", "code"), [("vllm serve", True, 3), ("vllm serve", False, 0), ("vllm serve x", True, 0)]
)
def test_what_was_not_compared_is_no_pass_under_strict(one: str, strict: bool, code: int) -> None:
    its = compared(DoctorOptions(command=words("vllm serve x"), against=one, strict=strict))
    assert (its.verdict, its.exit_code) == ("SAME", code)


def test_scripts_of_no_framework_are_compared_by_their_words() -> None:
    found = report("python train.py --batch 32 --lr 1e-5 steps=8", "FOO=1 python train.py --batch=64 --lr=0.00001 -v")
    assert named(found) == ["batch", "steps", "v", "the variable FOO"]
    assert {item.severity for item in found.hazards} == {"unknown"} and found.exit_code == 0
    assert found.verdict == "MAY DIFFER" and found.unchecked  # what the script reads beside its words is not compared


def test_another_script_is_a_difference_and_its_secrets_are_not_shown() -> None:
    found = report("python train.py --token hf_" + "a" * 34, "python other.py --token hf_" + "b" * 34)
    assert named(found) == ["the program", "token"]
    assert "aaaa" not in found.to_json() and "bbbb" not in found.to_json()


def test_a_script_is_not_compared_with_a_job_of_a_framework() -> None:
    with pytest.raises(BadInput, match="command B is no job of"):
        report(VERL, "python train.py --batch 64")
