"""Secrets of more than thirty kinds, planted wherever a job can have them; nothing that is written may show one.

Every artefact is searched as bytes, zips member by member, and as JSON and HTML with their escapes undone.
"""

from __future__ import annotations

import dataclasses
import html
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from secret_catalogue import PLANTED

import reports
from harness import cli
from harness.command_options import command_line
from harness.parity.runs.recording import written
from harness.triage import directory
from harness.triage.collect import Scope, collect, proc
from harness.triage.run import triage
from probes import collectives
from probes.format import write_manifest
from probes.frames import Flat
from probes.heartbeat import Heartbeat
from probes.install import start
from reports.doctor_model import Hazard, Report
from reports.model import Cause, Check, Finding, Parity, Party, Place, RunSummary, Triage, Verdict
from reports.progress import ProgressEvent
from reports.renderers import names
from reports.renderers.text import TextRenderer
from reports.run_model import RecordedRun

pytestmark = pytest.mark.usefixtures("sigterm")
# Found nowhere but in a variable with a secret name: known only because it is one.
IN_VARIABLE = "Vv9" + "plainLookingValue"
VARIABLES = {
    **{f"JOB_{number}_TOKEN": planted.value for number, planted in enumerate(PLANTED)},
    "WANDB_API_KEY": IN_VARIABLE,
    "NCCL_AUTH_KEY": "nccl" + "Key77x",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": {"X": "inThe" + "JobConfig1"}}}),
    "RAY_RUNTIME_ENV_JSON": json.dumps({"env_vars": {"Y": "inThe" + "RuntimeEnv2"}}),
    "HF_ENDPOINT": "https://me:inThe" + "Mirror3@mirror.example/",
    "VLLM_EXTRA": "--api-key=inThe" + "Family4",
    "MASTER_ADDR": "me:inThe" + "Address5@head",
}
OTHERS = (
    "Vv9" + "plainLookingValue",
    "nccl" + "Key77x",
    "inThe" + "JobConfig1",
    "inThe" + "RuntimeEnv2",
    "inThe" + "Mirror3",
    "inThe" + "Family4",
    "inThe" + "Address5",
)
VALUES = (*(planted.value for planted in PLANTED), *OTHERS)
SENTENCES = [planted.text for planted in PLANTED]
ALL = "\n".join(SENTENCES)
# Each has a first line or three commands of its own. What is withheld of each kind is tested beside the rules.
SOME = SENTENCES if os.environ.get("TEST_PROFILE") == "nightly" else SENTENCES[::6]


def contents(root: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(root.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(root)), file.read_bytes()
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as zipped:
                yield from ((f"{file.name}/{name}", zipped.read(name)) for name in zipped.namelist())


def leaks(data: bytes | str) -> list[str]:
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    forms = (text, html.unescape(text), text.replace('\\"', '"'), text.replace("\\\\", "\\"))
    return [value for value in VALUES if any(value in form for form in forms)]


def assert_clean(root: Path, at_least: int) -> None:
    seen = list(contents(root))
    assert len(seen) >= at_least, [name for name, _ in seen]
    assert not {name: found for name, data in seen if (found := leaks(data))}


def test_the_search_would_find_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SENTENCES))
    (tmp_path / "b.html").write_text(html.escape(ALL))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.txt").write_text(ALL)
    directory.pack(tmp_path / "folder")
    found = {name: len(leaks(data)) for name, data in contents(tmp_path)}
    assert set(found.values()) >= {len(PLANTED)} and "folder.zip/c.txt" in found
    with pytest.raises(AssertionError):
        assert_clean(tmp_path, 1)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_a_recording(job: None, tmp_path: Path) -> None:
    nested = {
        "hub": {"all": SENTENCES, "token": PLANTED[0].value},
        "wandb": {"api_key": IN_VARIABLE},
        "max_tokens": 512,
    }
    write_manifest(
        tmp_path, {"command": ALL, "scenario": nested, "environment": {"env": dict(VARIABLES)}, "argv": SENTENCES}
    )
    recorder = start(tmp_path, role="actor")
    beat = Heartbeat(tmp_path, recorders=lambda: [recorder], identity=lambda: {"error": ""})
    for sentence in [*SENTENCES, f"refused: {IN_VARIABLE}"]:
        with (
            pytest.raises(RuntimeError),
            recorder.span("rollout", step=1, url=sentence, argv=["x", *sentence.split(" ")]) as span,
        ):
            span.note(token=PLANTED[0].value)
            recorder.states["engine"] = lambda sentence=sentence: {"running": 1, "url": sentence}  # type: ignore[misc]
            beat.beat()
            raise RuntimeError(sentence)
        recorder.event(
            "call",
            name="generate",
            ok=False,
            message=sentence,
            nested={"deep": [{"er": sentence}]},
            obj=Path(f"x {sentence}"),
        )
        recorder.event("configuration", scenario=nested, settings={"text": sentence})
    recorder.frame("rollout", step=0, arrays={"prompt": Flat.of([1, 2], "i4")}, fields={"asked": nested, "note": ALL})
    recorder.boundaries(step=0, sample=0, prompt=[1], output=[2], finish="stop", decode=lambda ids: ALL)
    recorder.environment()
    beat.close()
    recorder.close(ok=False, reason=ALL)
    assert_clean(tmp_path, 4)
    data = (tmp_path / "run.json").read_text()
    assert json.loads(data)["scenario"]["max_tokens"] == 512
    assert '"withheld"' in recorder.path.read_text() and "RAY_JOB_CONFIG_JSON_ENV_VAR" in recorder.path.read_text()


