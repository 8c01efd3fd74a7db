"""Alive and progressing are two facts: what a beat says of a main thread, of counters and of open spans."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from probes import attach, handled_errors
from probes.format import Run, write_manifest
from probes.heartbeat import BLOCK, PLACES, Heartbeat, Sources, block, fingerprint, main_frame, place
from probes.install import live, start

ROOT = Path(__file__).parents[3]
SITE = ROOT / "probes" / "site"


class Process:
    """A heartbeat whose clock, stack and counters are the test's."""

    def __init__(self, directory: Path, **more: Any) -> None:
        self.now, self.frame, self.counts = 0, stack(("/job/train.py", "step")), {"0": 1}
        sources = Sources(lambda: self.now, lambda: self.frame, lambda: dict(self.counts))
        self.heart = Heartbeat(directory, sources=sources, **more)
        self.beat()

    def beat(self, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
        self.now += int(seconds * 1e9)
        return self.heart.beat(**more)

    def still_s(self) -> float:
        return (self.now - int(self.beat(0)["progress_ns"])) / 1e9


def stack(*calls: tuple[str, str], line: int = 1) -> FrameType:
    """A frame as it would be with these (file, function), outermost first."""
    found: list[FrameType] = []
    innermost: Callable[[], None] = lambda: None  # noqa: E731
    for number, (file, function) in enumerate(reversed(calls)):
        body = "found.append(sys._getframe())" if not number else "innermost()"
        space = {"sys": sys, "found": found, "innermost": innermost}
        exec(compile("\n" * line + f"def {function}():\n    {body}\n", file, "exec"), space)
        innermost = space[function]  # type: ignore[assignment]
    thread = threading.Thread(target=lambda: innermost())  # below it nothing of this test's own, which goes on
    thread.start()
    thread.join()
    return found[0]


def test_a_main_thread_that_stays_makes_no_progress(tmp_path: Path) -> None:
    process = Process(tmp_path)
    began = process.still_s()
    for _ in range(50):
        process.beat()
    assert process.still_s() == began + 50
    process.frame = stack(("/job/train.py", "save"))
    assert process.beat()["progress_ns"] == process.now


def test_a_loop_that_polls_makes_no_progress(tmp_path: Path) -> None:
    process, places = Process(tmp_path), [stack(("/job/train.py", f"poll{number}")) for number in range(40)]
    for number in range(200):
        process.frame = places[number % len(places)]
        process.beat()
    assert process.still_s() == 160.0  # since the last place that was new


def test_new_places_are_progress_however_many(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for frame in [stack(("/job/train.py", f"step{number}")) for number in range(PLACES + 20)]:
        process.frame = frame
        assert process.beat()["progress_ns"] == process.now
    assert len(process.heart._places) == PLACES


@pytest.mark.slow
def test_collectives_and_events_are_progress(tmp_path: Path) -> None:
    recorder = start(tmp_path, role="actor")
    process = Process(tmp_path, recorders=lambda: [recorder])
    process.beat(60)
    process.counts["0"] += 1
    assert process.beat()["progress_ns"] == process.now
    process.beat(60)
    recorder.event("note", text="x")
    assert process.beat()["progress_ns"] == process.now
    assert process.beat()["progress_ns"] < process.now
    recorder.close()


def test_open_spans_are_shown_and_closed_ones_are_not(tmp_path: Path) -> None:
    recorder = start(tmp_path, role="actor")
    process = Process(tmp_path, recorders=live)
    with recorder.span("sync", step=3, peer="x" * 500, tensor=torch.zeros(2), members=[0, 1]) as span:
        span.note(version=7)
        [shown] = process.beat()["open"]
        assert shown["name"] == "sync" and shown["start_ns"] > 0
        assert shown["fields"] == {"step": 3, "version": 7, "peer": "x" * 120, "members": [0, 1]}
    assert process.beat()["open"] == []
    with pytest.raises(ZeroDivisionError), recorder.span("sync"):
        _ = 1 / 0
    assert process.beat()["open"] == []
    recorder.close()
    assert recorder not in live()


@pytest.mark.parametrize(
    ("calls", "wait"),
    [
        ([("/p/torch/distributed/distributed_c10d.py", "all_reduce")], "collective"),
        ([("/job/t.py", "f"), ("/p/torch/distributed/c10d.py", "w"), ("/p/torch/_ops.py", "call")], "collective"),
        ([("/p/torch/distributed/fsdp/api.py", "forward"), ("/job/model.py", "forward")], ""),
        ([("/p/torch/distributed/elastic/agent/server/api.py", "run")], "idle"),
        ([("/p/torch/autograd/graph.py", "_engine_run_backward")], "backward"),
        ([("/p/torch/cuda/__init__.py", "synchronize")], "device"),
        ([("/p/ray/_private/worker.py", "main_loop")], "idle"),
        ([("/p/sglang/srt/managers/scheduler.py", "recv_requests"), ("/p/sglang/srt/utils.py", "broadcast_pyobj"),
          ("/p/torch/distributed/distributed_c10d.py", "broadcast")], "idle"),
        ([("/p/sglang/srt/managers/scheduler.py", "run_batch"),
          ("/p/torch/distributed/distributed_c10d.py", "all_reduce")], "collective"),
        ([("/p/ray/_private/worker.py", "main_loop"), ("/job/actor.py", "step")], ""),
        ([("/job/driver.py", "fit"), ("/p/ray/_private/worker.py", "get_objects")], "ray"),
        ([("/lib/asyncio/base_events.py", "_run_once"), ("/lib/selectors.py", "select")], "idle"),
        ([("/lib/asyncio/base_events.py", "_run_once"), ("/job/server.py", "handle")], ""),
        ([("/lib/http/client.py", "getresponse"), ("/lib/socket.py", "readinto"), ("/lib/ssl.py", "read")], "http"),
        ([("/p/vllm/v1/engine/core.py", "_process_input_queue"), ("/lib/queue.py", "get"),
          ("/lib/threading.py", "wait")], "idle"),
        ([("/job/train.py", "step")], ""),
    ],
)  # fmt: skip
def test_what_a_main_thread_waits_for(calls: list[tuple[str, str]], wait: str) -> None:
    found = place(stack(*calls))
    assert found.wait == wait and not found.breakpoint
    assert found.stack[0].endswith(calls[-1][1])


def test_a_debugger_is_told_from_a_program_under_it() -> None:
    assert place(stack(("/job/t.py", "f"), ("/lib/pdb.py", "interaction"), ("/lib/cmd.py", "cmdloop"))).breakpoint
    assert not place(stack(("/lib/pdb.py", "_runscript"), ("/lib/bdb.py", "run"), ("/job/t.py", "f"))).breakpoint


def test_a_fingerprint_is_of_the_whole_stack() -> None:
    frames = [stack(("/job/a.py", name), ("/job/b.py", "f")) for name in ("one", "two")]
    assert fingerprint(frames[0]) == fingerprint(frames[0]) != fingerprint(frames[1])
    assert fingerprint(None) == fingerprint(None)


def test_the_main_thread_is_looked_at_from_another() -> None:
    found: list[FrameType | None] = []
    thread = threading.Thread(target=lambda: found.append(main_frame()))
    thread.start()
    thread.join()
    assert found[0] is not None
    while found[0].f_back is not None:
        if found[0].f_code is sys._getframe().f_code:
            return
        found[0] = found[0].f_back
    raise AssertionError("another thread's stack was taken")


def test_a_beat_is_one_block_whatever_it_holds(tmp_path: Path) -> None:
    process = Process(tmp_path, identity=lambda: {"role": "actor", "rank": 2, "world_size": 4, "socket": "/s"})
    process.beat()
    data = process.heart.path.read_bytes()
    found = json.loads(data)
    assert len(data) == BLOCK and process.heart.path.name == f"{os.getpid()}.json"
    assert found.items() >= {"pid": os.getpid(), "rank": 2, "world_size": 4, "role": "actor", "count": 2}.items()
    assert found.keys() >= {"host", "t_ns", "period_s", "progress_ns", "open", "sequences", "breakpoint", "socket"}
    process.counts = {f"group {number}": number for number in range(1000)}
    process.beat()
    found = json.loads(process.heart.path.read_bytes())
    assert found["cut"] and found["sequences"] == {} and found["rank"] == 2
    assert len(block({"pid": 1, "stack": ["x" * 5000], "open": [{"name": "wake"}]})) == BLOCK
    assert json.loads(block({"stack": ["x" * 5000], "open": [{"name": "wake"}]}))["open"] == [{"name": "wake"}]


def test_a_full_disk_costs_beats_and_not_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path)

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(3):
        process.beat()
    assert process.heart.lost == 3 and not process.heart.path.exists()  # an old beat would look like a stuck process
    monkeypatch.undo()
    process.beat()
    assert json.loads(process.heart.path.read_bytes())["count"] == 5


def test_a_directory_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    process = Process(tmp_path / "watch")
    shutil.rmtree(tmp_path / "watch")
    process.beat()
    process.beat()
    assert json.loads(process.heart.path.read_bytes())["count"] == 3
    process.heart.close()


def test_its_own_time_is_counted(tmp_path: Path) -> None:
    process = Process(tmp_path)
    before = process.heart.self_ns
    process.beat()
    assert 0 < before < process.heart.self_ns


def test_a_journal_that_cannot_be_written_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    quiet = attach.Quiet(tmp_path / "file")
    with quiet.span("init_process_group", world_size=2):
        assert [span.opened["name"] for span in quiet.running.values()] == ["init_process_group"]
    quiet.event("note", text="x")
    assert quiet.off and quiet.events == 0 and quiet.path == ""
    quiet.close(None)


def test_a_process_of_another_node_with_the_same_number_keeps_its_beats(tmp_path: Path) -> None:
    one = Heartbeat(tmp_path)
    one._fixed["host"] = "node-2"
    one.beat()
    two, again = Heartbeat(tmp_path), Heartbeat(tmp_path)
    two.beat()
    assert one.path != two.path == again.path
    hosts = [json.loads(path.read_bytes())["host"] for path in sorted((tmp_path / "beats").glob("[0-9]*.json"))]
    assert sorted(hosts) == sorted(["node-2", os.uname().nodename])


def test_a_node_whose_folder_is_not_the_jobs_says_so_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        attach.Quiet(tmp_path / "own").event("note", text="x")
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "stays in its own" in said and "a disk that every node shares" in said
    write_manifest(tmp_path / "shared", {})
    attach.Quiet(tmp_path / "shared").event("note", text="x")
    assert capfd.readouterr().err == ""
    (tmp_path / "file").write_text("")
    attach.Quiet(tmp_path / "file" / "below").event("note", text="x")
    assert "this process is not recorded: " in capfd.readouterr().err


def test_the_worker_server_is_where_only_this_user_looks(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert not attach._private(str(tmp_path)) and not attach._private(str(tmp_path / "none"))
    tmp_path.chmod(0o700)
    assert attach._private(str(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert not attach._private(str(link))


def python(code: str, path: Path, watch: Path | None) -> str:
    """What the code prints, with the probes' site before `path`, or without it."""
    variables = {"PYTHONPATH": str(path)}
    if watch is not None:
        variables = {"PYTHONPATH": f"{SITE}{os.pathsep}{path}", "RLHF_HARNESS_WATCH": str(watch)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_end_of_a_process_waits_for_its_heartbeat(tmp_path: Path) -> None:
    code = """
        import atexit, sys, threading, time
        from probes import attach
        from probes.heartbeat import Heartbeat

        began, plain = threading.Event(), Heartbeat.beat
        def beat(self, **more):
            began.set()
            if threading.get_ident() != threading.main_thread().ident:
                attach._current._stop.wait()  # inside a beat as the process ends, as in a call of torch
                time.sleep(0.3)
            return plain(self, **more)

        Heartbeat.beat = beat
        atexit.register(lambda: print(attach._current._done.is_set()))  # after the attachment's own
        attach.begin(sys.argv[1], period_s=0.01)
        began.wait()
    """
    run = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(
        run, env={"PYTHONPATH": str(SITE.parents[1])}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True\n"
    (beat,) = (json.loads(path.read_bytes()) for path in (tmp_path / "beats").glob("*.json"))
    assert beat["ended"] and beat["count"] == 2  # its own, and the last


@pytest.mark.slow
@pytest.mark.parametrize(("status", "error"), [(0, ""), (3, "os._exit(3)")])
def test_a_process_that_leaves_by_os_exit_says_so_and_its_forked_child_does_not(
    tmp_path: Path, status: int, error: str
) -> None:
    code = """
        import os, sys
        from probes import attach
        attachment = attach.begin(sys.argv[1], period_s=0.01)
        while not (attachment._heart and attachment._heart.count):
            os.sched_yield()
        attach._current = None  # a child gets no attachment of its own
        if os.fork() == 0:
            os._exit(7)
        os.wait()
        attach._current = attachment
        os._exit(int(sys.argv[2]))
    """
    (tmp_path / "job.py").write_text(textwrap.dedent(code))
    run = [sys.executable, str(tmp_path / "job.py"), str(tmp_path), str(status)]
    done = subprocess.run(run, env={"PYTHONPATH": str(SITE.parents[1])}, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    (beat,) = (json.loads(path.read_bytes()) for path in (tmp_path / "beats").glob("*.json"))
    assert (beat["ended"], beat["exit_status"], beat["error"]) == (True, status, error)
    assert beat["raised_at"][0] == str(tmp_path / "job.py") and beat["raised_at"][2] == "<module>"


def test_the_next_sitecustomize_runs_and_a_plain_process_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "sitecustomize.py").write_text("import os; os.environ['NEXT'] = __file__")
    code = "import os, sys; print(os.environ['NEXT'], sys.modules['sitecustomize'].__file__, *sys.modules)"
    words = python(code, tmp_path / "next", tmp_path / "watch").split()
    assert words == python(code, tmp_path / "next", None).split()  # the same modules, in the same order
    assert words[0] == words[1] == str(tmp_path / "next" / "sitecustomize.py")
    assert not (tmp_path / "watch").exists()


FAKE_TORCH = {
    "torch/__init__.py": "import torch.distributed.distributed_c10d",
    "torch/distributed/__init__.py": "",
    "torch/distributed/distributed_c10d.py": "def is_initialized(): return False",
    "probes.py": "mine = True",
}


@pytest.mark.slow
def test_a_job_keeps_its_own_module_called_probes(tmp_path: Path) -> None:
    for name, text in FAKE_TORCH.items():
        (tmp_path / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / name).write_text(text)
    code = (
        "import sys, torch, probes; assert probes.mine; "
        "print(sys.modules['_rlhf_harness_attach']._current.directory, [n for n in sys.modules if n[:7] == 'probes.'])"
    )
    assert python(code, tmp_path / "job", tmp_path / "watch").split() == [str(tmp_path / "watch"), "[]"]


@pytest.mark.slow
def test_a_probe_that_cannot_begin_says_so_and_the_job_goes_on(tmp_path: Path) -> None:
    for name, text in FAKE_TORCH.items():
        (tmp_path / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / name).write_text(text)
    code = "import _thread, threading; del _thread.start_new_thread; import torch; print('on')"
    assert python(code, tmp_path / "job", tmp_path / "watch") == "on\n"
    [failed] = (tmp_path / "watch" / "beats").iterdir()
    assert "start_new_thread" in json.loads(failed.read_text())["failed"]


GROUP = """
import sys
import torch.distributed as dist
from probes import collectives
from probes.install import start
recorder = start(sys.argv[1], role="actor")
seen = []
helper = dist.PrefixStore
def look(*args):
    seen.append([span.opened for span in recorder.running.values()])
    return helper(*args)
dist.distributed_c10d.PrefixStore = look  # is called while the group is being made
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
dist.distributed_c10d.PrefixStore = helper
dist.new_group([0], timeout=__import__("datetime").timedelta(seconds=7))
assert collectives.sequences() == {"0": 0, "1": 0}, collectives.sequences()
dist.all_reduce(__import__("torch").ones(1))
assert collectives.sequences() == {"0": 1, "1": 0}, collectives.sequences()
[[shown]] = seen[:1]
assert shown["name"] == "init_process_group", shown
assert shown["fields"].items() >= {"backend": "gloo", "world_size": 1, "rank": 0}.items(), shown
recorder.close()
dist.destroy_process_group()  # without it torch aborts now and then at the end: pytorch/pytorch#190489
"""


@pytest.mark.slow
def test_a_group_that_is_being_made_is_an_open_span(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    done = subprocess.run(
        [sys.executable, "-c", GROUP, str(tmp_path)], env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path)
    assert [span["name"] for span in run.events("span")] == ["init_process_group", "new_group"]
    groups = list(run.events("group"))
    assert [(group["torch_name"], group["timeout_s"]) for group in groups] == [("0", 1800.0), ("1", 7.0)]


def test_an_error_is_placed_in_the_innermost_frame_outside_installed_packages() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert handled_errors.raised_at(None) is None
    place = handled_errors.raised_at(caught.value)
    assert place is not None and place[0] == __file__ and place[2].startswith("test_an_error_is_placed")
