"""A probe is a guest in somebody else's process: what the job does there goes as it would without it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probes import attach, collectives
from probes.errors import of_a_signal
from probes.spans import error_text

ROOT = Path(__file__).parents[3]
SITE = ROOT / "probes" / "site"


def python(code: str, *words: str, cwd: Path, **variables: str) -> str:
    """What the code prints in a process of its own."""
    environment = {"PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def beating(then: str) -> str:
    """Code that runs once the heartbeat of its process beats."""
    began = """
    import os, pathlib, signal, subprocess, sys, threading, time
    from probes import attach
    attach.begin(sys.argv[1], period_s=0.01)
    beat = pathlib.Path(sys.argv[1], "beats", f"{os.getpid()}.json")
    while not (beat.exists() and beat.stat().st_size): time.sleep(0.01)
    """
    return textwrap.dedent(began) + textwrap.dedent(then)


@pytest.mark.slow
def test_a_script_that_waits_for_all_other_threads_ends(tmp_path: Path) -> None:
    code = """
    while threading.active_count() > 1: time.sleep(0.01)
    for one in threading.enumerate():
        if one is not threading.main_thread(): one.join()
    print("done")
    """
    assert python(beating(code), str(tmp_path), cwd=tmp_path) == "done\n"


@pytest.mark.slow
def test_a_signal_that_the_job_blocks_stays_pending(tmp_path: Path) -> None:
    code = """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    print(signal.SIGUSR1 in signal.sigpending())
    """
    assert python(beating(code), str(tmp_path), cwd=tmp_path) == "True\n"


@pytest.mark.slow
def test_a_program_that_is_prepared_by_a_function_is_prepared_by_one_thread(tmp_path: Path) -> None:
    code = """
    def tell(): os.write(1, b"%d\\n" % len(os.listdir("/proc/self/task")))
    subprocess.run(["true"], preexec_fn=tell, check=True)
    """
    assert python(beating(code), str(tmp_path), cwd=tmp_path) == "1\n"


@pytest.mark.slow
def test_describing_the_environment_starts_no_process(tmp_path: Path) -> None:
    code = """
    import signal
    signal.signal(signal.SIGCHLD, lambda *_: print("a child ended"))
    from probes import environment
    import platform
    found = environment.machine()["system"]
    assert found.startswith(platform.system()) and platform.release() in found, found
    """
    assert python(code, cwd=tmp_path) == ""


@pytest.mark.slow
def test_the_environment_is_described_without_a_late_import(tmp_path: Path) -> None:
    code = """
    import sys
    from probes import environment
    before = set(sys.modules)
    environment.describe()
    print(sorted(set(sys.modules) - before))
    """
    assert python(code, cwd=tmp_path) == "[]\n"


@pytest.mark.slow
def test_what_a_signal_handler_raises_reaches_the_job(tmp_path: Path) -> None:
    code = """
    import signal, sys
    from probes.attach import Quiet

    def late(*_): raise TimeoutError("the job's")
    signal.signal(signal.SIGALRM, late)
    quiet, caught = Quiet(sys.argv[1]), 0
    quiet.event("note", text="first")
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            for _ in range(10**6): quiet.event("note", text="x" * 2000)
        except TimeoutError:
            caught += 1
    quiet.event("note", text="last")
    signal.setitimer(signal.ITIMER_REAL, 0)
    quiet.close(None)
    print(caught, quiet.off)
    """
    assert python(code, str(tmp_path), cwd=tmp_path) == "20 \n"
    lines = next((tmp_path / "events").iterdir()).read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert "last" in [event.get("text") for event in events]


class Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.method(number, frame)

    def method(self, number: int, frame: FrameType | None) -> None:
        self.deeper()

    def deeper(self) -> None:
        raise OSError(28, "the job's")


@pytest.mark.parametrize("kind", ["function", "method", "object", "partial", "nobody's"])
def test_whose_an_exception_is(kind: str) -> None:
    one = Handler()
    handlers: dict[str, Any] = {
        "function": lambda number, frame: one.deeper(), "method": one.method, "object": one,
        "partial": functools.partial(one.method), "nobody's": signal.SIG_IGN,
    }  # fmt: skip
    before = signal.signal(signal.SIGUSR2, handlers[kind])
    try:
        with pytest.raises(OSError, match="the job's") as caught:
            one.deeper() if kind == "nobody's" else os.kill(os.getpid(), signal.SIGUSR2)
        assert of_a_signal(caught.value) == (kind != "nobody's")
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_an_exception_without_a_text_is_said() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise AttributeError("half made")

    assert error_text(Mute()) == "Mute: (its text cannot be made)"
    assert error_text(None) == "" and error_text(ValueError("x")) == "ValueError: x"


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, /, **fields: Any) -> None:
        self.events.append((kind, fields))

    def span(self, name: str, **fields: Any) -> Any:
        self.events.append(("span", {"name": name, **fields}))
        return contextlib.nullcontext()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.distributed in a few lines: a group is its members."""

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None) -> Any:
        return SimpleNamespace(members=sorted(ranks), group_name="0")

    def broken(group: Any) -> int:
        raise NotImplementedError("another torch")

    module = SimpleNamespace(
        new_group=new_group, is_initialized=lambda: False, GroupMember=SimpleNamespace(NON_GROUP_MEMBER=object()),
        get_backend=lambda group: "gloo", get_rank=broken, get_world_size=lambda group: 2,
        get_process_group_ranks=lambda group: group.members,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, collectives.MODULE, module)
    # Whoever records in this process already has torch's own functions.
    monkeypatch.setattr(collectives, "_watching", [])
    monkeypatch.setattr(collectives, "_originals", {})
    monkeypatch.setattr(collectives, "_replace", lambda maker, old, new: setattr(module, maker, new))
    return module


