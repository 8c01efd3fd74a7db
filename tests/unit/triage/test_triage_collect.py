"""Sources of evidence one by one, on what they read: no process is started and no time passes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInput
from harness.triage.collect import (
    beats,
    bounded,
    conduct,
    connections,
    gpus,
    journals,
    proc,
    ras,
    ray,
    recorder,
    redact,
    roles,
    scope,
    stacks,
)
from harness.triage.collect.draft import Draft
from harness.triage.evidence import Frame, Group, Process, Thread
from harness.triage.graph.subjects import load
from harness.triage.run import triage
from probes import limits
from probes.format import encode_json
from probes.install import start

SECRET = "s3cr3tvalue"


@pytest.mark.parametrize(
    "argv",
    [
        ["--token=" + SECRET], ["--api-key", SECRET], ["HF_TOKEN=" + SECRET], ["--wandb_api_key", SECRET, "--lr", "1"],
        [f"https://me:{SECRET}@host/path"], [f"me:{SECRET}@host"], ["-c", f"login(token='{SECRET}')"],
        ["-H", f"Authorization: Bearer {SECRET}"], [json.dumps({"db_password": SECRET})], ["--auth", SECRET],
        [f"hf_{SECRET}"], [f"sk-{SECRET}"], [f"MY_SECRET_THING={SECRET}"], ["--private.key", SECRET],
    ],
)  # fmt: skip
def test_secrets_leave_the_command_line(argv: list[str]) -> None:
    shown = redact.command(["python", "train.py", *argv, "--steps", "10"])
    assert SECRET not in shown and shown.startswith("python train.py") and shown.endswith("--steps 10")


def test_an_error_keeps_what_it_says() -> None:
    said = "KeyError: 'reward_model.score'; torch.cuda.AuthError: no such device"
    assert redact.text(said) == said
    assert SECRET not in redact.text(f"KeyError: 'x' with api_key={SECRET} and TokenError={SECRET}")


def test_what_is_no_secret_stays() -> None:
    argv = ["torchrun", "--nproc-per-node=2", "train.py", "--tokenizer=gpt2", "--lr", "1e-5", "http://host:8000/v1"]
    assert redact.command(argv) == " ".join(argv)
    assert redact.text("CUDA error: out of memory at engine.py:12") == "CUDA error: out of memory at engine.py:12"


def test_variables_say_the_rank_and_nothing_else() -> None:
    environ = {
        "RANK": "1", "NCCL_DEBUG": "INFO", "NCCL_AUTH_KEY": SECRET, "HOME": "/root", "HF_TOKEN": SECRET,
        "RAY_JOB_CONFIG_JSON_ENV_VAR": SECRET, "GLOO_SOCKET_IFNAME": "eth0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }  # fmt: skip
    kept = redact.variables(environ)
    assert kept == {
        "RANK": "1", "NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "eth0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"
    }  # fmt: skip
    assert redact.fields({"step": 3, "api_key": SECRET, "url": f"x://a:{SECRET}@b", "more": [{"token": SECRET}]}) == {
        "step": 3, "url": "x://b", "more": [{}],
    }  # fmt: skip


@given(st.text(max_size=200))
def test_no_text_is_too_strange_to_clean(text: str) -> None:
    redact.text(text).encode()
    redact.command(text.split(" ")).encode()


SPIED = [
    {"os_thread_id": 9, "thread_name": "pin", "active": True, "owns_gil": False,
     "frames": [{"name": "nanosleep", "filename": "libc.so.6", "module": "libc", "line": 0, "locals": None}]},
    {"os_thread_id": 7, "thread_name": "MainThread", "active": False, "owns_gil": True,
     "frames": [{"name": "step", "filename": "/home/me/train.py", "module": None, "line": 12, "locals": None}]},
]  # fmt: skip


def test_threads_of_py_spy() -> None:
    main, other = stacks.parse(SPIED, 7)
    assert main == Thread("MainThread", 7, (Frame("step", "/home/me/train.py", 12),), main=True, gil=True)
    assert other.native and other.active and not other.main
    long: Any = [{**SPIED[0], "frames": [{**SPIED[0]["frames"][0], "name": "x" * 9_999}] * 5_000}]  # type: ignore[index]
    [thread] = stacks.parse(long, 1)
    assert len(thread.frames) == stacks.MAX_FRAMES and len(thread.frames[0].function) == stacks.MAX_NAME


def test_a_thread_that_py_spy_met_twice_is_one() -> None:
    """While a pool starts: the main thread without a stack, and once more with it."""
    frames = [{"name": "select", "filename": "/usr/lib/python3.11/selectors.py", "line": 1}]
    bare = {"thread_name": "MainThread", "os_thread_id": 7, "frames": []}
    for dumped in ([bare, {**bare, "frames": frames}], [{**bare, "frames": frames}, bare]):
        [thread] = stacks.parse(dumped, 7)
        assert thread.main and thread.frames[0].function == "select"


@pytest.mark.parametrize("other", [{}, {"a": 1}, [{}], [1], [{"frames": [{}]}], None])
def test_what_is_not_py_spys_is_one_of_three_errors(other: Any) -> None:
    if other == {}:
        assert stacks.parse(other, 1) == ()
        return
    with pytest.raises((KeyError, TypeError, AttributeError)):
        stacks.parse(other, 1)


def test_what_py_spy_says_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stacks, "YAMA", tmp_path / "ptrace_scope")
    pid = 1
    denied = stacks.refused(pid, "Permission Denied: Try running again with elevated permissions by going 'sudo'")
    assert denied.denied and "ptrace is not permitted" in denied.note and "sysctl" not in denied.note
    (tmp_path / "ptrace_scope").write_text("1\n")
    assert "sudo sysctl kernel.yama.ptrace_scope=0" in stacks.refused(pid, "Operation not permitted").note
    assert "not a Python process" in stacks.refused(pid, "Error: Failed to find python version from target").note
    assert "weather" in stacks.refused(pid, "\nError: bad weather\nStack backtrace:").note
    assert not stacks.refused(pid, "").denied


def test_native_frames_are_wanted_where_python_does_not_explain_the_wait() -> None:
    def main(file: str, **more: bool) -> list[Thread]:
        return [Thread("MainThread", 7, (Frame("f", file, 1),), main=True, **more)]

    assert stacks.unexplained(main("/home/me/train.py"))
    assert not stacks.unexplained(main("/venv/site-packages/torch/distributed/distributed_c10d.py"))
    assert not stacks.unexplained(main("/usr/lib/python3.11/threading.py"))
    assert stacks.unexplained(main("/usr/lib/python3.11/threading.py", gil=True))
    assert not stacks.unexplained(main("/usr/lib/python3.11/threading.py", gil=True, active=True))
    assert not stacks.unexplained([])


def test_stacks_of_faulthandler_and_of_a_beat() -> None:
    text = (
        'Thread 0x00007f01 (most recent call first):\n  File "/x/wait.py", line 3 in wait\n'
        '  File "<string>", line ??? in run\n\n'
        'Current thread 0x00007f02 [main] (most recent call first):\n  File "/x/train.py", line 9 in step\n'
    )
    main, other = stacks.parse_faulthandler(text)
    assert main.main and main.frames == (Frame("step", "/x/train.py", 9),) and main.name == "main"
    assert [frame.line for frame in other.frames] == [3, 0] and not other.main
    assert stacks.parse_faulthandler("nothing") == ()
    [thread] = stacks.of_beat(("torch/distributed/distributed_c10d.py:3252 all_reduce", "train.py:9 <module>", "?"))
    assert thread.frames == (
        Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3252), Frame("<module>", "train.py", 9)
    )  # fmt: skip


BEAT = {
    "host": "h", "pid": 7, "start_ticks": 5, "rank": 1, "world_size": 2, "role": "actor", "t_ns": 9_000_000_000,
    "count": 3, "period_s": 1.0, "progress_ns": 4_000_000_000, "sequences": {"0": 17}, "breakpoint": False,
    "socket": "/tmp/x.sock", "wait": "collective", "stack": ["a.py:1 f"],
    "open": [{"name": "sync", "start_ns": 2_000_000_000, "fields": {"step": 3, "token": SECRET}}],
}  # fmt: skip


def block(beat: Any) -> bytes:
    return encode_json(beat).encode().ljust(4096)


def test_a_beat_with_its_ages() -> None:
    pulse = beats.parse(block(BEAT), 10_000_000_000)
    assert (pulse.host, pulse.pid, pulse.start_ticks) == ("h", 7, 5)
    assert (pulse.rank, pulse.world_size, pulse.role) == (1, 2, "actor")
    beat = pulse.beat
    assert (beat.age_s, beat.progress_age_s, beat.sequences, beat.wait) == (1.0, 6.0, {"0": 17}, "collective")
    [span] = beat.open_spans
    assert (span.name, span.age_s, span.fields) == ("sync", 8.0, {"step": 3})
    assert beats.parse(block({**BEAT, "rank": None, "open": None}), 0).rank is None


def test_a_beat_with_the_load_of_its_engine() -> None:
    state = {"running": 4.0, "waiting": 28.0, "kv_usage": 0.93, "t_ns": 3_000_000_000, "api_key": SECRET}
    beat = beats.parse(block({**BEAT, "states": {"engine": state}}), 10_000_000_000).beat
    engine = beat.states["engine"]
    assert (engine["running"], engine["waiting"], engine["kv_usage"], engine["age_s"]) == (4.0, 28.0, 0.93, 7.0)
    assert SECRET not in str(engine)
    process = Process("h", 7, beat=beat)
    assert load(process) == "engine: 4 requests running, 28 requests waiting, KV cache 93% full, 7 s ago"
    assert load(Process("h", 7)) == "" == load(Process("h", 7, beat=beats.parse(block(BEAT), 0).beat))


def test_damaged_beats_are_notes_and_the_watchdogs_is_none(tmp_path: Path) -> None:
    folder = tmp_path / beats.FOLDER
    folder.mkdir()
    (folder / "7.json").write_bytes(block(BEAT))
    (folder / "8.json").write_bytes(block(BEAT)[:100])
    (folder / "9.json").write_bytes(b"")
    (folder / "10.json").write_bytes(block([1]))
    (folder / "watchdog.json").write_bytes(b"{}")
    os.mkfifo(folder / "11.json")
    (folder / "12.json").write_bytes(block({**BEAT, "count": "?"}).replace(b'"?"', b"1e999"))
    (folder / "13.json").write_bytes(b'{"host":' * 5000)
    found, notes = beats.read(tmp_path, 10_000_000_000)
    assert list(found) == [("h", 7)]
    assert [note.split()[0] for note in notes] == [f"beats/{pid}.json" for pid in (10, 11, 12, 13, 8, 9)]
    assert beats.read(tmp_path / "nowhere", 0) == ({}, ())


HOST = socket.gethostname()


def recorded(path: Path, role: str = "rollout", filler: int = 0) -> Path:
    recorder = start(path, role=role, rank=0, world_size=1)
    recorder.event("group", name="default_pg", torch_name="0", backend="gloo", rank=1, world_size=2, members=[0, 1])
    for number in range(filler):
        recorder.event("note", text="x" * 200, number=number)
    with recorder.span("flush", step=3):
        pass
    recorder.event("call", name="generate", step=3, ok=True, message="", seconds=0.1)
    recorder.event("call", name="sync", step=3, ok=False, message=f"refused, token={SECRET}", seconds=0.1)
    with pytest.raises(RuntimeError), recorder.span("sync", step=3):
        raise RuntimeError("no such tensor")
    recorder.event("engine_stats", step=3, running=2, waiting=1)
    return recorder.path


@pytest.mark.slow
@pytest.mark.parametrize("filler", [0, 6_000])  # the second is longer than the tail
def test_the_end_of_a_journal(tmp_path: Path, filler: int) -> None:
    path = recorded(tmp_path, filler=filler)
    found, notes = journals.read([path], {HOST: time.monotonic_ns() + 5_000_000_000})
    [one] = found.values()
    assert notes == [] and (one.rank, one.world_size, one.roles) == (1, 2, ("rollout",))
    journal = one.journal
    assert journal.events == 8 + filler and 5.0 <= journal.last_age_s < 60 and not journal.closed
    assert journal.last_span == "sync" and journal.groups == (Group("0", (0, 1), "gloo", "default_pg", 2),)
    assert [(call.name, call.ok, call.step) for call in journal.calls] == [("generate", True, 3), ("sync", False, 3)]
    assert [text for _, text in journal.errors] == [
        f"sync: refused, token={redact.WITHHELD}", "sync: RuntimeError: no such tensor"
    ]  # fmt: skip
    assert journal.engine_stats == {"step": 3, "running": 2, "waiting": 1}


def test_a_journal_that_was_closed_with_an_error_has_it(tmp_path: Path) -> None:
    recorder = start(tmp_path, role="trainer", rank=0, world_size=1)
    recorder.close(ok=False, reason=f"OSError: refused, token={SECRET}")
    [one] = journals.read([recorder.path], {HOST: time.monotonic_ns()})[0].values()
    text = f"OSError: refused, token={redact.WITHHELD}"
    assert one.journal.closed and one.journal.closing_error == text
    assert [told for _, told in one.journal.errors] == [f"close: {text}"]


def test_on_another_host_ages_are_as_of_its_last_beat_or_event(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    [one] = journals.read([path], {"elsewhere": 0})[0].values()
    assert one.host == HOST and one.journal.last_age_s == 0.0 and one.journal.calls[0].age_s > 0.0
    [one] = journals.read([path], {HOST: time.monotonic_ns() + 7_000_000_000})[0].values()
    assert 7.0 <= one.journal.last_age_s < 60


@given(st.integers(0, 3_000), st.binary(max_size=40))
def test_a_damaged_journal_gives_what_it_can(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    whole = _whole(tmp_path_factory)
    damaged = whole.with_name("damaged.jsonl")
    data = whole.read_bytes()
    damaged.write_bytes(data[:at] + junk + data[at + len(junk) :])
    found, notes = journals.read([damaged], {})
    assert bool(found) != bool(notes)
    assert journals.owners([damaged], HOST)[0].keys() == found.keys()
    torn = whole.with_name("torn.jsonl")
    torn.write_bytes(data[: len(data) - at])
    journals.read([torn], {})


_cache: list[Path] = []


def _whole(factory: pytest.TempPathFactory) -> Path:
    if not _cache:
        _cache.append(recorded(factory.mktemp("journal")))
    return _cache[0]


def test_two_open_journals_of_a_process_are_read_as_one(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "watch", role="process"), recorded(tmp_path / "run", role="actor")
    [one] = journals.read([second, first], {HOST: time.monotonic_ns()})[0].values()
    assert one.roles == ("actor", "process") and len(one.journal.calls) == 4 and one.journal.events == 16


def facts(*argv: str, title: str = "", **environ: str) -> proc.Facts:
    return proc.Facts(7, argv=argv, title=title, environ=environ)


def test_roles() -> None:
    assert roles.role_of(facts("python", "train.py"), journal="actor", beat="Host") == "actor"
    assert roles.role_of(facts("python", "train.py"), journal="rollout", beat="rollout-1") == "rollout-1"
    assert roles.role_of(facts("python", "train.py"), beat="launcher", journal="process") == "launcher"
    assert roles.role_of(facts("ray::Worker.step", title="ray::Worker.step")) == "Worker"
    assert roles.role_of(facts("ray::Host.call", title="ray::Host.call"), actor="Trainer") == "Trainer"
    assert roles.role_of(facts("sglang::scheduler_TP0", title="sglang::scheduler_TP0")) == "scheduler"
    assert roles.role_of(facts("VLLM::EngineCore", title="VLLM::EngineCore")) == "enginecore"
    assert roles.role_of(facts("/venv/bin/python", "/venv/bin/torchrun", "train.py")) == "launcher"
    assert roles.role_of(facts("python", "-m", "torch.distributed.run", "train.py")) == "launcher"
    assert roles.role_of(facts("python", "-u", "train.py", RANK="0")) == "process"
    assert roles.role_of(facts("/bin/bash", "run.sh")) == "shell"
    assert roles.engine_of(facts("VLLM::EngineCore", title="VLLM::EngineCore")) == "vllm"
    assert roles.engine_of(facts("python", "-m", "sglang.launch_server")) == "sglang"
    assert roles.engine_of(facts("python", "train.py")) == ""


def test_an_inherited_rank_is_no_rank() -> None:
    mine = facts("python", RANK="1", WORLD_SIZE="2")
    assert roles.own_rank(mine, facts("torchrun")) == (1, 2)
    assert roles.own_rank(mine, None) == (1, 2)
    assert roles.own_rank(mine, facts("python", RANK="1")) == (None, None)
    assert roles.own_rank(facts("python", RANK="1", WORLD_SIZE="9" * 5_000), None) == (1, None)
    assert roles.own_rank(facts("python", RANK=str(limits.RANKS + 1), WORLD_SIZE="2"), None) == (None, None)
    assert roles.own_rank(facts("python"), None) == (None, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["/x/ray/core/src/ray/raylet/raylet", "--gcs-address=10.0.0.1:6379"], ["ray::IDLE"], ["ray::DashboardAgent"],
        ["/x/ray/gcs/gcs_server"], ["python", "-u", "/v/site-packages/ray/_private/log_monitor.py"],
        ["python", "/v/site-packages/ray/dashboard/dashboard.py", "--host=1"], ["ray::harness_collect"],
        ["python", "-c", "from multiprocessing.resource_tracker import main;main(14)"],
        ["python", *ray._NODES, "a:1"], ["/x/python", *ray._STATE, "a:1"],
        ["ray-dashboard-MetricsHead-0 (/x/python -c "], ["ray-dashboard-TrainHead-0"],
        ["python", "-c", "from multiprocessing.forkserver import main; main(25, 27, ['ray', 'ray.dashboard.modules'])"],
    ],
)  # fmt: skip
def test_ray_itself_is_no_part_of_the_job(argv: list[str]) -> None:
    assert roles.infrastructure(argv)


@pytest.mark.parametrize("argv", [[], ["ray::Worker.step"], ["python", "raylet.py"], ["python", "-m", "harness"],
    ["python", "-c", "from multiprocessing.forkserver import main; main(25, 27, ['torch', '__main__'])"]])  # fmt: skip
def test_its_workers_are(argv: list[str]) -> None:
    assert not roles.infrastructure(argv)
    assert roles.raylet_address(argv) == ""
    assert roles.raylet_address(["/x/raylet", "--a=b", "--gcs-address=10.0.0.1:6379"]) == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("command", "another_user", "expected"),
    [
        ("/bin/sh /x/setup_worker.py", False, "/bin/sh"), ("/bin/sh /x/setup_worker.py", True, sys.executable),
        ("/not/there /x/setup_worker.py", False, sys.executable), ("sh worker.py", False, sys.executable),
        ("", False, sys.executable),
    ],
)  # fmt: skip
def test_ray_is_asked_by_the_python_of_the_job(
    command: str, another_user: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "local_raylets", lambda address: {os.getpid(): address})
    monkeypatch.setattr(proc, "arguments", lambda pid: ("/x/raylet", f"--python_worker_command={command}"))
    user = os.geteuid() + another_user
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ray.interpreter("a:1") == expected


def test_addresses_of_the_kernel() -> None:
    assert connections.address("0100007F:1F90") == "127.0.0.1:8080"
    assert connections.address("00000000000000000000000001000000:0050") == "[::1]:80"
    assert connections.address("0000000000000000FFFF00000100007F:0050") == "127.0.0.1:80"


class Ras(threading.Thread):
    """Answers as NCCL's RAS does: a line for each line, and ends when it is done."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__(daemon=True)
        self.answers, self.asked = answers, list[bytes]()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.environ = {"NCCL_RAS_ADDR": f"localhost:{self.server.getsockname()[1]}"}
        self.start()

    def run(self) -> None:
        for answer in self.answers:
            connection, _ = self.server.accept()
            with connection:
                self.asked.append(connection.recv(1 << 12))
                connection.sendall(answer)
        self.server.close()


