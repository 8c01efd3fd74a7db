"""The commands as functions, without a cluster: the command line that does it again, what is refused before anything
starts, what an ended run leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import recordings

import harness
from harness import cli, envs
from harness.cluster.experiment import Experiment
from harness.cluster.launch import Cluster
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut, Waiting
from harness.errors import BadInput, HarnessError, Terminated
from harness.parity.runs import run
from harness.parity.runs.run_options import ParityOptions, RunOptions
from harness.recordings.work import WORK
from probes import format as recording
from probes import install
from scenarios.remote import ActorFailed
from scenarios.settings import Scenario

CUT = "baseline (hf), step 0: a process of the run died"
PARITY: dict[str, Any] = {
    "scenario": "rollout-tiny", "overrides": ["engine.seed=3", 'model.path="builtin:tiny"'],
    "candidate_overrides": ["sampling.temperature=0.9"], "mode": "greedy", "seed": 0, "steps": 3, "rollout_only": True,
    "free": True, "native": False, "fault": "engine-seed", "cap": 1e-05, "address": "10.0.0.1:6379", "device": "cpu",
    "stall_s": 90.5, "mapping": "users.py", "baseline_mapping": "users.py",
}  # fmt: skip
RUN: dict[str, Any] = {
    "backend": "hf", "overrides": ["ppo.epochs=2"], "mode": "coupled", "seed": 7, "steps": 9, "rollout_only": True,
    "resume": None, "address": "10.0.0.1:6379", "device": "cpu", "stall_s": 0.0, "mapping": "users.py",
}  # fmt: skip
MINE = 'name = "mine"\n[model]\npath = "builtin:tiny"\n[prompts]\npath = "builtin:tiny"\n'
OPTIONS: dict[str, type[RunOptions]] = {"run_parity": ParityOptions, "run_scenario": RunOptions}


pytestmark = pytest.mark.usefixtures("sigterm")


def complete(function: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every option that a command line carries, as the command passes it on."""
    fields = {item.name for item in dataclasses.fields(OPTIONS[function])}
    own = {"backend": "hf", "resume": None} if function == "run_scenario" else {}
    options = {key: os.path.abspath(value) if str(value).endswith((".py", ".toml")) else value
               for key, value in options.items()}  # fmt: skip
    chosen = OPTIONS[function](**{key: value for key, value in options.items() if key in fields})
    return own | {key: value for key, value in options.items() if key not in fields} | carried(chosen)


def carried(options: RunOptions) -> dict[str, Any]:
    return {key: value for key, value in vars(options).items() if key not in ("progress", "out")}


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that never starts, under runs whose begin writes the manifests and whose first step is cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))

    @contextlib.contextmanager
    def nothing(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield None

    def begin(self: Experiment, spare: int = 0) -> None:
        for side in self._sides:
            self._manifest(side)

    def record(self: Experiment, side: Any, **options: Any) -> str:
        raise RunCut(CUT, fix="df -h")

    monkeypatch.setattr(Cluster, "__init__", lambda self, address=None, preload=(): None)
    monkeypatch.setattr(Cluster, "__enter__", lambda self: self)
    monkeypatch.setattr(Cluster, "__exit__", lambda self, *exc: None)
    monkeypatch.setattr(Cluster, "gpus", lambda self: 0.0)
    monkeypatch.setattr(run, "guarded", nothing)
    monkeypatch.setattr(Experiment, "begin", begin)
    monkeypatch.setattr(Experiment, "record", record)


def asked(command: str, function: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command line passes to the function."""
    caught: dict[str, Any] = {}

    def catch(*positional: Any, **options: Any) -> Any:
        *words, chosen = positional
        options.pop("progress")
        caught.update(options, **carried(chosen), positional=tuple(words))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, function, catch)
    program, *arguments = shlex.split(command)
    assert program == "harness"
    assert cli.main(arguments) == 130
    return caught


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, PARITY, {"stall_s": 0.0, "overrides": ["engine.seed=1"], "scenario": "./mine.toml"}]
)
def test_a_verdict_names_the_command_that_asks_for_the_same_again(
    options: dict[str, Any], no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.py").write_text("def hf_sampling(asked, ours):\n    return ours\n")
    (tmp_path / "mine.toml").write_text(MINE)
    once = {**options, "overrides": iter(options.get("overrides", []))}  # any iterable is welcome
    verdict = harness.run_parity("hf", "hf", **once, out="it")
    assert (verdict.verdict, verdict.reason, verdict.fix) == ("INCONCLUSIVE", f"cut short: {CUT}", "df -h")
    assert (verdict.missing, verdict.parity) == ([], None), "nothing was recorded, and the reason says why"
    assert "--out" not in verdict.reproduce
    for side in ("baseline", "candidate"):
        assert json.loads((tmp_path / "it" / side / "run.json").read_text())["command"] == verdict.reproduce
    again = asked(verdict.reproduce, "run_parity", monkeypatch)
    assert again == complete("run_parity", options) | {"positional": ("hf", "hf")}


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "options"), [("ppo-tiny", {}), ("ppo-tiny", RUN), ("mine.toml", {})])
def test_a_run_records_the_command_that_makes_it_again(
    scenario: str, options: dict[str, Any], no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.py").write_text("def hf_sampling(asked, ours):\n    return ours\n")
    (tmp_path / "mine.toml").write_text(MINE)
    with pytest.raises(RunCut):
        harness.run_scenario(scenario, **options, out=tmp_path / "it")
    manifest = json.loads((tmp_path / "it" / "run.json").read_text())
    assert ("return ours" in str(manifest["mapping"])) == ("mapping" in options)
    command = manifest["command"]
    again = asked(command, "run_scenario", monkeypatch)
    named = str(tmp_path / scenario) if scenario.endswith(".toml") else scenario
    assert again == complete("run_scenario", options) | {"positional": (named,)}


class Answer:
    """A future whose call failed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def result(self, timeout: float | None = None) -> Any:
        raise self.error


def waiting(tmp_path: Path) -> tuple[Waiting, Side]:
    made = Waiting(None, lambda side, phase, step: None)  # what a failure says needs no cluster
    made._raylets = []
    return made, Side("run", "hf", envs.resolve("hf"), Scenario(), tmp_path)


def failed(kind: str, message: str, tmp_path: Path, trace: str = "") -> HarnessError:
    from ray.exceptions import RayTaskError

    made, side = waiting(tmp_path)
    cause = ActorFailed(kind, message, trace)
    with pytest.raises((BadInput, RunCut)) as caught:
        made.result(Answer(RayTaskError("call", "trace", cause)), side, "step 1")  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RecordingError", "the disk is full: cannot record to x; everything recorded before is intact"),
        ("OSError", "[Errno 28] No space left on device: 'x'"),
        ("SafetensorError", "Error while serializing: I/O error: No space left on device (os error 28)"),
        ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
    ],
)
def test_a_full_disk_is_one_case_whoever_wrote(kind: str, message: str, tmp_path: Path) -> None:
    error = failed(kind, message, tmp_path)
    assert isinstance(error, RunCut) and error.exit_code == 3
    assert error.message.startswith("run (hf), step 1: ") and "the disk is full" in error.message


