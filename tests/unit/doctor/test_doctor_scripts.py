"""Shell scripts as they stand beside real jobs: several starts, branches, subshells, here-documents, what is no start.

Nothing is run: what is read is compared with what the shell would hand to the framework.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from harness.doctor.frameworks.plan import Plan, plans
from harness.doctor.frameworks.shell import parsed, relation
from harness.frameworks.detection import Job
from probes.adapters import ADAPTERS

VERL, PPO = "python3 -m verl.trainer.main_ppo", "python3 -m openrlhf.cli.train_ppo_ray"


def starts(framework: str, tmp_path: Path, text: str, *more: str, **variables: str) -> list[Plan]:
    file = tmp_path / "run.sh"
    file.write_text(text)
    return plans(Job(ADAPTERS[framework], "", None, ()), ["bash", str(file), *more], variables)


def given(found: list[Plan]) -> list[list[str]]:
    """The settings of each start."""
    return [[f"{one.name}={one.value}" if one.value else one.name for one in plan.options] for plan in found]


@pytest.mark.parametrize(
    ("framework", "text", "expected"),
    [
        ("verl", f"{VERL} a.b=1 trainer.n=8\n{VERL} a.b=2\n", [["a.b=1", "trainer.n=8"], ["a.b=2"]]),
        ("openrlhf", "deepspeed --module openrlhf.cli.train_sft --a.b 1\n"
         f"deepspeed --module openrlhf.cli.train_rm --c 2\n{PPO} --d 3\n", [["a.b=1"], ["c=2"], ["d=3"]]),
        ("verl", f"if false; then\n{VERL} x.y=1\nfi\nif ! false; then {VERL} a.b=1; fi\n"
         f"if false; then {VERL} x.y=1; else {VERL} a.b=2; fi\n", [["a.b=1"], ["a.b=2"]]),
        ("verl", f"logger -t x {VERL} x.y=1\nnotify-send {VERL} x.y=1\n{VERL} a.b=1\n", [["a.b=1"]]),
        ("verl", f"A=(x.y=1)\nunset A\nA+=(a.b=1)\n{VERL} \"${{A[@]}}\"\n", [["a.b=1"]]),
        ("verl", f"source x\nA=(x.y=1)\nA+=(a.b=1)\n{VERL} \"${{A[@]}}\"\n", [["x.y=1", "a.b=1"]]),
        ("verl", f"A=(a.b=1)\nA+=(c.d=1)\nsource x\n{VERL} \"${{A[@]}}\"\n", [["a.b=1", "c.d=1"]]),
        ("verl", f"(source x)\nA+=(a.b=1)\n{VERL} \"${{A[@]}}\"\n", [["a.b=1"]]),
        ("openrlhf", f"if ! {PPO} --a.b; then echo failed; exit 1; fi\n", [["a.b"]]),
        ("openrlhf", f"(cd x && {PPO} --vllm.n 1 --a.b)\n", [["vllm.n=1", "a.b"]]),
        ("openrlhf", f"{{ time {PPO} --a.b; }} 2>log\n", [["a.b"]]),
        ("openrlhf", f"out=$({PPO} --a.b)\nexport X=\"`{PPO} --c`\"\n", [["a.b"], ["c"]]),
        ("openrlhf", f"for lr in 1 2; do\n  {PPO} --a.b --c out/$lr; done\n", [["a.b", "c=out/$lr"]]),
        ("verl", f"cat <<USAGE\nusage: $0\n  {VERL} x.y=1\nUSAGE\n{VERL} a.b=1\n", [["a.b=1"]]),
        ("verl", f"cat > run2.sh <<-'END'\n\t{VERL} x.y=1 \"\n\tEND\n{VERL} a.b=1\n", [["a.b=1"]]),
        ("verl", f"echo Runs: {VERL} x.y=1\nprintf '%s' {VERL} x.y=1\npkill -f verl.trainer.main_ppo\n{VERL} a.b=1\n",
         [["a.b=1"]]),
        ("verl", f"{VERL} \\\n  a.b='[\"x\",\n  \"y\"]' \\\n  c.d=2\n", [["a.b=[\"x\",\n  \"y\"]", "c.d=2"]]),
        ("verl", f"{VERL} a.b=1 \\\n  # don't set c.d=2 \\\n\n", [["a.b=1"]]),
        ("verl", f"#ARGS=(x.y=1)\nARGS=(a.b=1)\n{VERL} ${{ARGS[@]}} c.d=2\n", [["a.b=1", "c.d=2"]]),
        ("openrlhf", f"ARGS=(\n  --a m\n  # don't use --b (yet)\n  --c 1\n)\n{PPO} \"${{ARGS[@]}}\"\n",
         [["a=m", "c=1"]]),
        ("openrlhf", f"ARGS=(--a 4)\nARGS=(--a 1 --b 12)\nARGS+=(--c)\n{PPO} \"${{ARGS[@]}}\"\n",
         [["a=1", "b=12", "c"]]),
        ("verl", f"A=(a.b=1)\nB=(\"${{A[@]}}\" c.d=2)\nB=(\"${{B[@]}}\" e.f=3)\n{VERL} \"${{B[@]}}\"\n",
         [["a.b=1", "c.d=2", "e.f=3"]]),
        ("verl", f"case $1 in\na) A=(x.y=1); {VERL} \"${{A[@]}}\" ;;\nb|c) A=(x.y=2)\n{VERL} \"${{A[@]}}\" ;;\nesac\n",
         [["x.y=1"], ["x.y=2"]]),
        ("verl", f"if [[ -f a && -f b ]]; then A=(x.y=1); else A=(x.y=2); {VERL} \"${{A[@]}}\"; fi\n", [["x.y=2"]]),
        ("verl", f"(A=(x.y=1))\nA=(x.y=2)\n(A=(x.y=3))\n{VERL} \"${{A[@]}}\"\n", [["x.y=2"]]),
        ("verl", f"X='$('\n{VERL} a.b='$(x'\n", [["a.b=$(x"]]),
        ("trl", "source c.sh\nconda activate trl\naccelerate launch train.py --a 7\n", [["a=7"]]),
        ("trl", "pip install -U trl peft\ncd src/trl\npython -m pip install trl x.py\nuv pip install trl grpo\n"
         "trl grpo --a 1\n", [["a=1"]]),
        ("trl", "conda run -n trl python train.py --a 1\n", [["a=1"]]),
        ("trl", "export SCRIPT=a.py\nls b.py\n[ -f c.py ] && python d.py --a 1\n", [["a=1"]]),
    ],
)  # fmt: skip
def test_each_start_has_its_own_settings(tmp_path: Path, framework: str, text: str, expected: list[list[str]]) -> None:
    found = starts(framework, tmp_path, text)
    assert given(found) == expected
    assert not any(one.unread or one.unsure for one in found if framework != "trl")
    assert subprocess.run(["bash", "-n", tmp_path / "run.sh"], check=False).returncode == 0  # bash reads it too


CASE = f"""case "$SIZE" in
  7b)  EXTRA=(trainer.n_gpus_per_node=8 data.train_batch_size=256) ;;
  (1b) EXTRA=(trainer.n_gpus_per_node=4) ;;