def test_what_ras_says() -> None:
    new = Ras([b'OK\n{"communicators": 2}\n'])
    assert ras.ask(new.environ) == {"communicators": 2} and b"json" in new.asked[0]
    old = Ras([b"ERROR: unknown command\n", b"NCCL version 2.24.3\nJob summary\n"])
    assert ras.ask(old.environ) == {"text": "NCCL version 2.24.3\nJob summary"}
    old.join(5)
    assert ras.ask(old.environ) == {}, "nobody listens any more"


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"--query-gpu": "GPU-a, 0, H200, 100, 1000, 97\nGPU-b, 1, H200, 1, [N/A], [N/A]\n",
               "--query-compute-apps": "GPU-a, 7\nGPU-a, 8\n"}  # fmt: skip
    monkeypatch.setattr(gpus.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(bounded, "run", lambda argv, limit: bounded.Done(0, answers[argv[1].split("=")[0]], ""))
    (first, second), note = gpus.look("h")
    assert (first.index, first.used_bytes, first.utilization, first.pids) == (0, 100 << 20, 0.97, (7, 8))
    assert (second.total_bytes, second.utilization, second.pids, note) == (0, 0.0, (), "")
    monkeypatch.setattr(bounded, "run", lambda argv, limit: bounded.Done(None, "", ""))
    assert "the driver may hang" in gpus.look("h")[1]
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    assert gpus.look("h") == ((), "") or gpus.DRIVER.exists()


def test_descendants_have_no_double_and_no_end() -> None:
    table = {2: 1, 3: 2, 4: 2, 5: 3, 9: 8, 8: 9}
    assert proc.descendants((2,), table) == [2, 3, 4, 5]
    assert proc.descendants((3, 2), table) == [3, 2, 5, 4]
    assert proc.descendants((8,), table) == [8, 9]


def test_a_scope_needs_a_run(tmp_path: Path) -> None:
    (tmp_path / beats.FOLDER).mkdir()
    assert scope.live(str(tmp_path)) == scope.Scope(directory=tmp_path)


def test_dump_files_of_nccl(tmp_path: Path) -> None:
    out, me = tmp_path / "out", os.getpid()
    environ = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/trace_"}
    assert recorder.from_file(environ, 0, "h", me, out)[0] == ""
    (tmp_path / "trace_0").write_bytes(b"\x80\x04N.")
    (tmp_path / "trace_1").write_bytes(b'{"entries": []}')
    (tmp_path / "trace_3").write_bytes(b"")
    assert recorder.from_file(environ, 0, "h", me, out)[0] == f"recorder/h-{me}.pickle"
    assert (out / f"recorder/h-{me}.pickle").read_bytes() == b"\x80\x04N."
    assert recorder.from_file(environ, None, "h", me, out)[0] == ""
    relative = {"TORCH_FR_DUMP_TEMP_FILE": "trace_"}
    assert recorder.from_file(relative, 0, "h", me, out)[0] == "", "nobody knows to which directory"
    assert recorder.of_others(environ, [1, 2, 3], recorder.Since(0, 0), out)[0] == {
        "rank 1": "recorder/rank-1.json", "rank 3": "recorder/rank-3.pickle"
    }  # fmt: skip
    os.utime(tmp_path / "trace_0", (1, 1))
    assert recorder.from_file(environ, 0, "h", me, out) == ("", 0, ""), "it is older than the process: another run's"
    assert recorder.of_others(environ, [0], recorder.Since(100, 100), out) == ({}, [])


def test_a_source_that_fails_and_a_disk_that_is_full_are_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sick(host: str) -> None:
        raise ZeroDivisionError("no such number")

    nothing = scope.Scope()
    assert conduct.collect(nothing, out=tmp_path / "sound").notes == ()
    monkeypatch.setattr(gpus, "look", sick)
    assert conduct.collect(nothing, out=tmp_path / "sick").notes == ("GPUs: ZeroDivisionError: no such number",)
    (tmp_path / "file").write_text("in the way")
    [_, note] = conduct.collect(nothing, out=tmp_path / "file" / "evidence").notes
    assert "the evidence could not be written whole" in note


def test_a_host_without_threads_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start_thread = threading.Thread.start
    left = iter(range(1))

    def start(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    process = subprocess.Popen(["sleep", "600"])
    try:
        monkeypatch.setattr(threading.Thread, "start", start)
        evidence = conduct.collect(scope.Scope((process.pid,), ray_address=""), out=tmp_path, gap_s=0.0, native=False)
        monkeypatch.undo()
    finally:
        process.kill()
        process.wait()
    assert [one.pid for one in evidence.processes] == [process.pid]
    assert [note for note in evidence.notes if "no thread was left" in note]


def test_a_source_that_never_answers_is_given_up() -> None:
    never = threading.Event()
    work = bounded.start("the weather", never.wait)
    with pytest.raises(TimeoutError):
        work.result(0.01)
    done = bounded.run(["sleep", "60"], 0.05)
    assert done.code is None and done.out == ""
    never.set()


def test_before_python_3_11_nobody_knows_whether_a_thread_is_active() -> None:
    """py-spy has no thread of the system for it, and says that it is: a rank in a lock would be at work for ever."""
    frames = [{"name": "step", "filename": "/home/me/train.py", "line": 12}]
    told = {"os_thread_id": None, "active": True, "owns_gil": False, "frames": frames}
    main, other, third = stacks.parse([{**told, "thread_name": name} for name in ("a", "MainThread", "b")], 7)
    assert main.main and main.tid == 7 and not any(one.active for one in (main, other, third))
    assert (other.tid, third.tid) == (0, 0)


@pytest.mark.slow
def test_a_journal_that_another_look_reads_is_waited_for(tmp_path: Path) -> None:
    """A look that was given up on holds the journal while a busy host lets it go on."""
    path = recorded(tmp_path, filler=6_000)  # longer than the tail
    with open(path, "rb") as stream:
        scan = journals._scanned(stream, journals._opening(stream)["t_ns"])
    scan.at, scan.rank, scan.world, scan.groups = 0, None, None, {}
    scan.lock.acquire()
    later = threading.Timer(0.1, scan.lock.release)
    later.start()
    [one] = journals.read([path], {})[0].values()
    later.join()
    assert (one.rank, one.world_size) == (1, 2)


ALONE = """
import sys, time
from probes.install import start
recorder = start(sys.argv[1], role="actor", rank=0, world_size=1)
recorder.group(name="dp", backend="none", rank=0, world_size=1, members=[0])
print("ready", flush=True)
time.sleep(120)
"""


@pytest.mark.slow
def test_a_rank_alone_in_its_world_has_its_number_on_a_busy_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its journal says that it is a rank; it was read after the deadline."""
    read = journals.read

    def late(*args: Any) -> Any:
        threading.Event().wait(0.5)
        return read(*args)

    monkeypatch.setattr(journals, "read", late)
    command = [sys.executable, "-c", ALONE, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        wanted = scope.Scope((child.pid,), tmp_path / "run", ray_address="")
        found = conduct.collect(wanted, out=tmp_path / "out", samples=1, deadline_s=0.5, native=False)
        child.kill()
    [process] = [one for one in found.processes if one.pid == child.pid]
    assert (process.role, process.rank) == ("actor", 0), found.notes


@pytest.mark.parametrize(("threads", "looks"), [((), 2), ((Thread("MainThread", 1, (), main=True),), 1)])
def test_counters_are_kept_where_py_spy_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: tuple[Thread, ...], looks: int
) -> None:
    """Without any stack two looks at the counters say whether it moves; beside a stack the second would hide it."""
    draft, now, before = Draft("h", os.getpid(), None), [0.0], []

    def late(pid: int, *, timeout_s: float) -> stacks.Stacks:
        before.append(len(draft.samples))
        now[0] += 5.0
        return stacks.Stacks(threads)

    monkeypatch.setattr(stacks, "dump", late)
    terms = conduct._Terms(
        out=tmp_path,
        began=0.0,
        samples=2,
        gap_s=0.0,
        deadline_s=1.0,
        native=False,
        clock=lambda: now[0],
        spies=threading.Semaphore(1),
        sockets=connections.Sockets(lambda: now[0]),
    )
    conduct._look(draft, terms)
    assert before == [1], "a look that is given up on meanwhile has its counters"
    assert [look.at_s for look in draft.samples] == [0.0, 5.0][:looks]
    assert all(look.cpu_s > 0 for look in draft.samples)


def test_a_driver_is_of_the_cluster_that_it_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Ray is below or above it; it is connected to the cluster's GCS."""
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = f"127.0.0.1:{gcs.getsockname()[1]}"
        monkeypatch.setattr(ray, "local_raylets", lambda where="": {1 << 22: address, 1 + (1 << 22): "10.0.0.9:6379"})
        assert scope._address_of([os.getpid()], {}) == ""
        with socket.create_connection(gcs.getsockname()):
            assert scope._address_of([os.getpid()], {}) == address


def test_without_a_ray_cluster_a_pid_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope.ray, "local_raylets", lambda address="": {})
    with pytest.raises(BadInput, match="no Ray cluster has a node") as raised:
        scope.live("auto")
    command, _, hint = str(raised.value.fix).partition("   # ")
    assert command == "harness triage PID" and "HOST:PORT" in hint
    assert scope.live(command.replace("PID", str(os.getpid())).split()[2]) == scope.Scope((os.getpid(),))


@pytest.mark.parametrize(("flags", "of_kernel"), [(0x00208040, True), (0x00400100, False)])
def test_a_thread_of_the_kernel_is_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, of_kernel: bool
) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "stat").write_text(f"2 (kthreadd) S 0 0 0 0 -1 {flags} " + "0 " * 43)
    monkeypatch.setattr(proc, "PROC", tmp_path)
    assert proc.of_kernel(2) is of_kernel
    if of_kernel:
        with pytest.raises(BadInput):
            scope.live("2")


