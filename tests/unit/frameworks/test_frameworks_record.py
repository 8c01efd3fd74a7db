"""`harness record`: a small framework's job under its hooks, in processes of its own, as a user would start it."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import probes
from harness import cli
from harness.errors import BadInput
from harness.exit_codes import NOT_RECORDED
from harness.frameworks import recording
from harness.frameworks.argv import Start
from harness.frameworks.detection import detect, refuse_unhooked
from harness.frameworks.record import record
from harness.frameworks.recording import finish, lines, unrecorded
from harness.frameworks.spec import frameworks
from harness.program import CommandNotRun
from probes.format import INDEX, Flat, Ragged, Run, write_manifest
from probes.heartbeat import Heartbeat
from probes.install import start
from probes.lines import decode_line, encode_events

# A `trl` of a few lines, so that the real table and the real way into a process are what is tested.
TRAINER = """
class State:
    global_step = 0

class GRPOTrainer:
    state = State()
    def __init__(self):
        self.model = None
    def _generate(self, prompts):
        return self._generate_single_turn(prompts)
    def _generate_single_turn(self, prompts):
        return [prompt + [7] for prompt in prompts]
    def training_step(self, model, inputs, num_items_in_batch):
        return 0.5
"""


def job(folder: Path, body: str, version: str = "1.16.0") -> tuple[list[str], dict[str, str]]:
    """(command, environment) of a script that imports that `trl`."""
    site = folder / "site"
    (site / "trl" / "trainer").mkdir(parents=True)
    (site / "trl" / "__init__.py").write_text("")
    (site / "trl" / "trainer" / "__init__.py").write_text("")
    (site / "trl" / "trainer" / "grpo_trainer.py").write_text(TRAINER)
    info = site / f"trl-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    script = folder / "train.py"
    script.write_text("import trl\nfrom trl.trainer.grpo_trainer import GRPOTrainer\n" + textwrap.dedent(body))
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    return [sys.executable, str(script)], {**bare, "PYTHONPATH": str(site)}


@pytest.mark.slow
def test_a_job_is_recorded_and_says_which_hooks_fired(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
        trainer = GRPOTrainer()
        print(trainer._generate([[1], [2]]), trainer.training_step(None, None, 1))
        raise SystemExit(7)
    """
    command, environ = job(tmp_path, body)
    said: list[str] = []
    result = record(command, out=tmp_path / "run", say=said.append, environ=environ)
    assert result.exit_code == 7 and capfd.readouterr().out == "[[1, 7], [2, 7]] 0.5\n"
    run = Run(tmp_path / "run")
    assert run.complete and run.manifest["framework"] == "trl" and run.manifest["exit_code"] == 7
    trainer = "trl.trainer.grpo_trainer:GRPOTrainer"
    hooks = run.manifest["hooks"]
    assert hooks["fired"] == {
        f"{trainer}.{name}": 1 for name in ("__init__", "_generate", "_generate_single_turn", "training_step")
    }  # fmt: skip
    assert f"{trainer}._calculate_rewards" in hooks["moved"]  # this trl has none
    assert hooks["never"]["transformers.trainer:Trainer.train"] == ""  # every job should have called it
    assert f"{trainer}._generate" in hooks["off"]  # and its reader found no model: the job went on
    text = "\n".join(said)
    assert f"1 × {trainer}._generate_single_turn" in text and f"moved   {trainer}._calculate_rewards" in text
    assert f"off     {trainer}._generate" in text and "every job should have called it" in text
    assert any(one.startswith("configuration: no process recorded") for one in run.manifest["missing"])
    assert {event["role"] for event in run.events("open")} == {"trainer"}


