"""Commands behind containers, shells and environments: what runs within, and what is said of the rest."""

from __future__ import annotations

import pytest

from harness.errors import BadInput
from harness.frameworks.against import compare, words
from harness.frameworks.shell_text import NotPlain, commands
from harness.frameworks.wrapping import Wrapped, unwrapped
from reports.doctor_model import Hazard, Unchecked

SERVE = "vllm serve m --max-num-seqs 8"
PLACE = "the place where the programs run"
SHELL = {"HF_HOME": "/hf", "PATH": "/bin"}


def inner(command: str) -> Wrapped:
    return unwrapped("A", words(command), SHELL)


@pytest.mark.parametrize(
    ("command", "within", "places"),
    [
        (SERVE, SERVE, ()),
        (f"srun -N 2 {SERVE}", f"srun -N 2 {SERVE}", ()),
        (f"docker run --rm -it --gpus all -v /a:/b img {SERVE}", SERVE, ("the image img",)),
        (f"docker run -itv /a:/b -e A=1 --env=B=2 -eC=3 img {SERVE}", f"A=1 B=2 C=3 {SERVE}", ("the image img",)),
        (f"docker run -e A=1,B=2 img {SERVE}", f"A=1,B=2 {SERVE}", ("the image img",)),
        (f"docker run -e HF_HOME -e NO_SUCH img {SERVE}", f"HF_HOME=/hf {SERVE}", ("the image img",)),
        (f"A=1 docker run img {SERVE}", SERVE, ("the image img",)),
        ("docker run reg:5000/vllm/vllm-openai:v0.9 m --seed 1", "vllm serve m --seed 1",
         ("the image reg:5000/vllm/vllm-openai:v0.9",)),
        ("docker run --entrypoint vllm img serve m", "vllm serve m", ("the image img",)),
        (f"docker exec -w /x box {SERVE}", SERVE, ("the container box", "the folder /x")),
        (f"apptainer exec --nv --env A=1,B=2 x.sif {SERVE}", f"A=1 B=2 {SERVE}", ("the image x.sif",)),
        (f"bash -c '{SERVE}'", SERVE, ()),
        (f"bash -euo pipefail -lc 'set -x; A=1 {SERVE} 2>&1 | tee log'", f"A=1 {SERVE}", ()),
        (f"sh -c 'cd /w && export A=1; unset B; exec {SERVE}'", f"A=1 env -u B exec {SERVE}", ("the folder /w",)),
        (f"cd /w && {SERVE}", SERVE, ("the folder /w",)),
        (f"srun -n 2 docker run img sh -c 'A=1 {SERVE}'", f"srun -n 2 A=1 {SERVE}", ("the image img",)),
        (f"conda run --no-capture-output -n x {SERVE}", SERVE, ("conda's environment -n x",)),
        (f"micromamba run -p /x -e A=1 {SERVE}", f"A=1 {SERVE}", ("conda's environment -p /x",)),
        (f"uv run --with vllm==0.9 {SERVE}", SERVE, ("uv's environment --with vllm==0.9",)),
        ("uv run -m verl.trainer.main_ppo a=1", "python -m verl.trainer.main_ppo a=1", ("uv's environment",)),
        ("uv run train.py --x", "python train.py --x", ("uv's environment",)),
        ("uvx vllm@0.9 serve m", "vllm serve m", ("uv's environment",)),
        (f"ray job submit --address a -- bash -c '{SERVE}'", f"ray job submit --address a -- {SERVE}", ()),
        ("python train.py --shell bash -c x", "python train.py --shell bash -c x", ()),
        ("bash train.sh -c x", "bash train.sh -c x", ()),
        (f"srun --container-image=img {SERVE}", f"srun --container-image=img {SERVE}", ("the image img",)),
    ],
)  # fmt: skip
def test_what_runs_within(command: str, within: str, places: tuple[str, ...]) -> None:
    wrapped = inner(command)
    assert (" ".join(wrapped.command), wrapped.places) == (within, places)