def test_what_an_actor_raises_is_bad_input_only_where_the_user_can_mend_it(tmp_path: Path) -> None:
    for kind in ("ParameterRefused", "PromptError", "ModelError", "CheckpointError"):
        assert isinstance(failed(kind, "no", tmp_path), BadInput)
    other = failed("RuntimeError", "trace\nlast words", tmp_path / "gone")
    assert isinstance(other, RunCut) and other.message == "run (hf), step 1: RuntimeError: last words"


def test_an_actors_traceback_is_kept_without_secrets(tmp_path: Path) -> None:
    error = failed("AttributeError", "no", tmp_path, trace="File x, line 3\n    login(token='hf_" + "a" * 34 + "')")
    assert error.message.endswith(f"AttributeError: no; its traceback is in {tmp_path / 'traceback.txt'}")
    kept = (tmp_path / "traceback.txt").read_text()
    assert "File x, line 3" in kept and "aaaa" not in kept


def test_the_end_of_the_ray_node_is_said_in_plain_words(tmp_path: Path) -> None:
    from ray.exceptions import LocalRayletDiedError, RayActorError

    made, side = waiting(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    def said(error: Exception) -> str:
        with pytest.raises(RunCut) as caught:
            made.result(Answer(error), side, "step 1")  # type: ignore[arg-type]
        return caught.value.message

    cancelled = RayActorError(error_msg="The actor never ran - it was cancelled before it started running.")
    made._raylets = [os.getpid()]
    assert "Ray node" not in said(cancelled) and "a process of the run died" in said(cancelled)
    chatty = RayActorError(error_msg="It died: End of file. Some common causes include: (1) the OOM killer.")
    assert "End of file; what was recorded until then is in" in said(chatty) and "common causes" not in said(chatty)
    recording.write_manifest(side.run_dir, {})
    with install.start(side.run_dir, role="critic", rank=1, groups=False):
        named = RayActorError(error_msg=f"The actor died.\n\tclass_name: Host\n\tpid: {os.getpid()}\nIt was killed.")
        assert f"the critic process of rank 1 (pid {os.getpid()}) died: It was killed" in said(named)
    assert "Ray node" in said(LocalRayletDiedError())
    made._raylets = [gone.pid]
    assert "Ray node of this run ended" in said(cancelled) and "session_latest/logs" in said(cancelled)


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_start_of_a_recording_cuts_the_run(
    no_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, fields: dict[str, Any]) -> None:
        raise recording.RecordingError.of(folder, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(recording, "write_manifest", full)
    verdict = harness.run_parity("hf", "hf", out="it")
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3) and "the disk is full" in verdict.account
    assert json.loads(Path("it/verdict.json").read_text())["verdict"] == "INCONCLUSIVE"


@pytest.mark.slow
def test_a_verdict_without_room_is_still_given(no_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, data: bytes) -> None:
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("harness.parity.runs.recording.write_whole", full)
    verdict = harness.run_parity("hf", "hf", out="it")
    assert verdict.verdict == "INCONCLUSIVE" and set(verdict.paths) == {"run"}
    assert "No space left on device" in verdict.missing[-1]
    assert not Path("it/verdict.json").exists() and not Path("it/report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("out", [None, "new/deep/it"])
def test_a_refused_run_leaves_no_directory_behind(
    out: str | None, no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Experiment, spare: int = 0) -> None:
        raise BadInput("no")

    monkeypatch.setattr(Experiment, "begin", refused)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(BadInput):
        harness.run_parity("hf", "hf", out=out)
    with pytest.raises(BadInput):
        harness.run_scenario("ppo-tiny", out=out)
    assert {path.name for path in tmp_path.iterdir()} == before
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadInput):
        harness.run_scenario("ppo-tiny", out="mine/it")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("interrupt", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupt_says_where_the_recording_is(
    interrupt: type[KeyboardInterrupt],
    code: int,
    no_cluster: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(self: Experiment, *arguments: Any, **options: Any) -> Any:
        raise interrupt

    def interrupted_later(self: Experiment, *arguments: Any, **options: Any) -> Any:
        (tmp_path / "it" / "events").mkdir()
        (tmp_path / "it" / "events" / "driver.jsonl").write_text("{}\n")
        raise interrupt

    monkeypatch.setattr(Experiment, "record", interrupted_later)
    assert cli.main(["run", "ppo-tiny", "--out", "it"]) == code
    *_, last, fix = capsys.readouterr().err.splitlines()
    assert last == f"harness: interrupted; what was recorded until then is in {tmp_path / 'it'}"
    assert fix == f"  fix: harness report {tmp_path / 'it'}   # what there is"
    for step, out in (("record", "settings-alone"), ("begin", "other")):
        monkeypatch.setattr(Experiment, step, interrupted)
        assert cli.main(["run", "ppo-tiny", "--out", out]) == code
        assert capsys.readouterr().err.splitlines()[-1] == "harness: interrupted"


def test_an_unknown_mode_names_the_modes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "ppo-tiny", "--mode", "foo"]) == 2
    told = capsys.readouterr().err
    assert "'coupled', 'native', 'greedy'" in " ".join(told.replace("│", " ").split()) and "''" not in told


def scanned_and_gathered(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """How often each file below was scanned, and each recording gathered."""
    scans, gathers = (
        {str(Path(path).relative_to(folder)): count for (what, path), count in WORK.items() if what == kind}
        for kind in ("scan", "gather")
    )
    return scans, gathers


def files_of(folder: Path) -> set[str]:
    return {
        str(file.relative_to(folder))
        for pattern in ("*/events/*.jsonl", "*/tokens/*.bin")
        for file in folder.glob(pattern)
    }


@pytest.mark.slow
def test_a_diff_scans_and_gathers_each_recording_once(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        recordings.make(side).write(tmp_path / side)
    WORK.clear()
    verdict = run.diff(tmp_path)
    assert verdict.verdict == "EQUIVALENT"
    scans, gathers = scanned_and_gathered(tmp_path)
    assert scans == dict.fromkeys(files_of(tmp_path), 1)
    assert gathers == {"baseline": 1, "candidate": 1}


@pytest.mark.slow
def test_a_parity_scans_each_file_once_and_gathers_once_a_verdict(
    no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recordings grow by the native stage's files, after the look at the baseline and that before attribution."""
    out, source = tmp_path / "it", tmp_path / "source"
    for name in ("baseline", "candidate"):
        recordings.make(name).write(source / name)
    native = {name: f"rollout-0-{pid}" for name, pid in (("baseline", 4003), ("candidate", 5003))}

    def record(self: Experiment, side: Any, **options: Any) -> str:
        later = shutil.ignore_patterns(f"{native[side.name]}.*")
        shutil.copytree(source / side.name, side.run_dir, dirs_exist_ok=True, ignore=later)
        return "policy"

    def draw(self: Experiment, *sides: Any, **options: Any) -> None:
        for side in sides:
            for file in (source / side.name).glob(f"*/{native[side.name]}.*"):
                shutil.copy(file, side.run_dir / file.parent.name / file.name)

    monkeypatch.setattr(Experiment, "begin", lambda self, spare=0: None)
    monkeypatch.setattr(Experiment, "record", record)
    monkeypatch.setattr(Experiment, "begin_native", lambda self, side, policy: None)
    monkeypatch.setattr(Experiment, "native", draw)
    WORK.clear()
    verdict = run.run_parity("hf", "hf", out=str(out))
    assert verdict.verdict == "EQUIVALENT", verdict.missing
    scans, gathers = scanned_and_gathered(out)
    assert scans == dict.fromkeys(files_of(out), 1)
    # The baseline by itself, both before attribution, and both for the verdict.
    assert gathers == {"baseline": 3, "candidate": 2}