PROGRAM = """
import os, sys, time
secret_local = "local" + "Only99"
def work(argument):
    print("ready", flush=True)
    time.sleep(60)
work(sys.argv[1:])
"""


@pytest.mark.slow
def test_evidence_of_a_live_process(job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the child has these variables and arguments; what is collected, zipped, judged and rendered is clean."""
    words = [word for sentence in SENTENCES for word in (sentence, *sentence.split(" "))]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words, f"positional-{IN_VARIABLE}"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        for name in VARIABLES:
            monkeypatch.delenv(name)
        evidence = collect(Scope((child.pid,)), out=tmp_path / "evidence", samples=1, native=False, deadline_s=8.0)
        [process] = evidence.processes
        assert "train.py" in process.command or "python" in process.command
        assert not leaks(process.command + str(process.environ))
        raw = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert PLANTED[0].value.encode() in raw, "the trial plants nothing"
        monkeypatch.chdir(tmp_path)
        verdict = triage([str(tmp_path / "evidence")], tmp_path / "out")
    finally:
        child.kill()
        child.communicate()
    directory.pack(tmp_path / "evidence")
    for format in names("parity"):
        (tmp_path / f"verdict.{format}").write_text(reports.render(verdict, format))
    assert_clean(tmp_path, 8)
    assert "localOnly99" not in "".join(data.decode("utf-8", "replace") for _, data in contents(tmp_path))


def test_variables_of_another_process_are_those_of_the_list(job: None) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout and child.stdout.readline()
        environ = proc.facts(child.pid).environ
    finally:
        child.kill()
        child.communicate()
    assert "RAY_JOB_CONFIG_JSON_ENV_VAR" not in environ and not leaks(str(environ))


def verdict_with_secrets() -> Verdict:
    finding = Finding(
        "engine", ALL, effect=ALL, where="both", details={"text": ALL, "api_key": IN_VARIABLE, "list": SENTENCES}
    )
    run = RunSummary("baseline", "vllm", ALL, rows={"url": ALL, "max_tokens": 512, ALL: 1}, measured={"note": ALL})
    place = Place(0, "rollout", 0, 1, 2, "tokens", ALL, {"hub_token": IN_VARIABLE}, context=ALL)
    body = Parity(place, {"note": ALL}, [Check("tokens", "confirmed", ALL, 1, {"x": ALL})], [run], {"m": {"n": ALL}})
    waits = Triage("K13", [Party("h:1", ALL, frame=ALL)], [Party("h:2", ALL)], [], [], [], [ALL], ALL)
    reproduce = command_line("parity", "vllm", "sglang", set=SENTENCES, fault=f"--hf_token {PLANTED[0].value}")
    return Verdict(
        "parity",
        "DIVERGENT",
        1,
        f"{SENTENCES[0]} {IN_VARIABLE}",  # a first line has few words
        [finding],
        [Cause("UNEXPLAINED", "unknown", ALL, ALL, {"x": ALL})],
        [finding],
        SENTENCES,
        {"engine": ALL},
        {"f": ALL},
        body,
        waits,
        reproduce,
        {"run": f"/runs/{PLANTED[2].text}"},
        evidence=[*SENTENCES, IN_VARIABLE],
    )


@pytest.mark.slow
def test_a_verdict_in_every_format(job: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = written(verdict_with_secrets(), tmp_path)
    for format in names("parity"):
        (tmp_path / f"stdout.{format}").write_text(reports.render(verdict, format))
    assert cli.main(["report", str(tmp_path)]) == 1
    (tmp_path / "stdout").write_text("".join(capsys.readouterr()))
    for number, sentence in enumerate(SOME):
        (tmp_path / f"reason-{number}").write_text(reports.render(Verdict("parity", "DIVERGENT", 1, sentence), "text"))
    assert_clean(tmp_path, 8 + len(SOME))
    assert '"max_tokens": 512' in (tmp_path / "verdict.json").read_text()


@pytest.mark.night
@pytest.mark.slow
def test_a_verdict_file_of_a_stranger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict.json that another version or another hand wrote is scrubbed when it is shown."""
    data = dataclasses.asdict(verdict_with_secrets())
    (tmp_path / "verdict.json").write_text(json.dumps(data, default=str))
    for format in names("parity"):
        cli.main(["report", str(tmp_path), "--format", format])
    shown = "".join(capsys.readouterr())
    assert len(shown) > 1_000 and not [value for value in leaks(shown) if value != IN_VARIABLE]


def test_the_command_that_makes_a_verdict_again_still_runs() -> None:
    same = command_line(
        "parity", "vllm", "sglang", set=["trainer.wandb_key=abc12345", "sampling.max_tokens=64"], steps=2
    )
    assert same == "harness parity vllm sglang --set 'trainer.wandb_key=***' --set sampling.max_tokens=64 --steps 2"


@pytest.mark.slow
def test_what_the_command_line_says_itself(
    job: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a sentence begins with GET, which is a program where libwww-perl is
    for sentence in SOME:
        cli.main(["run", sentence])
        cli.main(["diff", sentence, f"/{IN_VARIABLE}"])
        cli.main(["watch", "--", sentence])
        cli._tell(RuntimeError(sentence), [])
    shown = "".join(capsys.readouterr())
    assert shown.count("harness: ") >= 4 * len(SOME) and not leaks(shown)


@pytest.mark.slow
def test_the_doctor_and_progress(job: None, tmp_path: Path) -> None:
    from rich.console import Console

    from reports.progress import progress

    hazard = Hazard("proxy", "error", ALL, ALL, ALL, f"curl -u me:{PLANTED[0].value} x", ("here",))
    report = Report([hazard], [], [], ["here"], 1.0, reproduce=ALL)  # type: ignore[arg-type]
    console = Console(file=io.StringIO(), width=200)
    TextRenderer().show(report, console, verbose=True)
    (tmp_path / "md").write_text(reports.render(report, "md"))
    (tmp_path / "json").write_text(report.to_json())
    with progress(console) as view:
        for sentence in SENTENCES:
            view.update(ProgressEvent("baseline", "vllm", message=sentence, phase=sentence))
    (tmp_path / "terminal").write_text(console.file.getvalue())  # type: ignore[attr-defined]
    assert_clean(tmp_path, 3)


@pytest.mark.slow
def test_a_recorded_run_in_a_few_words(tmp_path: Path) -> None:
    """Also of a run.json that another framework wrote."""
    start(tmp_path, role="trainer").close()
    (tmp_path / "run.json").write_text(json.dumps({"format_version": 1, "command": ALL, "backend": ALL}))
    assert not any(leaks(reports.render(RecordedRun.of(tmp_path), format)) for format in ("text", "md", "json"))


@pytest.mark.slow
def test_a_watched_command(job: None, tmp_path: Path) -> None:
    """run.json, journals and beats of a real watched process; nothing that we print shows its command's secrets."""
    program = "import torch.distributed, time; time.sleep(2.5); raise RuntimeError(__import__('sys').argv[1])"
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("harness")),
            "watch",
            "--out",
            str(tmp_path / "watch"),
            "--",
            sys.executable,
            "-c",
            program,
            *SENTENCES,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        timeout=120,
    )
    assert done.returncode == 1 and (tmp_path / "watch" / "run.json").exists(), done.stderr
    assert_clean(tmp_path, 3)
    ours = [line for line in done.stderr.splitlines() if line.startswith("harness:")]
    assert not leaks("\n".join(ours))
    assert collectives is not None
