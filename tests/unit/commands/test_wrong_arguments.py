"""Paths that are none, and a run too few: a sentence, a fix and exit code 2, before an extra is asked for."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import make

from harness import cli
from harness.parity.runs.directory import no_rollouts
from probes.format import write_manifest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
MAKES = "harness record -- COMMAND   # makes a run of your own job"
WITHOUT_EXTRAS = """
import sys
for name in ("numpy", "scipy", "pandas", "pyarrow", "torch", "ray"):
    sys.modules[name] = None
from harness import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_HARNESS_TOKEN", "0123456789abcdef" * 2)
    for name in ("run", "half/baseline", "a b/baseline", "a b/candidate"):
        make("candidate" if "candidate" in name else "baseline").write(tmp_path / name)
    (tmp_path / "empty").mkdir()
    write_manifest(tmp_path / "my watch", {"command": "x", "watch": True})
    (tmp_path / "file").write_text("x")
    (tmp_path / "page.html").write_text("<!DOCTYPE html>")
    (tmp_path / "trl.py").touch()
    (tmp_path / "mine.py").write_text("def f(args): return {'tp': arg['x']}\n")
    return tmp_path


@pytest.mark.by_day(10)
@pytest.mark.parametrize(
    ("words", "told", "fix"),
    [
        (["run", "rollout-tiny", "--address", ""], "--address is empty",
         "harness run rollout-tiny --address HEAD:6379   # or"),
        (["diff", "run"], "run is one run, and a comparison takes two", "harness diff run CANDIDATE"),
        (["diff", "absent"], "absent does not exist", "ls .   # "),
        (["diff", "run", "absent"], "absent does not exist", "ls .   # "),
        (["diff", "run", "rum"], "rum does not exist", "ls ."),
        (["diff", "half/baseline", "rum"], "rum does not exist", "harness diff half/baseline run"),
        (["diff", "a b", "a b"], "a b is not a run directory: it has no run.json; it holds the runs baseline and ",
         "harness diff 'a b/baseline' 'a b/candidate'"),
        (["diff", "a b/baseline", "a b"], "a b is not a run directory: ",
         "harness diff 'a b/baseline' 'a b/candidate'"),
        (["diff", "a b/candidate", "./a b"], "./a b is not a run directory: ",
         "harness diff 'a b/candidate' 'a b/baseline'"),
        (["audit", "run/run.json", "-v"], "run/run.json is a file, and no bundle", "harness audit run -v"),
        (["diff", "empty"], "empty is not a run directory: it has no run.json", MAKES),
        (["diff", "empty", "run"], "empty is not a run directory: it has no run.json", MAKES),
        (["diff", "half"], "half is not a run directory: it has no run.json; it holds the runs baseline",
         "harness diff half/baseline CANDIDATE"),
        (["diff", "a b", "run"], "a b is not a run directory: it has no run.json; it holds the runs baseline and ",
         "harness diff 'a b/baseline' run"),
        (["diff", "file"], "file is a file, and no bundle", MAKES),
        (["diff", "my watch", "run"], "my watch is a record of harness watch, without rollouts",
         "harness triage 'my watch'"),
        (["audit", "my watch"], "my watch is a record of harness watch, without rollouts", "harness triage 'my watch'"),
        (["diff", "my watch"], "my watch is a record of harness watch, without rollouts", "harness triage 'my watch'"),
        (["replay", "my watch"], "my watch is a record of harness watch, without", "harness triage 'my watch'"),
        (["report", "run", "--format", "htm"], "there is no format 'htm'", "harness report run --format html"),
        (["report", "a b", "--format", "html", "--out", "x.html"], "--out belongs to --export; html goes to stdout",
         "harness report 'a b' --format html > x.html"),
        (["parity", "hf", "hf", "--mapping", "mi.py"], "the mapping mi.py does not exist; did you mean mine.py?",
         "harness parity hf hf --mapping mine.py"),
        (["parity", "hf", "hf", "--set", "engine.context=8"], "ppo-tiny: unknown key engine.context; known keys: ",
         "harness parity hf hf --set engine.KEY=VALUE   # with one of these keys"),
        (["parity", "hf", "hf", "--set", "engine_args.vllm.foo=1"], "ppo-tiny: engine_args.vllm.foo: no setting of a ",
         "printf %s 'def vllm_engine(asked, ours): return {**ours, '\"'\"'foo'\"'\"': 1}' > ./mapping.py && "
         "harness parity hf hf --mapping ./mapping.py"),
        (["parity", "hf", "hf", "--set", "engine_args.sglang.disable_radix_cache=true"],
         "ppo-tiny: engine_args.sglang.disable_radix_cache is SGLang's own",
         "harness parity hf hf --set engine.prefix_caching=false"),
        (["parity", "hf", "hf", "--set", "vllm.max_model_len=512"], "ppo-tiny: vllm.max_model_len is vLLM's own",
         "harness parity hf hf --set engine.max_model_len=512"),
        (["parity", "hf", "hf", "--set", "engine.disable_cuda_graph=true"], "ppo-tiny: engine.disable_cuda_graph is",
         "harness parity hf hf --set engine.enforce_eager=true"),
        (["parity", "hf", "hf", "--set", "engin.seed=3"], "ppo-tiny: unknown key engin; did you mean engine?",
         "harness parity hf hf --set engine.seed=3"),
        (["parity", "hf", "hf", "--set", "train.nosuch=1"], "'train.nosuch=1': 'train' is no section",
         "harness parity hf hf"),
        (["parity", "hf", "hf", "--set", "train=false", "--set=train.nosuch=1"],
         "'train.nosuch=1': 'train' is no section", "harness parity hf hf --set train=false"),
        (["parity", "hf", "hf", "--set", "train.nosuch=1", "--set", "train=true"],
         "'train.nosuch=1': 'train' is no section", "harness parity hf hf --set train=true"),
        (["parity", "hf", "hf", "--candidate-set", "train.nosuch=1"], "'train.nosuch=1': 'train' is no section",
         "harness parity hf hf"),
        (["parity", "hf", "hf", "--set", "foo.bar=3"], "ppo-tiny: unknown key foo; known keys: ",
         "harness parity hf hf --set SECTION.KEY=VALUE   # with one of these keys"),
        (["parity", "vllm", "hf", "--framework", "trl", "--", "python", "trl.py"],
         "trl generates with hf with use_vllm off, and", "harness record --digests --out runs/mine -- python trl.py"),
        (["mapping", "mine.py", "--engine", "sglang"], "mine.py:1 f raised NameError", "sed -n 1p mine.py"),
        (["replay", "file"], "file is a file, and no bundle", "harness run ppo-tiny"),
        (["replay", "empty"], "empty is not a run directory: it has no run.json", "harness run ppo-tiny"),
        (["audit", "file"], "file is a file, and no bundle", MAKES),
        (["audit", "file/baseline"], "file/baseline lies below a file, and that is no bundle", "ls ."),
        (["triage", "./rnu"], "rnu: no such file or directory", "harness triage run"),
        (["triage", "nowhere/at/all"], "nowhere/at/all: no such file or directory", "ls ."),
        (["replay", "absent"], "absent does not exist", "ls "),
        (["replay", "a b"], "a b is not a run directory: it has no run.json", "harness replay 'a b/baseline'"),
        (["replay", "run", "--backend", "none"], "there is no backend 'none'", "harness replay run --backend hf   # "),
        (["parity", "none", "hf"], "there is no backend 'none'", "harness parity hf hf   # or"),
        (["audit"], "Missing argument 'run'", "harness run ppo-tiny --out runs/mine && harness audit runs/mine"),
        (["diff"], "Missing argument 'baseline'", "harness parity hf hf --out runs/mine && harness diff runs/mine"),
        (["replay", "--backend", "hf"], "Missing argument 'run'",
         "harness run ppo-tiny --out runs/mine && harness replay runs/mine"),
        (["mapping"], "Missing argument 'FILE'", "printf 'def sglang_engine"),
        (["render", "github"], "Missing argument 'matrix'", "printf 'name = "),
        (["report", "a c"], "a c does not exist", "harness report 'a b'"),
        (["report", "absent"], "absent does not exist", "ls .   # "),
        (["report", "half"], "half holds neither a verdict (verdict.json) nor a run (run.json); it holds the ",
         "harness report half/baseline"),
        (["report", "a b", "--out", "x.html"], "--out belongs to --export, which takes a recorded run",
         "harness report 'a b' --format html > x.html"),
        (["report", "a b/baseline", "--format", "json", "--out", "x y.json"], "--out belongs to --export",
         "harness report 'a b/baseline' --format json > 'x y.json'"),
        (["report", "page.html"], "page.html is a page to open in a browser", "python3 -m webbrowser page.html"),
        (["report", "empty"], "empty holds neither a verdict (verdict.json) nor a run", MAKES),
        (["triage", "a..b:6379"], "nothing answers at a..b:6379: ", "pgrep -af gcs_server"),
        (["watch", "--serve", "a..b:7700", "--", "true"], "evidence cannot be served at a..b:7700: ",
         "harness watch --serve 0 -- true"),
        (["run", "rollout-tiny", "--backend", "hf", "--address", "a..b:6379"],
         "the Ray cluster at a..b:6379 could not be joined: ", "pgrep -af gcs_server"),
        (["env", "check", "vllm@0.99"], "there is no environment named 'vllm@0.99'", "harness env create vllm@0.99"),
        (["env", "remove", "vllm@0.99"], "there is no environment named 'vllm@0.99'", "harness env list"),
        (["parity", "hf", "vllm@a b"], "backend 'vllm@a b': 'a b' names neither", "harness parity hf vllm"),
        (["bisect", "vllm@0.31", "--against", "hf"], "'vllm@0.31' is not a range",
         "harness bisect vllm@0.31..BAD --against hf"),
        (["bisect", "hf", "--good", "x.toml"], "a bisection over settings needs --bad",
         "harness bisect hf --good x.toml --bad b.toml"),
        (["bundle", "run", "--out", "mine.py"], "mine.py exists", "harness bundle run --out mine-2.py"),
        (["parity", "hf", "hf", "--out", "half"], "", "harness parity hf hf --out half-2"),
        (["watch", "--on-verdict", "--", "true", "-x"], "--on-verdict takes a value",
         "harness watch --on-verdict 'cat >> verdicts.jsonl' -- true -x"),
        (["watch", "--stall", "--", "true"], "--stall takes a value", "harness watch --stall 60s -- true"),
        (["watch", "--pid", "--", "true"], "--pid takes a value", "harness watch --help"),
        (["record", "--out", "--", "python", "x.py"], "--out takes a value",
         "harness record --out runs/mine -- python x.py"),
        (["triage", "mine.py"], "mine.py is the source of a program", "harness watch -- python mine.py"),
        (["stacks", "mine.py"], "mine.py is the source of a program", "harness watch -- python mine.py"),
        (["run", "hf", "--scenario"], "harness run has no option --scenario: ", "harness run ppo-tiny --backend hf"),
        (["run", "vllm", "--scenario=rollout-tiny", "--steps", "2"], "harness run has no option --scenario: ",
         "harness run rollout-tiny --steps 2 --backend vllm"),
        (["run"], "Missing argument 'scenario'", "harness run ppo-tiny"),
        (["run", "hf", "--steps", "3"], "hf is an engine", "harness run ppo-tiny --backend hf --steps 3"),
        (["run", "ppo-tiny", "vllm"], "Got unexpected extra", "harness run ppo-tiny --backend vllm"),
        (["run", "hf", "vllm"], "Got unexpected extra", "harness parity hf vllm"),
        (["run", "ppo-tiny", "rollout-tiny"], "Got unexpected extra", "harness run --help"),
        (["audit", "--run", "absent"], "harness audit has no option --run: ", "harness audit absent"),
        (["parity", "--candidate", "vllm", "--baseline", "hf", "--steps", "1"], "harness parity has no option",
         "harness parity hf vllm --steps 1"),
        (["parity", "hf", "--scenario", "ppo-tiny"], "Missing argument 'candidate'",
         "harness parity hf vllm --scenario ppo-tiny"),
        (["parity", "--framework", "verl", "--", "python", "x.py"], "",
         "harness parity vllm sglang --framework verl -- python x.py"),
        (["parity", "hf", "hf", "--fault", "tempratur"], "there is no fault 'tempratur'", "harness faults list"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_told_in_a_sentence(
    words: list[str], told: str, fix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"harness: {told}") and second.startswith(f"  fix: {fix}")


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["diff", "run"], "is one run"),
        (["diff", "run", "absent"], "absent does not exist"),
        (["replay", "absent"], "absent does not exist"),
        (["diff", "run", "run"], "this needs numpy, which is not installed here"),
    ],
)
def test_it_is_told_where_the_extra_is_missing(words: list[str], told: str, here: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, words[0], *(str(here / word) for word in words[1:])]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 2 and told in answer.stderr.splitlines()[0]