def test_variables_of_the_shell_do_not_reach_a_container() -> None:
    assert inner(f"docker run img {SERVE}").environ == {}
    assert inner(f"apptainer exec --cleanenv img {SERVE}").environ == {}
    assert inner(f"apptainer exec img {SERVE}").environ == SHELL


@pytest.mark.parametrize(
    "command",
    [
        "docker run img",
        "docker run img --model m",
        "docker run",
        "docker compose up",
        "bash -c 'for i in 1 2; do vllm serve m; done'",
        "bash -c 'cd /w'",
        "conda run -n",
        "ssh host vllm serve m",
    ],
)
def test_a_wrapper_that_cannot_be_read_is_refused(command: str) -> None:
    with pytest.raises(BadInput) as refused:
        unwrapped("A", words(command), SHELL)
    assert refused.value.fix


@pytest.mark.parametrize("script", ["docker run img python train.py", "bash -c 'cd /w && python train.py'"])
def test_a_script_that_is_elsewhere_is_not_read_here(script: str) -> None:
    with pytest.raises(BadInput, match=r"train\.py"):
        compare(words(script), words(script))


def judged(one: str, two: str) -> tuple[list[str], int]:
    """The differences between two commands, and how many things were not compared."""
    outcomes = compare(words(one), words(two))
    hazards = [item.what.removesuffix(" differs") for item in outcomes if isinstance(item, Hazard)]
    return hazards, sum(isinstance(item, Unchecked) for item in outcomes)


def test_two_containers_are_compared_by_what_runs_in_them() -> None:
    image = "docker run --rm -e A=1 vllm/vllm-openai:v0.9.1"
    assert judged(f"{image} --model m", f"{image} --model m") == ([], 0)
    assert judged(f"{image} --model m", f"{image} --model m --seed 1") == (["seed"], 0)
    assert judged(f"{image} --model m", f"{image.replace('A=1', 'A=2')} --model m") == (["the variable A"], 0)
    assert judged(f"{image} --model m", f"{image.replace('--rm', '--shm-size 1g')} --model m") == ([], 1)
    assert judged(f"{image} --model m", f"{image.replace('9.1', '9.2')} --model m") == (
        ["the versions of the engine differ", PLACE], 0,
    )  # fmt: skip
    assert judged(f"bash -c '{SERVE}'", SERVE)[0] == []


def test_what_is_installed_elsewhere_is_not_compared() -> None:
    job = "python -m verl.trainer.main_ppo data.train_batch_size=64"
    hazards, unchecked = judged(job, f"conda run -n x {job}")
    assert hazards == [PLACE] and unchecked == 0
    assert judged(f"bash -c '{job}'", f"bash -c '. env.sh; {job}'") == ([], 1)
    assert judged(f"bash -c '. env.sh; {job}'", f"bash -c '. env.sh; {job}'") == ([], 0)
    hazards, _ = judged(f"docker run img {job}", f"docker run img bash -c '{job} data.train_batch_size=32'")
    assert hazards[0] == "data.train_batch_size"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a '' \"b c\" 8 > log 2>&1", [["a", "", "b c", "8"]]),
        ("a \\\n --b ${Y:-b c}-$(now) `date -u`", [["a", "--b", "${Y:-b c}-$(now)", "`date -u`"]]),
        ("a --run $(date '+%F' -d $(now)) $((1 + 2))-x", [["a", "--run", "$(date +%F -d $(now))", "$((1 + 2))-x"]]),
        ("x || true && a \"q\\\"r\" 'it'\\''s' # z\nb", [["x"], ["a", 'q"r', "it's"], ["b"]]),
    ],
)
def test_the_text_of_a_shell(text: str, read: list[list[str]]) -> None:
    assert commands(text) == read


@pytest.mark.parametrize("text", ["(a)", "if a; then b; fi", "a 'b", "f() { a; }", "a <(b)"])
def test_the_text_of_a_shell_that_is_more_than_a_list(text: str) -> None:
    with pytest.raises(NotPlain):
        commands(text)