RLOO = """
class _BaseTrainer: ...
class RLOOTrainer(_BaseTrainer): ...
class GMPOTrainer(GRPOTrainer): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(("body", "refused"), [
    ("from trl import RLOOTrainer as Other\nOther().train()", "RLOOTrainer"),
    ("import trl.trainer.rloo\ntrl.trainer.rloo.RLOOTrainer().train()", "RLOOTrainer"),
    ("from trl import RLOOTrainer\nclass Mine(RLOOTrainer): ...", "RLOOTrainer"),
    # Any of these may be the one with hooks, or another's.
    ("from trl import GMPOTrainer\nGMPOTrainer()", ""), ("from trl import RLOOTrainer\nRLOOTrainer", ""),
    ("from trl import GRPOTrainer, RLOOTrainer\nGRPOTrainer()\nRLOOTrainer()", ""),
    ("from mine import RLOOTrainer\nRLOOTrainer()", ""), ("from trl import NewTrainer\nNewTrainer()", ""),
    ("def broken(", ""),
])  # fmt: skip
def test_a_trainer_that_no_hook_reaches_is_refused_before_its_job_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, refused: str
) -> None:
    command, environ = job(tmp_path, "")
    (tmp_path / "site" / "trl" / "trainer" / "rloo.py").write_text(RLOO)
    Path(command[1]).write_text(body)
    started = detect(command, "trl", environ)
    if not refused:
        refuse_unhooked(started, command, environ)
        return
    with pytest.raises(BadInput, match=f"no hook of trl reaches {refused}:") as raised:
        refuse_unhooked(started, command, environ)
    assert raised.value.fix.startswith(f"harness watch -- {command[0]} ")


def test_the_command_that_refuses_a_trainer_ends_with_2_and_records_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, environ = job(tmp_path, "")
    (tmp_path / "site" / "trl" / "trainer" / "rloo.py").write_text(RLOO)
    Path(command[1]).write_text("from trl import RLOOTrainer\nRLOOTrainer().train()\nraise SystemExit(7)\n")
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    assert cli.main(["record", "--out", str(tmp_path / "run"), "--", *command]) == 2
    assert "RLOOTrainer" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("entry", "refused"), [("openrlhf.cli.train_dpo", True), ("openrlhf.cli.train_ppo_ray", False)]
)
def test_openrlhfs_hooks_are_on_ppos_trainer(entry: str, refused: bool) -> None:
    start = Start(entry, ("python", "-m"), ())
    assert bool(frameworks()["openrlhf"].unhooked(start, (), None)) == refused


PLUGIN = """
from probes.adapters.imports import Finder

def imported(module):
    original = module.GRPOTrainer._generate_single_turn
    module.GRPOTrainer._generate_single_turn = lambda self, prompts: original(self, [*prompts, [5]])

Finder({"trl.trainer.grpo_trainer"}, imported).install()
"""


@pytest.mark.slow
def test_a_plugin_changes_the_job_and_the_hooks_see_what_it_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command, environ = job(tmp_path, "print(GRPOTrainer()._generate([[1]]))")
    (tmp_path / "site" / "changes.py").write_text(PLUGIN)
    record(command, out=tmp_path / "run", environ={**environ, "RLHF_HARNESS_PLUGIN": "changes"})
    assert capfd.readouterr().out == "[[1, 7], [5, 7]]\n"
    fired = Run(tmp_path / "run").manifest["hooks"]["fired"]
    assert fired["trl.trainer.grpo_trainer:GRPOTrainer._generate_single_turn"] == 1


@pytest.mark.slow
def test_a_plugin_that_is_not_there_is_said_and_the_job_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command, environ = job(tmp_path, "print(GRPOTrainer()._generate([[1]]))")
    record(command, out=tmp_path / "run", environ={**environ, "RLHF_HARNESS_PLUGIN": "nowhere.at_all"})
    assert capfd.readouterr().out == "[[1, 7]]\n"
    [failed] = (tmp_path / "run" / "beats").glob("*.failed")
    assert "nowhere" in json.loads(failed.read_text())["failed"]


@pytest.mark.slow
def test_a_job_that_the_probes_do_not_reach_is_said(tmp_path: Path) -> None:
    command, environ = job(tmp_path, "print('on its own')")
    said: list[str] = []
    result = record([command[0], "-I", *command[1:]], out=tmp_path / "run", say=said.append, environ=environ)
    assert result.exit_code == 1  # -I takes its own PYTHONPATH from it as well
    assert any("-I" in line for line in said)
    assert "no process of the job loaded the probes" in result.unrecorded
    assert any(line.startswith(f"nothing to judge was recorded: {result.unrecorded}") for line in said)


@pytest.mark.slow
def test_a_job_whose_env_sets_the_path_is_recorded(tmp_path: Path) -> None:
    command, environ = job(tmp_path, "GRPOTrainer()._generate([[1]])")
    site = environ.pop("PYTHONPATH")
    record(["env", f"PYTHONPATH={site}", *command], out=tmp_path / "run", environ=environ)
    assert "trl.trainer.grpo_trainer:GRPOTrainer._generate" in Run(tmp_path / "run").manifest["hooks"]["fired"]


@pytest.mark.slow
def test_the_fix_for_a_module_of_this_folder_records_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine.py", "scripts/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import mine\n" if "/" in name else "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    words = ["watch", "--out", "run", "--", sys.executable, "scripts/train.py"]
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    assert cli.main(words) == 1
    fix = capfd.readouterr().err.partition("; fix: ")[2].splitlines()[0]
    assert cli.main(shlex.split(fix)[1:]) == 0


ROLLOUT = """
import os
from probes.install import start
with start(os.environ["RLHF_HARNESS_WATCH"], role="trainer") as recorder:
    recorder.frame("rollout", step=0, arrays={})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("body", "why"), [("GRPOTrainer()", "the hooks of trl recorded no rollout"), (ROLLOUT, "")])
