"""Evidence of real processes in the states that blind other tools: each is had within the deadline, or noted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from harness.errors import BadInput
from harness.triage import directory
from harness.triage.collect import Scope, collect, live, proc, ray, recorder, stacks
from harness.triage.evidence import Evidence, Process

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[bytes]]
DEADLINE_S = 8.0
PATIENT_S = 40.0  # where a test is about what is had, not when: other tests may keep this machine busy
SLACK_S = 5.0  # of a process that does not get a core
HELD = "import ctypes; ctypes.PyDLL(None).sleep(3000)"  # PyDLL keeps the interpreter lock
GLOO = """
import os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
open(f"{sys.argv[1]}.{rank}", "w").close()
if rank == 0:
    dist.all_reduce(torch.ones(3))
else:
    time.sleep(3000)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process, or Python code, that is ended when the test ends."""
    running: list[subprocess.Popen[bytes]] = []

    def run(*command: str, env: dict[str, str] | None = None, **options: object) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", *command] if "\n" in command[0] or ";" in command[0] else list(command)
        environ = {**os.environ, **(env or {})}
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
        running.append(process)
        return process

    yield run
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


def settled(process: subprocess.Popen[bytes], function: str = "<module>") -> None:
    """Wait until the main thread of a Python process is in `function`, past the imports."""

    def there() -> bool:
        threads = stacks.dump(process.pid).threads
        return bool(threads) and threads[0].frames[:1] != () and threads[0].frames[0].function == function

    until(there)


def taken(scope: Scope, out: Path, deadline_s: float = DEADLINE_S, **options: object) -> Evidence:
    """Collect, and hold it to its deadline and to its directory."""
    began = time.monotonic()
    evidence = collect(scope, out=out, deadline_s=deadline_s, **options)  # type: ignore[arg-type]
    assert time.monotonic() - began < deadline_s + SLACK_S
    assert directory.read(out) == evidence
    return evidence


def of(evidence: Evidence, pid: int) -> Process:
    [process] = [one for one in evidence.processes if one.pid == pid]
    return process


def test_a_sleeper_a_held_lock_a_stopped_process_and_a_program(start: Start, tmp_path: Path) -> None:
    asleep = start("import time; time.sleep(3000)")
    held = start(HELD)
    stopped = start("import time; time.sleep(3000)")
    program = start("sleep", "3000")
    busy = start("n = 0\nwhile True: n += 1")
    for process in (asleep, held, stopped, busy):
        settled(process)
    os.kill(stopped.pid, signal.SIGSTOP)
    ended = start("import sys; sys.exit(3)")
    until(lambda: proc.look(ended.pid).state == "Z")
    gone = start("true")
    gone.wait()
    everyone = tuple(one.pid for one in (asleep, held, stopped, program, busy, ended, gone))
    evidence = taken(Scope(everyone), tmp_path / "evidence", PATIENT_S)
    assert {process.pid for process in evidence.processes} == set(everyone)
    host = socket.gethostname()

    sleeper = of(evidence, asleep.pid)
    assert (sleeper.host, sleeper.role, sleeper.ppid) == (host, "process", os.getpid())
    assert [sample.state for sample in sleeper.samples] == ["S", "S"]
    assert sleeper.samples[0].at_s < sleeper.samples[1].at_s
    assert sleeper.samples[0].threads[0].frames[0].function == "<module>"
    assert any("sleep" in frame.function for thread in sleeper.native for frame in thread.frames)
    assert sleeper.notes == ()

    lock = of(evidence, held.pid)
    assert lock.samples[1].threads[0].gil and not lock.samples[1].threads[0].active
    assert not sleeper.samples[1].threads[0].gil
    assert any("sleep" in frame.function for thread in lock.native for frame in thread.frames)

    halted = of(evidence, stopped.pid)
    assert [sample.state for sample in halted.samples] == ["T", "T"]
    assert halted.samples[1].threads[0].frames[0].function == "<module>"
    assert halted.native == () and "cannot be stopped" in " ".join(halted.notes)
    assert proc.look(stopped.pid).state == "T", "a process is left as it was found"
    assert proc.look(asleep.pid).state == "S"

    assert of(evidence, program.pid).samples[1].threads == ()
    assert of(evidence, program.pid).notes == ("not a Python process: no Python stacks",)
    worker = of(evidence, busy.pid)
    assert worker.samples[1].cpu_s > worker.samples[0].cpu_s
    assert sleeper.samples[1].cpu_s - sleeper.samples[0].cpu_s < 0.1

    zombie = of(evidence, ended.pid)
    assert (zombie.samples[0].state, zombie.exit_code) == ("Z", 3)
    assert of(evidence, gone.pid).samples[0].state == "gone"
    assert of(evidence, gone.pid).notes == (f"no process {gone.pid} is on this host: it has ended, or runs elsewhere",)


def test_no_secret_reaches_the_directory(start: Start, tmp_path: Path) -> None:
    secret = "s3cr3tvalue"
    env = {
        "HF_TOKEN": secret, "NCCL_SECRET_KEY": secret, "MY_PLAIN_NAME": f"{secret}x", "RANK": "1", "WORLD_SIZE": "4",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"env_vars": {"X": secret}}), "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": f"user:{secret}@host",
    }  # fmt: skip
    code = f"password = '{secret}'; import time; time.sleep(3000)"
    argv = [f"--token={secret}", "--api-key", secret, f"https://me:{secret}@host/", "--lr", "0.1"]
    process = start(code, *argv, env=env)
    settled(process)
    evidence = taken(Scope((process.pid,)), tmp_path / "evidence", PATIENT_S)
    found = of(evidence, process.pid)
    assert found.samples[1].threads, "otherwise locals were not even at risk"
    assert (found.rank, found.world_size, evidence.expected_world) == (1, 4, 4)
    assert found.environ["NCCL_DEBUG"] == "INFO" and "--lr 0.1" in found.command
    files = [file for file in (tmp_path / "evidence").rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert secret.encode() not in file.read_bytes(), file


POLLS = """
import os, threading, time