def test_members_that_are_given_as_an_iterator_are_the_calls(torch: Any) -> None:
    recorder: Any = Recorder()
    assert collectives.watch(recorder)
    try:
        assert torch.new_group(ranks=map(int, "10")).members == [0, 1]
        assert torch.new_group(ranks=np.array([1, 0])).members == [0, 1]
        assert torch.new_group([1, 0], backend=np.array([1, 2])).members == [0, 1]
        with pytest.raises(TypeError):
            torch.new_group(no_such=1)
    finally:
        collectives.unwatch(recorder)


def test_a_group_that_cannot_be_described_is_made(torch: Any) -> None:
    recorder: Any = Recorder()
    assert collectives.watch(recorder)
    try:
        assert torch.new_group([0, 1]).members == [0, 1]
    finally:
        collectives.unwatch(recorder)
    assert "NotImplementedError: another torch" in str(recorder.events)


def test_a_group_made_beside_the_register_is_recorded_with_the_own_rank(torch: Any) -> None:
    """As frameworks make the group of a weight sync: nobody is told who else is in it."""

    def helper(group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: str, store: Any,
               group_name: str) -> str:  # fmt: skip
        return "made"

    torch._new_process_group_helper = helper
    recorder: Any = Recorder()
    assert collectives.watch(recorder)
    try:
        assert torch._new_process_group_helper(3, 1, [], "nccl", None, "weight_sync") == "made"
    finally:
        collectives.unwatch(recorder)
    found = [fields for kind, fields in recorder.events if kind == "group"]
    assert [(one["name"], one["rank"], one["world_size"], list(one["members"])) for one in found] == [
        ("weight_sync", 1, 3, [])
    ]


def test_a_disk_that_does_not_answer_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "LAST_BEAT_S", 0.05)
    one = attach.Attachment(tmp_path, 1.0)  # its thread, had it begun, would never come back from a write
    one._heart = SimpleNamespace(beat=lambda **_: pytest.fail("it writes"))  # type: ignore[assignment]
    one.journal.close = lambda error: pytest.fail("it closes")  # type: ignore[method-assign]
    socket = tmp_path / "1.sock"
    socket.touch()
    one.socket = str(socket)
    one._end()
    assert not socket.exists()