def test_a_job_that_ended_well_without_rollouts_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    command, environ = job(tmp_path, body)
    environ["PYTHONPATH"] += f"{os.pathsep}{Path(probes.__file__).parents[1]}"
    result = record(command, out=tmp_path / "run", environ=environ)
    assert result.exit_code == 0 and result.unrecorded.startswith(why) and bool(result.unrecorded) is bool(why)
    monkeypatch.setattr("harness.frameworks.record.record", lambda *words, **options: result)
    assert cli.main(["record", "--", "true"]) == (NOT_RECORDED if why else 0)


@pytest.mark.slow
def test_a_broken_table_does_not_break_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command, environ = job(tmp_path, "print(GRPOTrainer()._generate([[1]]))")
    told = {
        **environ,
        "RLHF_HARNESS_ADAPTER": "probes.adapters.nobody:trl",
        "RLHF_HARNESS_WATCH": str(tmp_path / "run"),
    }
    from harness.triage.watch.watched_command import watch

    result = watch(command, stall_s=None, out=tmp_path / "run", environ=told)
    assert result.exit_code == 0 and capfd.readouterr().out == "[[1, 7]]\n"
    [failed] = (tmp_path / "run" / "beats").glob("*.failed")
    assert "nobody" in json.loads(failed.read_text())["failed"]


@pytest.mark.slow
def test_a_script_that_is_not_there_is_said_before_a_framework_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nosuch\.py: no such file"):
        record(["python", str(tmp_path / "nosuch.py")], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_program_that_is_not_there_is_said_before_a_framework_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(CommandNotRun) as refused:
        record(["nosuch", "--steps", "3"], out=tmp_path / "run")
    assert refused.value.exit_code == 127 and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_empty_command_and_a_used_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no command to record"):
        record([])
    command, environ = job(tmp_path, "")
    record(command, out=tmp_path / "run", environ=environ)
    with pytest.raises(BadInput, match="another recording"):
        record(command, out=tmp_path / "run", environ=environ)


def killed(folder: Path, *, torn: bool) -> None:
    """A recording whose process was ended by a signal, as Ray ends its actors."""
    write_manifest(folder, {})
    pid = os.fork()
    if pid == 0:
        rec = start(folder, role="rollout")
        rec.frame("rollout", step=0, arrays={"sample": Flat.of([1], "i8"), "output": Ragged.of([[5]], "i4")})
        os._exit(9)
    os.waitpid(pid, 0)
    if torn:
        [file] = (folder / "events").iterdir()
        file.write_bytes(file.read_bytes() + b'{"seq":2,')


def test_a_process_that_its_succeeded_job_ended_is_whole(tmp_path: Path) -> None:
    killed(tmp_path / "good", torn=False)
    assert Run(tmp_path / "good").incomplete
    finish(tmp_path / "good", frameworks()["trl"].adapter, 0)
    run = Run(tmp_path / "good")
    [close] = run.events("close")
    assert run.complete and close["frames"] == 1 and close["ended"]
    assert run.indexed and (tmp_path / "good" / INDEX).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("torn", "code"), [(True, 0), (False, 1)])