ITEMS = []


def fill():
    ITEMS.append(1)
    raise ValueError("no prompts")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.2)


def main():
    threading.Thread(target=fill, name="fill").start()
    wait_for(os.environ["SCORE"])


main()
"""


def test_what_a_loop_looks_for_its_maker_and_a_dead_thread_are_collected(start: Start, tmp_path: Path) -> None:
    program, log, score = tmp_path / "train.py", tmp_path / "log", str(tmp_path / "score.json")
    program.write_text(POLLS)
    maker = start(f"import time; time.sleep(3000); open({score!r}, 'w')")
    with log.open("w") as stream:
        poller = subprocess.Popen([sys.executable, str(program)], env={**os.environ, "SCORE": score}, stderr=stream)
    try:
        settled(poller, "wait_for")
        until(lambda: "ValueError" in log.read_text())
        evidence = taken(Scope((poller.pid,)), tmp_path / "evidence", PATIENT_S)
        process = of(evidence, poller.pid)
        assert process.sought == (score,)
        assert [(lost.name, lost.error) for lost in process.lost_threads] == [("fill", "ValueError: no prompts")]
        assert {each.pid: each.exact for each in evidence.makers}[maker.pid]
    finally:
        poller.kill()
        poller.wait()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become nobody")
def test_another_users_process_is_a_note_that_says_what_to_do(start: Start, tmp_path: Path) -> None:
    victim = start("import time; time.sleep(3000)")
    settled(victim)
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    out = tmp_path / "evidence"
    code = (
        "import sys; from pathlib import Path; from harness.triage.collect import Scope, collect; "
        "collect(Scope((int(sys.argv[1]),)), out=Path(sys.argv[2]), gap_s=0.2)"
    )
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", sys.executable, "-c"]
    done = subprocess.run(
        [*nobody, code, str(victim.pid), str(out)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    if "Permission denied" in done.stderr and "harness" not in done.stderr:
        pytest.skip("nobody cannot run this interpreter")
    assert done.returncode == 0, done.stderr
    evidence = directory.read(out)
    process = of(evidence, victim.pid)
    assert process.samples[0].state == "S" and process.samples[0].threads == ()
    notes = " ".join(process.notes)
    assert "ptrace is not permitted" in notes and "SYS_PTRACE" in notes and "another user" in notes


def test_two_ranks_of_which_one_waits(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = tmp_path / "watch"
    watched.mkdir()
    script = tmp_path / "train.py"
    script.write_text(GLOO)
    store = str(tmp_path / "store")
    paths = os.pathsep.join((str(ROOT / "probes" / "site"), str(ROOT)))
    env = {"RLHF_HARNESS_WATCH": str(watched), "PYTHONPATH": paths, "WORLD_SIZE": "2"}
    ranks = [start(sys.executable, str(script), store, env={**env, "RANK": str(rank)}) for rank in (0, 1)]
    beats = [watched / "beats" / f"{process.pid}.json" for process in ranks]
    until(lambda: all(Path(f"{store}.{rank}").exists() for rank in (0, 1)))
    until(lambda: all(file.exists() and '"socket":"/' in file.read_text() for file in beats))
    until(lambda: '"sequences":{"0":2}' in beats[0].read_text() and '"sequences":{"0":1}' in beats[1].read_text())
    settled(ranks[1])

    evidence = taken(live(str(watched)), tmp_path / "evidence", PATIENT_S, native=False)
    waiting, other = (of(evidence, process.pid) for process in ranks)
    assert [(one.rank, one.world_size) for one in (waiting, other)] == [(0, 2), (1, 2)]
    assert "all_reduce" in [frame.function for frame in waiting.samples[1].threads[0].frames]
    assert waiting.beat and waiting.beat.sequences["0"] == 2 and other.beat and other.beat.sequences["0"] == 1
    assert waiting.journal and [group.members for group in waiting.journal.groups] == [(0, 1)]
    for process, entries in ((waiting, 2), (other, 1)):
        dump = json.loads((tmp_path / "evidence" / process.dump).read_text())
        assert len(dump["entries"]) == entries
        assert process.journal and dump["entries"][0]["process_group"][0] == process.journal.groups[0].name
    assert evidence.expected_world == 2

    with monkeypatch.context() as without:  # where ptrace is not permitted the process is asked itself
        without.setattr(stacks, "dump", lambda pid, **_: stacks.Stacks(note="ptrace is not permitted", denied=True))
        inside = of(taken(live(str(watched)), tmp_path / "inside", PATIENT_S), ranks[0].pid)
        assert "all_reduce" in [frame.function for frame in inside.samples[1].threads[0].frames]
        assert inside.notes == ("ptrace is not permitted",) and inside.samples[1].threads[0].main
        without.setattr(recorder, "traceback", lambda path, **_: stacks.Stacks(note="silent"))
        beaten = of(taken(live(str(watched)), tmp_path / "beaten", PATIENT_S), ranks[0].pid)
        assert beaten.samples[1].threads[0].frames[0].function == "all_reduce"
        assert "its stack is the heartbeat's" in " ".join(beaten.notes)

    os.kill(ranks[1].pid, signal.SIGSTOP)
    both = Scope(tuple(one.pid for one in ranks), watched)
    evidence = taken(both, tmp_path / "stopped", PATIENT_S, stall_s=3.0, native=False)
    assert evidence.source == "watch" and evidence.stall_s == 3.0
    stopped = of(evidence, ranks[1].pid)
    assert stopped.dump == "" and "worker server is silent for 2 s" in " ".join(stopped.notes)
    assert of(evidence, ranks[0].pid).dump, "the other rank's recorder answers all the same"

    os.kill(ranks[1].pid, signal.SIGKILL)
    ranks[1].wait()
    evidence = taken(live(str(watched)), tmp_path / "dead", native=False)
    dead = of(evidence, ranks[1].pid)
    assert (dead.samples[0].state, dead.rank, dead.role) == ("gone", 1, "process")
    assert dead.journal and not dead.journal.closed and dead.beat and not dead.beat.ended


RAY = """
import os, sys, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
@ray.remote
class Engine:
    def generate(self):
        time.sleep(3000)
    def refuse(self):
        raise ValueError("no such tensor, token=s3cr3tvalue")