def test_a_process_that_lives_is_not_said_to_have_ended() -> None:
    words = "Error: Failed to open process 2 - check that the process is running"
    assert "has ended" not in stacks.refused(os.getpid(), words).note


@pytest.mark.parametrize(
    ("word", "address"),
    [("ray://10.9.8.7:10001", "10.9.8.7"), ("ray://10.9.8.7", "10.9.8.7"), ("ray://10.9.8.7:10001/", "10.9.8.7"),
     ("ray://127.0.0.1:10001", "")],
)  # fmt: skip
def test_a_client_address_of_ray_means_the_cluster_of_that_host(
    word: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of this host is not meant by the address of another one."""
    monkeypatch.setattr(scope.ray, "local_raylets", lambda: {7: "10.0.0.1:7000"})
    monkeypatch.setattr(scope, "refused", lambda host, port, limit: "")
    monkeypatch.setattr(scope, "speaks_http", lambda host, port, limit: False)
    assert scope.live(word).ray_address == (f"{address}:{scope.RAY_PORT}" if address else "10.0.0.1:7000")


def test_a_client_address_of_ray_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "refused", lambda host, port, limit: "Connection refused")
    monkeypatch.setattr(scope.ray, "local_raylets", dict)
    with pytest.raises(BadInput) as refused:
        triage(["ray://127.0.0.1:1"])
    assert f"127.0.0.1:{scope.RAY_PORT}" in refused.value.message
