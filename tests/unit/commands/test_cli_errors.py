"""The one catch of the command line: what the user reads, and the exit code."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer

from harness import cli
from harness.errors import ERROR_FILE, BadInput, EnvironmentUnusable, HarnessError, Interrupted, Terminated
from probes.errors import AddressedError, FormatError
from probes.plugins import Plugin, PluginError
from scenarios.engines.engine_interface import EngineError, ParameterRefused
from scenarios.prompts import PromptError

EXAMPLE = "harness nightly --help   # shows a matrix and its known differences"


@pytest.fixture(autouse=True)
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigterm: None) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HARNESS_DEBUG", raising=False)
    monkeypatch.setattr(Terminated, "arrived", 0)


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a command line in place whose only command raises."""
    app = typer.Typer(cls=cli._Group, pretty_exceptions_enable=False)

    @app.command()
    def work() -> None:
        raise error

    @app.command()
    def other() -> None:
        pass

    monkeypatch.setattr(cli, "commands", lambda: typer.main.get_command(app))


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (BadInput("there is no x", fix="harness x list"), 2, "harness: there is no x\n  fix: harness x list\n"),
        (EnvironmentUnusable("it broke"), 2, "harness: it broke\n"),
        (Interrupted("stopped"), 130, "harness: stopped\n"),
        (KeyboardInterrupt(), 130, "harness: interrupted\n"),
        (Terminated(), 143, "harness: interrupted\n"),
        (EngineError("SGLang refused update_weights: no"), 2, "harness: SGLang refused update_weights: no\n"),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(error, monkeypatch)
    assert cli.main(["work"]) == code
    assert capsys.readouterr().err == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["report", "{}"], ["diff", "{}", "x"], ["triage", "{}/x"], ["bundle", "{}"], ["{}"], ["run", "{}"],
     ["nightly", "{}"], ["run", "ppo-tiny", "--backend", "{}"], ["env", "path", "{}"], ["env", "list", "{}"],
     ["watch", "{}"], ["env", "list", "--format", "{}"], ["env", "{}"], ["faults", "list", "--from", "{}"]],
)  # fmt: skip
def test_an_argument_cannot_drive_the_terminal(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word.format("a\x1b[2J\u202eb") for word in words]) in (2, 127)
    told = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in told.out + told.err)
    assert "x1b[2J" in told.err


def test_a_defect_is_no_verdict_and_says_how_to_see_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(KeyError("weights"), monkeypatch)
    assert cli.main(["work"]) == 2
    told = capsys.readouterr().err
    assert "a defect of the harness: KeyError: 'weights'" in told and "HARNESS_DEBUG=1 harness" in told
    assert "Traceback" not in told