def test_a_torn_or_failed_one_is_not(tmp_path: Path, torn: bool, code: int) -> None:
    killed(tmp_path / "run", torn=torn)
    finish(tmp_path / "run", frameworks()["trl"].adapter, code)
    run = Run(tmp_path / "run", strict=False)
    assert run.incomplete and run.indexed and not (tmp_path / "run" / INDEX).exists()


@pytest.mark.slow
@pytest.mark.parametrize("beats_on", [False, True])
def test_a_process_of_another_node_has_ended_when_it_beats_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats_on: bool
) -> None:
    killed(tmp_path / "run", torn=False)
    [file] = (tmp_path / "run" / "events").iterdir()
    opening, *others = [decode_line(line) for line in file.read_bytes().splitlines(keepends=True)]
    assert opening["host"] == os.uname().nodename
    file.write_bytes(encode_events([opening | {"host": "node-2"}, *others]))
    pid = int(file.stem.rpartition("-")[2])
    heart = Heartbeat(tmp_path / "run")
    heart._fixed |= {"host": "node-2", "pid": pid}
    heart.beat()
    monkeypatch.setattr(recording.time, "sleep", lambda seconds: heart.beat() if beats_on else None)
    finish(tmp_path / "run", frameworks()["trl"].adapter, 0)
    assert bool(Run(tmp_path / "run", strict=False).incomplete) is beats_on
    heart.close()


@pytest.mark.slow
def test_where_a_job_goes_on_is_kept_in_its_run(tmp_path: Path) -> None:
    write_manifest(tmp_path / "run", {})
    for rank in range(2):
        with start(tmp_path / "run", role="trainer", rank=rank) as rec:
            rec.event("resume", step=4, path="/checkpoints/step-4")
    finish(tmp_path / "run", frameworks()["trl"].adapter, 0)
    assert Run(tmp_path / "run").manifest["resumed"] == {"step": 4, "path": "/checkpoints/step-4"}


def test_the_littlest_recording_says_that_no_hook_was_met(tmp_path: Path) -> None:
    killed(tmp_path / "run", torn=False)
    hooks = finish(tmp_path / "run", frameworks()["trl"].adapter, 0)
    trl = frameworks()["trl"].adapter
    assert hooks.processes == 0 and not [*lines(hooks, trl)] and unrecorded(hooks, trl) == ""  # it has a rollout
    assert set(hooks.silent) <= set(hooks.never) and hooks.silent


def test_a_runtime_environment_with_a_path_of_its_own_keeps_the_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(probes.__file__).parent / "site" / "rlhf_harness_ray.py"
    hook: dict[str, Any] = runpy.run_path(str(place))
    environment = hook["environment"]
    monkeypatch.setitem(environment.__globals__, "_FILE", str(tmp_path / "no cluster"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RLHF_HARNESS_WATCH", "/watch")
    plain = {"env_vars": {"A": "1"}}
    assert environment(plain) is plain  # a cluster of its own inherits what it needs
    given = environment({"env_vars": {"A": "1", "PYTHONPATH": "/mine"}})["env_vars"]
    assert given["PYTHONPATH"] == f"{place.parent}:/mine" and given["A"] == "1"
    monkeypatch.delenv("RLHF_HARNESS_WATCH")
    assert environment({"env_vars": {"PYTHONPATH": "/mine"}})["env_vars"] == {"PYTHONPATH": "/mine"}


def test_the_workers_of_a_cluster_that_is_named_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(probes.__file__).parent / "site" / "rlhf_harness_ray.py"
    environment = runpy.run_path(str(place))["environment"]
    monkeypatch.setitem(environment.__globals__, "_FILE", str(tmp_path / "no cluster"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RLHF_HARNESS_WATCH", "/watch")

    def init(address: str | None = None) -> Any:  # the name by which the hook knows ray.init
        return environment({})

    assert init("10.0.0.1:6379")["env_vars"]["RLHF_HARNESS_WATCH"] == "/watch"
    assert init() == {}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert init() and init("local") == {}, "a cluster of its own, whatever RAY_ADDRESS names"


def test_a_file_in_the_place_of_the_recording_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    command, environ = job(tmp_path, "raise SystemExit('started')")
    (tmp_path / "afile").touch()
    with pytest.raises(BadInput, match="afile") as refused:
        record(command, out=tmp_path / "afile", environ=environ)
    assert refused.value.fix == f"--out {tmp_path}/afile-2"