@ray.remote
class Trainer:
    def __init__(self, engine):
        self.engine = engine
    def step(self):
        return ray.get(self.engine.generate.remote())
@ray.remote
class Stillborn:
    def __init__(self):
        os._exit(3)
engine = Engine.options(name="rollout").remote()
trainer = Trainer.remote(engine)
refused = engine.refuse.remote()
dead = Stillborn.remote()
step = trainer.step.remote()
ray.wait([refused])
open(sys.argv[1], "w").write(ray.get_runtime_context().gcs_address)
ray.get(step)
"""


@pytest.mark.night
def test_a_ray_cluster_without_a_dashboard(start: Start, tmp_path: Path) -> None:
    script, ready = tmp_path / "job.py", tmp_path / "ready"
    script.write_text(RAY)
    job = start(sys.executable, str(script), str(ready))
    family: list[int] = []
    try:
        until(lambda: ready.exists() and ready.read_text() != "")
        address = ready.read_text()
        family = proc.descendants((job.pid,), proc.parents())

        def known(*wanted: tuple[str, str]) -> bool:
            there = {(task.name, task.state) for task in ray.state(address, timeout_s=60).tasks}
            return set(wanted) <= there

        until(lambda: known(("Engine.generate", "RUNNING"), ("Engine.refuse", "FAILED")))
        # Ray's answer takes a second of CPU, which this machine may not have within the usual deadline.
        evidence = taken(Scope((job.pid,)), tmp_path / "evidence", PATIENT_S, nodes=False)
        assert not [note for note in evidence.notes if "Ray" in note]
        roles = {process.role: process for process in evidence.processes}
        assert {"driver", "Engine", "Trainer"} <= set(roles)
        assert not {"raylet", "gcs_server", "IDLE", "DashboardAgent"} & set(roles)
        # By program: a worker that has just been started has its raylet's name among its arguments.
        assert not {Path(one.command.split()[0]).name for one in evidence.processes} & {"raylet", "gcs_server"}
        actors = {actor.name: actor for actor in evidence.ray_actors}
        assert (actors["rollout"].state, actors["rollout"].pid) == ("ALIVE", roles["Engine"].pid)
        assert actors["Stillborn"].state == "DEAD" and "died" in actors["Stillborn"].death
        tasks = {task.name: task for task in evidence.ray_tasks}
        waits = tasks["Engine.generate"]
        assert (waits.state, waits.pid, waits.caller_pid) == ("RUNNING", roles["Engine"].pid, roles["Trainer"].pid)
        assert tasks["Trainer.step"].caller_pid == job.pid and waits.age_s > 0
        assert "no such tensor, token=***" in tasks["Engine.refuse"].error
        assert all(process.samples[1].threads for process in roles.values())

        by_address = taken(live(address), tmp_path / "address", PATIENT_S, nodes=False, native=False)
        assert {one.pid for one in by_address.processes} >= {one.pid for one in roles.values()}

        folder = tmp_path / "nodes"
        folder.mkdir()
        options = {"gap_s": 0.2, "native": False, "nodes": False, "deadline_s": 6.0}
        assert ray.other_nodes(address, folder, here="", timeout_s=600, options=options) == {}
        [part] = folder.iterdir()
        elsewhere = directory.read(part)
        assert {roles["Engine"].pid, roles["Trainer"].pid} <= {one.pid for one in elsewhere.processes}
        assert not [one for one in elsewhere.processes if "harness" in one.command]

        [gcs] = [pid for pid in family if "".join(proc.arguments(pid)[:1]).endswith("/gcs_server")]
        os.kill(gcs, signal.SIGSTOP)
        wedged = taken(Scope((job.pid,)), tmp_path / "wedged")
        assert any("no Ray state from" in note for note in wedged.notes)
        assert of(wedged, roles["Engine"].pid).samples[1].threads, "a wedged GCS blinds Ray's own state only"
    finally:
        for pid in reversed(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_busy_machine_keeps_the_deadline(start: Start, tmp_path: Path) -> None:
    for _ in range(os.cpu_count() or 1):
        start("n = 0\nwhile True: n += 1")
    everyone = [start("import json, time; time.sleep(3000)") for _ in range(8)]
    for process in everyone:
        settled(process)
    evidence = taken(Scope(tuple(process.pid for process in everyone)), tmp_path / "evidence")
    assert len(evidence.processes) == 8
    for process in evidence.processes:  # on a machine that is busier still, what is missing is named
        assert process.samples and (all(sample.threads for sample in process.samples) or process.notes)


def test_what_is_not_there_is_a_sentence(start: Start, tmp_path: Path) -> None:
    gone = start("true")
    gone.wait()
    with pytest.raises(BadInput, match=f"no process {gone.pid} on this host"):
        live(str(gone.pid))
    with pytest.raises(BadInput, match="is not a run"):
        live(str(tmp_path))
    with pytest.raises(BadInput, match="is neither a process id, a file, a directory nor a Ray address"):
        live("tomorrow")
    with pytest.raises(BadInput, match=r"nothing answers at 127\.0\.0\.1:1:"):
        live("127.0.0.1:1")
    assert live(f"{os.getpid()}, {gone.pid}") == Scope((os.getpid(), gone.pid))