@pytest.mark.by_day(6)
@pytest.mark.parametrize(
    ("words", "mistakes", "fix"),
    [
        ("diff 'a b' absent", 2, "ls .   # "),
        ("parity hf hf --candidate-set engine.context_length=2", 2,
         "harness parity hf hf --candidate-set engine.max_model_len=96"),
        ("parity hf hf --candidate-set engine.mem_fraction_static=0", 2,
         "harness parity hf hf --candidate-set engine.memory_fraction=0.01"),
        ("parity vlm hf@mine --set sampling.topp=0.5 --candidate-set engine.foo=3", 4,
         "harness parity vllm hf --set sampling.top_p=0.5 --candidate-set engine.KEY=VALUE   # with one of these keys"),
        ("parity hf hf --mapping mi.py --set sampling.topp=0.5", 2,
         "harness parity hf hf --mapping mine.py --set sampling.top_p=0.5"),
        ("parity hf VLLM --set engine.max_model_len=9999 --candidate-set sampling.max_tokens=900", 1,
         "harness parity hf vllm --set engine.max_model_len=9999 --candidate-set sampling.max_tokens=900"),
        ("parity vllm vllm sglang --seed 7", 1, "harness parity vllm sglang --seed 7   # two at a time"),
        ("parity vllm sglang hf hf", 1, "harness parity vllm sglang   # two at a time"),
        ("mapping mine.py --engine vllm --with temperature", 1,
         "harness mapping mine.py --engine vllm --with temperature=VALUE"),
        ("parity vllm sglang -- python mine.py", 1, "harness parity vllm sglang --framework verl -- python mine.py"),
        ("parity hf vllm -- python mine.py", 1, "harness parity hf vllm   # compares them with a scenario"),
        ("parity vllm sglang --steps 3 --no-native -- python mine.py", 1,
         "harness parity vllm sglang -- python mine.py"),
        ("doctor -- python mine.py", 1, "harness doctor   # the machine alone"),
        ("doctor --against 'python a.py' -- python mine.py", 1, "harness doctor   # what breaks a run"),
        ("parity vllm sglang -- python absent.py", 1, "ls .   # "),
        ("run rollout-tiny --set sampling.topp=0.5 --set seeed=3", 2,
         "harness run rollout-tiny --set sampling.top_p=0.5 --set seed=3"),
        ("parity hf hf --candidate-set top_p", 1, "harness parity hf hf --candidate-set sampling.top_p=0.5"),
        ("parity hf hf --set sampling.topk", 1, "harness parity hf hf --set sampling.top_k=7"),
        ("parity hf hf --set max_model_len", 1, "harness parity hf hf --set "),
        ("run rollout-tiny --steps 0 --set sampling.topp=2 --set zzz", 4,
         "harness run rollout-tiny --steps 1 --set sampling.top_p=1 --set sampling.temperature=0.9"),
        ("parity hf hf --set sampling.max_tokens=200", 1,
         "harness parity hf hf --set sampling.max_tokens=200 --set engine.max_model_len=264"),
    ],
)  # fmt: skip
def test_all_mistakes_of_a_command_line_are_mended_at_once(
    words: str, mistakes: int, fix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(shlex.split(words)) == 2
    *sentences, last = capsys.readouterr().err.splitlines()
    assert len(sentences) == mistakes and last.startswith(f"  fix: {fix}")


@pytest.mark.parametrize(
    ("words", "option", "fix"),
    [
        ("parity vllm hf", "--set", "harness parity vllm hf --baseline-mapping ./mapping.py"),
        ("parity hf vllm", "--set", "harness parity hf vllm --mapping ./mapping.py"),
        ("parity vllm vllm", "--set",
         "harness parity vllm vllm --baseline-mapping ./mapping.py --mapping ./mapping.py"),
        ("parity vllm vllm", "--candidate-set", "harness parity vllm vllm --mapping ./mapping.py"),
        ("run ppo-tiny --backend vllm", "--set", "harness run ppo-tiny --backend vllm --mapping ./mapping.py"),
        ("parity hf hf", "--set", "harness parity hf hf"),  # no side runs it
        ("parity vllm hf", "--candidate-set", "harness parity vllm hf"),
        ("up vllm", "--set", "harness up vllm"),  # which takes no mapping
    ],
)  # fmt: skip
def test_an_engines_own_argument_is_mapped_on_the_sides_that_run_it(
    words: str, option: str, fix: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(here / "no environment with a list of arguments"))
    assert cli.main([*words.split(), option, "engine.vllm.swap_space=4"]) == 2
    line = capsys.readouterr().err.splitlines()[-1].removeprefix("  fix: ")
    assert line.rpartition(" && ")[2] == fix


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("engine.hf.max_modl_len=9", "--set engine.hf.max_model_len=9"),
        ("engine.hf.zzz=9", ""),
        ("engine.vlm.swap_space=9", ""),  # vllm's, which no side runs
    ],
)
def test_a_misspelled_argument_of_an_engine_is_mended(
    setting: str, fix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["parity", "hf", "hf", "--set", setting]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"  fix: harness parity hf hf {fix}".rstrip()


def test_a_matrix_that_does_not_exist_is_begun_by_its_fix(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["nightly", "a matrix.toml", "--list"]) == 2
    fix = capsys.readouterr().err.splitlines()[-1].removeprefix("  fix: ")
    subprocess.run(fix, shell=True, check=True)
    assert cli.main(["nightly", "a matrix.toml", "--list"]) == 0
    assert "vllm-sglang/ppo-tiny" in capsys.readouterr().out


def test_a_pair_in_an_archive_is_unpacked_before_it_is_judged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = shutil.make_archive("pair", "zip", here / "a b")
    assert cli.main(["triage", Path(archive).name]) == 2
    fix = capsys.readouterr().err.splitlines()[-1].removeprefix("  fix: ")
    assert fix.startswith("python3 -m zipfile -e pair.zip pair   # ")
    subprocess.run(fix, shell=True, check=True)
    assert cli.main(["diff", "pair", "--format", "json"]) in (0, 1, 3)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("parity hf hf --baseline-mapping mine.py --baseline-set seed=3",
         "harness parity hf hf --baseline-mapping mine.py --set seed=3"),
        ("parity hf hf --candidate-mapping=mine.py", "harness parity hf hf --mapping=mine.py"),
        ("parity hf hf --stpes 3", "harness parity hf hf --steps 3"),
        ("parity hf hf --canidate-set a=1", "harness parity hf hf --candidate-set a=1"),
        ("mapping m.py --engine sglang --format xml", "harness mapping m.py --engine sglang --format text"),
        ("watch --keep 1 -- true", "harness watch --keep 32 -- true"),
        ("watch --pid x", "pgrep -af python   # the pid of a process of the job"),
        ("parity hf hf --zzz 3", "harness parity --help"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_replaced_by_one_that_takes_its_value(
    words: str, fix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"  fix: {fix}"


def test_a_run_that_is_compared_with_itself_is_noticed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "run", "./run", "--format", "json"]) == 3
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["fix"].startswith("harness audit run ") and verdict["parity"] is None
    cli.main(["diff", "a b/baseline", "a b/candidate", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["parity"]["checks"]


def test_a_command_that_is_none_names_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", "pbs", "--", "x"]) == 2
    assert "No such command 'pbs'. There are: dstack, github," in capsys.readouterr().err


def test_a_record_of_a_command_that_failed_at_once_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "python train.py", "watch": True, "index": True})
    (tmp_path / "beats").mkdir()
    refusal = no_rollouts(tmp_path, "rec")
    assert refusal is not None and str(refusal.fix).startswith("harness record -- COMMAND")


def test_a_process_that_is_given_as_a_command_is_watched_by_its_pid(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "4194303"]) == 127
    assert "harness watch --pid 4194303" in capsys.readouterr().err


def test_what_is_proposed_for_a_missing_argument_works_when_it_is_typed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is there is taken, the newest; a file that is none is written first."""
    shutil.copytree(here / "run", here / "runs" / "mine")
    shutil.copytree(here / "a b", here / "runs" / "pair")
    fixes = {}
    for command in ("audit", "bundle", "diff", "mapping", "nightly"):
        assert cli.main([command]) == 2
        fixes[command] = capsys.readouterr().err.splitlines()[-1].removeprefix("  fix: ")
    assert fixes["diff"] == "harness diff runs/pair"
    assert cli.main(shlex.split(fixes["audit"])[1:]) in (0, 1, 3)
    assert cli.main(shlex.split(fixes["bundle"])[1:]) == 0
    for command in ("mapping", "nightly"):
        written, _, words = fixes[command].partition(" && ")
        subprocess.run(written, shell=True, check=True, cwd=here)
        listed = ["--list"] if command == "nightly" else []
        assert cli.main([*shlex.split(words)[1:], *listed]) == 0