esac
if [ "$SIZE" = 05b ]; then
  EXTRA+=(rollout.full_determinism=True rollout.n=1)
else
  EXTRA+=(rollout.n=8)
fi
{VERL} "${{EXTRA[@]}}" a.b=1
"""


@pytest.mark.parametrize(
    ("text", "sure", "open_"),
    [
        (CASE, ["a.b=1"],
         {"trainer.n_gpus_per_node", "data.train_batch_size", "rollout.full_determinism", "rollout.n"}),
        (f"A=(x.y=1)\nif $T; then\n  A=(x.y=2 x.z=3)\nfi\n{VERL} \"${{A[@]}}\"\n", [], {"x.y", "x.z"}),
        (f"A=(x.y=1)\nif $T; then\n  A+=(x.z=3)\nfi\n{VERL} \"${{A[@]}}\"\n", ["x.y=1"], {"x.z"}),
        (f"A=(x.y=1)\n[ -n \"$T\" ] && A+=(x.z=3) || A+=(x.u=1)\n{VERL} \"${{A[@]}}\"\n", ["x.y=1"], {"x.z", "x.u"}),
        (f"A=(x.y=1)\n[ -n \"$T\" ] && {{ A+=(x.z=3); }}\n{VERL} \"${{A[@]}}\"\n", ["x.y=1"], {"x.z"}),
        (f"for i in 1 2; do A+=(x.z=3); done\n{VERL} \"${{A[@]}}\"\n", [], {"x.z"}),
        (f"fill() {{ A=(x.z=3); }}\nfill\n{VERL} \"${{A[@]}}\"\n", [], {"x.z"}),
        (f"if $T; then A=(x.y=2); fi\nA=(x.y=1)\n{VERL} \"${{A[@]}}\"\n", ["x.y=1"], set()),
        (f"cd x && A=(x.y=1) && {VERL} \"${{A[@]}}\"\n", ["x.y=1"], set()),
    ],
)  # fmt: skip
def test_what_branches_set_is_not_told(tmp_path: Path, text: str, sure: list[str], open_: set[str]) -> None:
    (found,) = starts("verl", tmp_path, text)
    assert given([found]) == [sure] and set(found.unsure) == open_
    for name in open_:
        assert found.untold(name) == f"{name} is set in a branch of the script, which may not be taken"
    assert not found.untold("some.thing")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'run() {{\n  {VERL} "$@"\n}}\nrun a.b=1\n', "what the function run is called with"),
        (f'function run {{\n  {VERL} "$@"\n}}\nrun a.b=1\n', "what the function run is called with"),
        (f"bash <<END\n{VERL} a.b=1\nEND\n{VERL} a.b=1\n", "a here-document of"),
        (f'A=(a.b=1)\nmapfile -t A < x\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'source o.sh\nA+=(a.b=1)\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'. o.sh; A+=(a.b=1); {VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'eval x\nA+=(a.b=1)\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'[ -f o.sh ] && source o.sh\nA+=(a.b=1)\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'mapfile -t A < x\nA+=(a.b=1)\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'A=(a.b=1 c.d=1)\nA[1]=c.d=2\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'A=(a.b=1)\nA[${{#A[@]}}]=c.d=2\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f'A=(a.b=1)\nA=c.d=2\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
        (f"A=(a.b=1)\ndeclare 'A[0]=c.d=2'\n{VERL} \"${{A[@]}}\"\n", "${A[@]} may hold settings"),
        (f"A=(a.b=1 c.d=2)\nunset 'A[0]'\n{VERL} \"${{A[@]}}\"\n", "${A[@]} may hold settings"),
        (f"A=(a.b=1 c.d=2)\nif $T; then unset 'A[0]'; fi\n{VERL} \"${{A[@]}}\"\n", "${A[@]} may hold settings"),
        (f"{VERL} 'a\nb\n{VERL} a.b=1\n", "has a quote that does not end"),
        (f'A=(a.b=1)\nA=(\n<(x)\n)\n{VERL} "${{A[@]}}"\n', "${A[@]} may hold settings"),
    ],
)
def test_what_is_not_read_is_said(tmp_path: Path, text: str, why: str) -> None:
    assert any(why in one for plan in starts("verl", tmp_path, text) for one in plan.unread)


def test_a_functions_words_are_the_scripts_where_it_hands_them_on(tmp_path: Path) -> None:
    (found,) = starts("verl", tmp_path, f'main() {{\n  {VERL} "$@"\n}}\nmain "$@"\n', "a.b=1")
    assert given([found]) == [["a.b=1"]] and not found.unread


def test_of_several_starts_the_one_that_takes_them_has_the_commands_words(tmp_path: Path) -> None:
    found = starts("verl", tmp_path, f'{VERL} a.b=1\n{VERL} a.b=2 "$@"\n', "c.d=3")
    assert given(found) == [["a.b=1"], ["a.b=2", "c.d=3"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"unset ROCR\n{VERL}\n", {"HOME": "/h"}),
        (f"env -u ROCR X=1 {VERL}\n", {"HOME": "/h", "X": "1"}),
        (f"env -uROCR --unset=HOME {VERL}\n", {}),
        (f"env -i X=1 {VERL}\n", {"X": "1"}),
        (f"X=1 {VERL}\n", {"HOME": "/h", "ROCR": "0", "X": "1"}),
        (f"X=1 true\n{VERL}\n", {"HOME": "/h", "ROCR": "0"}),
        (f"X=1\n{VERL}\n", {"HOME": "/h", "ROCR": "0"}),  # nobody exports it
        (f"X=1\nexport X\n{VERL}\n", {"HOME": "/h", "ROCR": "0", "X": "1"}),
        (f"ROCR=1\n{VERL}\n", {"HOME": "/h", "ROCR": "1"}),  # it was exported before
        (f"{VERL}\nexport X=1\n", {"HOME": "/h", "ROCR": "0"}),
        (f"(export X=1)\n{VERL}\n", {"HOME": "/h", "ROCR": "0"}),
        (f"if $T; then export X=1; unset ROCR; fi\n{VERL}\n", {"HOME": "/h", "ROCR": "$ROCR", "X": "$X"}),
        (f"export X=1\nbash -c 'unset ROCR; {VERL}'\n", {"HOME": "/h", "X": "1"}),
    ],
)
def test_variables_as_the_start_has_them(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    (found,) = starts("verl", tmp_path, text, HOME="/h", ROCR="0")
    assert found.variables == expected


@drawn(st.lists(st.sampled_from([*"(){}'\"`;&|<>$\n\\ #=", "$(", "${", "<<E", "if ", "fi", "case ", " in ",
                                 ";;", "esac", "A=(", "A+=(", "${A[@]}", "for ", "do ", "done", "f()", VERL,
                                 " a.b=1", "E\n", "[[ "]),
                max_size=16))  # fmt: skip
def test_whatever_is_written_is_read_without_an_error(parts: list[str]) -> None:
    found = plans(Job(ADAPTERS["verl"], "", None, ()), ["bash", "-c", "".join(parts)], {})
    assert len(found) >= 1


def test_places_of_a_shells_commands() -> None:
    first, second, third, last = parsed("if a; then b; else c; fi; d")
    assert (first.path, last.path) == ((), ())
    assert relation(second.path, third.path) == "never" and relation(second.path, last.path) == "maybe"
    assert relation(last.path, second.path) == "sure"