def test_a_full_disk_is_still_an_error_of_the_recording(tmp_path: Path) -> None:
    quiet = attach.Quiet(tmp_path)
    quiet.event("note", text="x")
    assert quiet._recorder is not None
    os.close(quiet._recorder._journal._fd)
    quiet._recorder._journal._fd = os.open("/dev/full", os.O_WRONLY)
    quiet.event("note", text="y")
    assert "disk is full" in quiet.off
    quiet.close(None)  # else it is one of the live recorders of the tests that follow


# --- the site that every process begins with ----------------------------------------------------------------------


def watched(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path}", "RLHF_HARNESS_WATCH": str(tmp_path / "watch"),
        "RLHF_HARNESS_ADAPTER": "probes.adapters.trl:trl", **more,
    }  # fmt: skip


def test_a_folder_of_the_frameworks_name_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "trl").mkdir()  # a namespace package: nothing loads it
    code = """
    import importlib.util
    assert importlib.util.find_spec("trl") is not None
    import trl
    print(trl.__spec__.loader is not None)
    """
    plain = python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert python(code, cwd=tmp_path, **watched(tmp_path)) == plain == "True\n"


@pytest.mark.slow
def test_a_package_in_an_archive_is_imported(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("trl/__init__.py", "x = 1")
        archive.writestr("trl/more.py", "y = 2")
    code = """
    import importlib.util
    assert importlib.util.find_spec("trl") is not None
    import trl, trl.more
    print(trl.x + trl.more.y)
    """
    given = watched(tmp_path)
    given["PYTHONPATH"] = f"{SITE}{os.pathsep}{tmp_path / 'all.zip'}"
    assert python(code, cwd=tmp_path, **given) == "3\n"


@pytest.mark.slow
def test_a_finder_of_the_old_kind_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "trl.py").write_text("x = 1")
    code = """
    import sys
    class Old:
        def find_module(self, name, path=None): return None
    sys.meta_path.insert(1, Old())
    import trl
    print(trl.x)
    """
    assert python(code, cwd=tmp_path, **watched(tmp_path)) == "1\n"


@pytest.mark.slow
def test_nobody_inherits_the_hook_that_ray_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "ray" / "_private"
    folder.mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text("from ray._private.worker import init")
    (folder / "__init__.py").write_text("")
    (folder / "worker.py").write_text(
        "import importlib, os\n"
        "def init(address=None):\n"
        "    '''Its own words.'''\n"
        "    name, _, function = os.environ['RAY_RUNTIME_ENV_HOOK'].rpartition('.')\n"
        "    found = getattr(importlib.import_module(name), function)({})\n"
        "    return address, found, os.environ.get('RAY_RUNTIME_ENV_HOOK', 'gone')\n"
    )
    (tmp_path / "users.py").write_text("def hook(runtime_env): return {'users': 1}")
    code = """
    import os, ray
    assert ray.init.__doc__ == "Its own words." and "RAY_RUNTIME_ENV_HOOK" not in os.environ
    address, found, hook = ray.init("a")
    assert found["env_vars"]["RLHF_HARNESS_WATCH"] == os.environ["RLHF_HARNESS_WATCH"], found
    print(address, hook, os.environ.get("RAY_RUNTIME_ENV_HOOK"))
    os.environ["RAY_RUNTIME_ENV_HOOK"] = "users.hook"
    print(*ray.init(), os.environ["RAY_RUNTIME_ENV_HOOK"])
    """
    out = python(code, cwd=tmp_path, **watched(tmp_path, RAY_ADDRESS="somewhere:6379"))
    assert out == "a gone None\nNone {'users': 1} users.hook users.hook\n"


@pytest.mark.parametrize("variable", [f"{SITE}{os.pathsep}", f"{SITE}"])
def test_a_worker_without_a_path_of_its_own_does_not_import_from_its_directory(tmp_path: Path, variable: str) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "main.py").write_text("import queue, os; print(queue.__name__, os.environ['PYTHONPATH'])")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "main.py").rename(tmp_path / "elsewhere" / "main.py")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "elsewhere" / "main.py")], cwd=tmp_path, capture_output=True, text=True,
        env={**watched(tmp_path), "PYTHONPATH": variable}, timeout=300,
    )  # fmt: skip
    assert done.stdout == f"queue {SITE}\n", done.stderr