def test_the_traceback_is_there_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_DEBUG", "1")
    raising(BadInput("there is no x"), monkeypatch)
    assert cli.main(["work"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("size", "code"), [(1, 0), (10**6, 128 + signal.SIGPIPE)])
def test_a_reader_that_has_gone_is_no_error_and_no_verdict(size: int, code: int) -> None:
    script = f"""
import sys, typer
from harness import cli
app = typer.Typer(cls=cli._Group)
@app.command()
def work():
    print("x" * {size})
app.command()(lambda: None)
cli.app = app
sys.exit(cli.main(["work"]))
"""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", script]
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}  # one character waits in the buffer, a million do not
    answer = subprocess.run(command, env=environ, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (code, "")


@pytest.mark.slow
def test_a_reader_of_the_completion_that_has_gone_is_no_defect() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "harness", "--show-completion", "bash"]
    answer = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["--nonsense"], ["env", "nonsense"], ["env", "list", "--nonsense"], ["env", "create"], ["env"],
     ["env", "create", "vllm", "--device", "tpu"], ["env", "list", "--format", "xml"], []],
)  # fmt: skip
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["env", "create", "tgi"], "there is no engine 'tgi'"),
        (["env", "create", "vllm", "--version", "newest"], "is not a version"),
        (["env", "path", "nowhere"], "there is no environment named 'nowhere' (there are: none yet)"),
        (["env", "remove", "nowhere"], "there is no environment named 'nowhere'"),
        (["env", "add", "mine", "--engine", "vllm", "--python", "/nowhere/python"], "there is no interpreter at"),
        (["env", "check"], "there is no environment to check"),
        (["env", "check", "vllm"], "fix: harness env create vllm"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("harness: ") and text in told


def test_version_and_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("harness ")
    assert cli.main(["env", "list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.slow
def test_help_is_light() -> None:
    script = """
import sys
from harness import cli
cli.main(["--help"])
heavy = sys.modules.keys() & {"pandas", "torch", "ray", "pydantic", "numpy", "transformers", "scipy"}
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "env" in answer.stdout


def test_every_error_has_an_exit_code_that_is_no_verdict() -> None:
    def below(kind: type[HarnessError]) -> list[type[HarnessError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    from harness.cluster.waiting import RunCut

    kinds = below(HarnessError)
    assert all(kind.exit_code not in (0, 1, 3) for kind in kinds if kind is not RunCut)
    assert RunCut in kinds and RunCut.exit_code == 3  # a run that was cut short is INCONCLUSIVE


@pytest.mark.parametrize(
    "error",
    [
        FormatError("the file ends", "harness report RUN"),
        PluginError("it raised", "theirs", "plug-in theirs", "upgrade theirs"),
        ParameterRefused("no such value", fix="correct the mapping"),
        PromptError("no prompts", fix="ls prompts"),
    ],
)
def test_an_error_for_the_user_keeps_its_fix_between_processes(
    error: AddressedError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(pickle.loads(pickle.dumps(error)), monkeypatch)
    assert cli.main(["work"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"harness: {error}", f"  fix: {error.fix}"]


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "df -h 'a b'"),
        (errno.EDQUOT, "df -h 'a b'"),
        (errno.EROFS, "ls -ld 'a b'"),
        (errno.EIO, "HARNESS"),
    ],
)
def test_what_a_path_lacks_has_a_fix(
    number: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    raising(OSError(number, os.strerror(number), "a b"), monkeypatch)
    assert cli.main(["work"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"harness: a b: {os.strerror(number)}" and second.startswith(f"  fix: {fix}")


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        f"triage {LONG}", f"triage - {LONG}", f"stacks {LONG}", f"run {LONG}", f"replay {LONG}", f"diff {LONG} {LONG}",
        f"audit {LONG}", f"report {LONG}", f"bundle {LONG}", f"mapping {LONG}.py --engine hf", f"nightly {LONG}",
        f"parity hf hf --mapping {LONG}.py", f"parity hf hf --scenario {LONG}", f"history list --history {LONG}",
        f"render slurm --out {LONG} -- true", f"adapters check --python {LONG}", f"bisect --good {LONG} --bad {LONG}",
        f"triage {'x/' * 3_000}",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_name_that_no_file_can_have_is_refused_in_one_sentence(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    *messages, fix = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert fix.startswith("  fix: ") and "HARNESS_DEBUG" not in fix
    assert all("Errno" not in message and "defect" not in message for message in messages)
    assert not [*tmp_path.iterdir()]


def test_an_error_that_came_through_ray_tells_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class FromActor(EngineError):  # as Ray makes them: of the cause's type, with the cause, its text a traceback
        cause = EngineError("vLLM answered 3 of 4 requests")

    raising(FromActor("ray::EngineSession.rollout() (pid=1)\n  File ..."), monkeypatch)
    assert cli.main(["work"]) == 2
    assert capsys.readouterr().err == "harness: vLLM answered 3 of 4 requests\n"


def test_an_error_of_a_plug_in_says_what_to_do_about_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = Plugin(EntryPoint("theirs", "theirs.spec:SPEC", "rlhf_harness.engines"))
    raising(pickle.loads(pickle.dumps(plugin.error("raised ValueError"))), monkeypatch)
    assert cli.main(["work"]) == 2
    assert capsys.readouterr().err == (
        "harness: the engine plug-in 'theirs' of an unnamed package (theirs.spec:SPEC) raised ValueError\n"
        "  fix: upgrade or uninstall its package, or tell its authors\n"
    )


def _commands_of_a_job(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each command that takes the user's own command behind `--`, and nothing without it."""
    command = command or cli.commands()
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands_of_a_job(child, (*path, name))
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    if path == ("watch",) or (len(arguments) == 1 and arguments[0].required and arguments[0].name in cli.OF_A_JOB):
        yield path


@pytest.mark.slow
def test_a_command_that_lacks_the_users_own_gets_it_behind_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    paths = [*_commands_of_a_job()]
    assert {("watch",), ("record",), ("render", "torchrun"), ("render", "ray-job")} <= {*paths}
    for path in paths:
        for rest in ((), ("--",), ("--out", "some where"), ("--out", "some where", "--")):
            assert cli.main([*path, *rest]) == 2
            fix = json.loads((tmp_path / "error.json").read_text())["fix"].partition("   # ")[0]
            options = [word for word in rest if word != "--"]
            assert shlex.split(fix) == ["harness", *path, *options, "--", "python", "train.py"]


def test_the_command_that_started_it_gets_the_error_as_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    raising(BadInput("there is no engine 'tgi'", fix="harness env list"), monkeypatch)
    assert cli.main(["work"]) == 2
    told = {"message": "there is no engine 'tgi'", "fix": "harness env list"}
    assert json.loads((tmp_path / "error.json").read_text()) == told
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "nowhere" / "error.json"))
    assert cli.main(["work"]) == 2 and capsys.readouterr().err.count("there is no engine 'tgi'") == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_takes_the_way_of_ctrl_c(monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    cleaned: list[str] = []
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr(Terminated, "arrived", 0)

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            if number == signal.SIGHUP:
                os.kill(os.getpid(), number)  # the shell's, after the kernel's
            cleaned.append("yes")

    app = typer.Typer(cls=cli._Group)
    command: Callable[[], None] = app.command()(work)
    app.command()(lambda: None)
    monkeypatch.setattr(cli, "commands", lambda: typer.main.get_command(app))
    assert cli.main([command.__name__]) == code
    assert cleaned == ["yes"]


def test_a_command_under_nohup_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    app = typer.Typer(cls=cli._Group)
    command: Callable[[], None] = app.command()(work)
    app.command()(lambda: None)
    monkeypatch.setattr(cli, "commands", lambda: typer.main.get_command(app))
    assert cli.main([command.__name__]) == 0


@pytest.mark.slow
def test_an_output_that_takes_nothing_says_where_to_print_instead() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "harness.entry", "env", "list"]
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert answer.returncode == 2
    assert answer.stderr == (
        "harness: the output: No space left on device\n"
        "  fix: harness env list > FILE   # FILE on a disk with free space (df -h)\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        ("parity hf hf --fault stale-tensr", "there is no fault 'stale-tensr'; did you mean stale-tensor or ",
         "harness faults list --suite parity"),
        ("parity hf hf --fault 0", "there is no fault '0'", "harness faults list --suite parity"),
        ("run ppo-tiny --set ppo.train_batch_size=7", "no multiple of ppo.train_batch_size = 7",
         "harness run ppo-tiny --set ppo.train_batch_size=8"),
        ("run ppo-tiny --set ppo.micro_batch_size=3 --set ppo.train_batch_size=8", "ppo.world_size = 3",
         "harness run ppo-tiny --set ppo.micro_batch_size=1 --set ppo.world_size=1 --set ppo.train_batch_size=8"),
        ("adapters check --framework x", "there is no adapter for 'x'",
         "harness adapters check --framework openrlhf   # or trl or verl"),
        ("adapters check --python /nowhere", "there is no interpreter /nowhere",
         "command -v python   # in the job's environment, prints the interpreter to name"),
        ("bisect --good a.toml", "a bisection over settings needs --bad", "harness bisect --good a.toml --bad b.toml"),
        ("doctor --framework opnrlhf", "there is no adapter for 'opnrlhf'", "harness doctor --framework openrlhf"),
        ("bisect A --against hf --list", "No such option: --list", "harness bisect --help"),
        ("bisect A --list --against hf", "No such option: --list", "harness bisect --help"),
        ("bisect A --against hf --lmit 5m", "; did you mean --limit?", "harness bisect A --against hf --limit 5m"),
        ("bisect A --against hf --lmit=5m", "; did you mean --limit?", "harness bisect A --against hf --limit=5m"),
        ("stacks", "Missing argument",
         "pgrep -af python   # the pid of a process of the job, for harness stacks PID"),
        ("up", "Missing argument", "harness up vllm sglang"),
        ("env create", "Missing argument", "harness env create vllm"),
        ("env path", "Missing argument", "harness env create vllm"),
        ("env add foo", "Missing option",
         'harness env add foo --engine vllm --python "$(command -v python3)"'),
        ("parity vllm/sglang", "Missing argument", "harness parity vllm sglang"),
        ("parity vllm@0.31,vllm@0.32 --steps 1", "Missing argument", "harness parity vllm@0.31 vllm@0.32 --steps 1"),
        ("parity hf,hf", "Missing argument", "harness parity hf hf"),
        ("mapping sglang my.py", "Got unexpected extra argument", "harness mapping my.py --engine sglang"),
        ("watch --pid abc", "a whole number was expected", "pgrep -af python   # the pid of a process of the job"),
        ("down nosuch", "Got unexpected extra argument", "harness down"),
        ("ps a b", "Got unexpected extra argument", "harness ps"),
        ("triage -5", "No such option: -5", "harness triage 5"),
        ("explain -9", "No such option: -9", "harness explain -- -9"),
        ("parity vllm sglang --steps abc", "a whole number was expected", "harness parity vllm sglang --steps 1"),
        ("triage 10.0.0.1", "an address without a port", "harness triage 10.0.0.1:6379   # the port of ray start"),
        ("env add x --engine vllm --python /nosuch", "no interpreter at /nosuch",
         'harness env add x --engine vllm --python "$(command -v python3)"'),
        ("parity vllm,sglang hf", "3 backends are named", "harness parity vllm sglang   # two at a time"),
        ("parity hf vllm/sglang --steps 1", "3 backends", "harness parity hf vllm --steps 1   # two at a time"),
        ("parity vllm,sglang hf,hf", "4 backends", "harness parity vllm sglang   # two at a time"),
        ("parity hf hf extra", "extra is neither a backend nor a command", "harness parity hf hf"),
        ("parity hf hf extra more --steps 1", "extra more is neither", "harness parity hf hf --steps 1"),
        ("parity vllm vs sglang", "'vs' is no backend", "harness parity vllm sglang"),
        ("parity hf hf rollout-tiny", "is a scenario", "harness parity hf hf --scenario rollout-tiny"),
        ("triag", "; did you mean triage?", "harness triage --help"),
        ("watc", "; did you mean watch?", "harness watch --help"),
        ("docto", "; did you mean doctor?", "harness doctor"),
        ("triag 12", "; did you mean triage?", "harness triage 12"),
        ("parity vllm sglang --candidate-set sampling.top_p 0.9 --steps 3", "two words",
         "harness parity vllm sglang --candidate-set sampling.top_p=0.9 --steps 3"),
        ("run hf --set steps 3", "two words", "harness run hf --set steps=3"),
        ("parity vllm@0.1 sglang", "its first release is 0.8.5", "harness parity vllm@0.32.0 sglang"),
        ("doctor --strct", "No such option: --strct; did you mean --strict?", "harness doctor --strict"),
        ("nightly /", "/ cannot be read: Is a directory", EXAMPLE),
        ("render github /", "/ cannot be read: Is a directory",
         EXAMPLE),
        (f"history list --history {__file__}", "file is not a database",
         f"harness nightly MATRIX.toml --history {Path(__file__).with_stem('test_cli_errors-2')}   # makes it"),
        ("parity hf hf --prompts /", "prompts.path = '/': a directory",
         "harness parity hf hf --prompts builtin:tiny   # or a file that ends in .jsonl or .parquet"),
        ("parity hf hf --model /", "this directory holds no config.json",
         "harness parity hf hf --model builtin:tiny   # or the directory of a Hugging Face model"),
    ],
)  # fmt: skip
def test_a_wrong_word_comes_with_what_is_right(
    words: str, said: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    first, *second = capsys.readouterr().err.splitlines()
    assert said in first and len(first) < 250
    assert second == ([f"  fix: {fix}"] if fix else [])


def test_a_value_that_no_option_takes_is_refused_in_our_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "--on-stall", "explode", "--", "true"]) == 2
    assert "'report', 'end', 'exit'" in " ".join(capsys.readouterr().err.split())


def test_a_verdict_that_is_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["report", str(tmp_path / "pipe")]) == 2
    assert "is not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["triage", ""],
        ["doctor", "--against", "", "--", "python", "train.py"],
        ["watch", "--on-verdict", "", "--", "true"],
        ["record", "--out", "", "--", "true"],
    ],
)
def test_an_empty_word_of_a_variable_that_is_not_set_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert "is a variable not set?" in capsys.readouterr().err
