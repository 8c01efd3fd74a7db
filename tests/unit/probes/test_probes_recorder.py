"""The recorder against a real kernel: kills, forks, full disks and signals cost nothing that was acknowledged."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from probes import install
from probes.format import Flat, Ragged, RecordingError, Run, encode_frame, write_manifest
from probes.install import OFF, start

ROOT = Path(__file__).parents[3]


def script(body: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A Python process of its own that runs `body`; its output is read by the caller."""
    command = [sys.executable, "-c", textwrap.dedent(body), *arguments]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=path, **options)


def output(body: str, *arguments: str) -> str:
    process = script(body, *arguments)
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return said


def test_a_recording_from_start_to_close(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    with start(tmp_path, role="trainer", rank=2, world_size=4) as recorder:
        recorder.event("note", text="first", step=1)
        with recorder.span("rollout", step=1) as span:
            span.note(samples=8)
        with pytest.raises(KeyError), recorder.span("sync", step=1):
            raise KeyError("no such tensor")
        arrays: dict[str, Flat | Ragged] = {"sample": Flat.of([7], "i8"), "output": Ragged.of([[1, 2]], "i4")}
        recorder.frame("rollout", step=1, fields={"finish": ["stop"]}, arrays=arrays)
        recorder.boundaries(step=1, sample=7, prompt=[1, 5, 6, 7], output=[8, 2], finish="stop", specials={1, 2, 3},
                            decode=lambda ids: " ".join(map(str, ids)), n=3)  # fmt: skip
        recorder.weights(step=1, version=1, digests={"w": "00"}, source="learner")
        recorder.group(name="sync", backend="gloo", rank=1, world_size=2, members=(0, 2))
        assert recorder.self_ns > 0
    run = Run(tmp_path)
    assert run.complete
    opening = next(run.events("open"))
    assert (opening["role"], opening["rank"], opening["world_size"], opening["pid"]) == ("trainer", 2, 4, os.getpid())
    assert set(opening) >= {"wall_ns", "host", "ppid", "python", "packages", "env"}
    assert [event["text"] for event in run.events("note")] == ["first"]
    spans = list(run.events("span"))
    assert [(span["name"], span["ok"], span["step"]) for span in spans] == [("rollout", True, 1), ("sync", False, 1)]
    assert spans[0]["samples"] == 8 and spans[1]["error"] == "KeyError: 'no such tensor'"
    assert spans[0]["start_ns"] + spans[0]["dur_ns"] <= spans[0]["t_ns"]
    frame = next(run.frames())
    assert (frame.kind, frame.step, frame.role, frame.rank) == ("rollout", 1, "trainer", 2)
    ends = next(run.events("boundaries"))
    expected = {
        "prompt_first": [1, 5, 6], "prompt_last": [5, 6, 7], "output_first": [8, 2], "output_last": [8, 2],
        "prompt_len": 4, "output_len": 2, "specials": [1, 2], "finish": "stop", "text_first": "1 5 6",
        "text_seam": "5 6 7 8 2", "text_last": "8 2",
    }  # fmt: skip
    assert ends.items() >= expected.items()
    assert next(run.events("group"))["members"] == [0, 2] and next(run.events("weights"))["digests"] == {"w": "00"}
    assert next(run.events("close")).items() >= {"ok": True, "reason": "", "frames": 1}.items()


@pytest.mark.slow
def test_an_exception_is_the_reason_of_the_close(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    with pytest.raises(ZeroDivisionError), start(tmp_path, role="actor"):
        1 / 0  # noqa: B018
    close = next(Run(tmp_path).events("close"))
    assert close["ok"] is False and close["reason"] == "ZeroDivisionError: division by zero"


@pytest.mark.slow
def test_a_second_recording_under_the_same_name_has_a_file_of_its_own(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    for _ in range(2):
        with start(tmp_path, role="actor") as recorder:
            recorder.frame("rollout", step=0, arrays={})
    (tmp_path / "events" / f"actor-0-{os.getpid()}.jsonl").unlink()  # its frames keep the name taken
    start(tmp_path, role="actor").close()
    names = sorted(file.stem for file in (tmp_path / "events").iterdir())
    assert names == [f"actor-0-{os.getpid()}-2", f"actor-0-{os.getpid()}-3"]
    run = Run(tmp_path)
    assert run.incomplete == [] and {file for file, _ in run.torn} == {f"events/actor-0-{os.getpid()}.jsonl"}


def test_after_close_nothing_is_recorded(tmp_path: Path) -> None:
    recorder = start(tmp_path, role="actor")
    recorder.close()
    recorder.close()
    with pytest.raises(ValueError, match="is closed"):
        recorder.event("note")
    with pytest.raises(ValueError, match="is closed"):
        recorder.frame("rollout", step=0, arrays={})


@pytest.mark.parametrize("role", ["", "a/b", "a-b", "../x"])
def test_a_role_must_be_able_to_name_a_file(tmp_path: Path, role: str) -> None:
    with pytest.raises(ValueError, match="names files"):
        start(tmp_path, role=role)


@pytest.mark.slow
def test_sigkill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    writer = script(
        """
        import sys
        from probes.format import Flat
        from probes.install import start

        recorder = start(sys.argv[1], role="actor")
        for number in range(10**9):
            recorder.event("note", number=number, text="x" * (number % 300))
            if number % 10 == 0:
                recorder.frame("rollout", step=number, arrays={"a": Flat.of(range(number % 5000), "i4")})
            print(number, flush=True)
        """,
        str(tmp_path),
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(2000)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=600)
    acknowledged += [int(line) for line in rest.splitlines() if line]
    assert writer.returncode == -signal.SIGKILL
    run = Run(tmp_path)
    assert run.incomplete == [f"events/actor-0-{writer.pid}.jsonl"]
    numbers = [event["number"] for event in run.events("note")]
    assert numbers == list(range(len(numbers))) and len(numbers) >= len(acknowledged)
    steps = [frame.step for frame in run.frames("rollout")]
    assert steps == list(range(0, 10 * len(steps), 10)) and steps[-1] >= acknowledged[-1] - 9


@pytest.mark.slow
def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    said = output(
        """
        import os, sys
        from probes.install import start

        recorder = start(sys.argv[1], role="actor")
        child = os.fork()
        if not child:
            event, frame = lambda: recorder.event("note"), lambda: recorder.frame("rollout", step=0, arrays={})
            for call in (event, frame, recorder.close):
                try:
                    call()
                except RuntimeError as error:
                    print(error, flush=True)
            with start(sys.argv[1], role="actor") as own:
                own.event("note", text="child")
            os._exit(0)
        os.waitpid(child, 0)
        recorder.event("note", text="parent")
        recorder.close()
        """,
        str(tmp_path),
    )
    assert said.count("was opened before a fork: start a recorder of its own in the child") == 3
    run = Run(tmp_path)
    assert run.complete and sorted(event["text"] for event in run.events("note")) == ["child", "parent"]
    assert not (tmp_path / "tokens").exists()


@pytest.mark.slow
def test_a_file_at_its_size_limit_ends_in_a_whole_record_and_can_go_on(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel write part of a line, then refuse: what a disk does that is nearly full."""
    write_manifest(tmp_path, {})
    said = output(
        """
        import resource, sys
        from probes.format import Flat
        from probes.install import RecordingError, start

        recorder = start(sys.argv[1], role="actor")
        size = recorder.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
        written = 0
        try:
            while True:
                recorder.event("note", text="x" * 100)
                written += 1
        except RecordingError as error:
            print(written, error.errno, error)
        try:
            recorder.frame("rollout", step=0, arrays={"a": Flat.of(range(4000), "i8")})
        except RecordingError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        recorder.event("note", text="after")
        recorder.frame("rollout", step=1, arrays={"a": Flat.of(range(4000), "i8")})
        recorder.close()
        """,
        str(tmp_path),
    )
    first, second = said.splitlines()
    written, number, sentence = first.split(" ", 2)
    assert int(number) == errno.EFBIG and int(written) > 3
    assert sentence.startswith("the file has reached the size limit of this process: cannot record to ")
    assert sentence.endswith("everything recorded before is intact") and ".bin" in second
    run = Run(tmp_path)
    assert [event["text"][:5] for event in run.events("note")] == ["xxxxx"] * int(written) + ["after"]
    assert [frame.step for frame in run.frames()] == [1] and run.incomplete == []
    assert [reason for _, reason in run.torn] == ["2 records could not be written when they were made"]


@pytest.fixture
def full_disk() -> Any:
    """Puts the kernel's full device in the place of a journal's descriptor, and takes it away again."""
    kept: list[tuple[int, int]] = []

    def fill(descriptor: int) -> None:
        kept.append((descriptor, os.dup(descriptor)))
        full = os.open("/dev/full", os.O_WRONLY | os.O_APPEND)
        os.dup2(full, descriptor)
        os.close(full)

    def empty() -> None:
        while kept:
            descriptor, own = kept.pop()
            os.dup2(own, descriptor)
            os.close(own)

    yield fill, empty
    empty()


def test_a_full_disk_is_one_sentence(tmp_path: Path, full_disk: Any) -> None:
    fill, empty = full_disk
    write_manifest(tmp_path, {})
    recorder = start(tmp_path, role="actor")
    recorder.event("note", text="before")
    fill(recorder._journal._fd)
    with pytest.raises(RecordingError) as caught:
        recorder.event("note", text="lost")
    path = recorder.path
    assert str(caught.value) == f"the disk is full: cannot record to {path}; everything recorded before is intact"
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(RecordingError), recorder.span("rollout"):
        pass
    with pytest.raises(KeyError), recorder.span("rollout"):
        raise KeyError("the exception under way is the one to see")
    empty()
    recorder.close()
    run = Run(tmp_path)
    assert [event["text"] for event in run.events("note")] == ["before"]
    assert run.torn == [(f"events/{path.name}", "3 records could not be written when they were made")]


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, full_disk: Any) -> None:
    fill, _ = full_disk
    write_manifest(tmp_path, {})
    with pytest.raises(KeyError), start(tmp_path, role="actor") as recorder:
        fill(recorder._journal._fd)
        raise KeyError("the exception under way is the one to see")
    recorder.close()
    run = Run(tmp_path)
    assert run.incomplete == [f"events/{recorder.path.name}"] and next(run.events())["kind"] == "open"
    assert [file for file, what in run.torn if "the disk was full" in what] == run.incomplete


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file where the folder should be")
    with pytest.raises(RecordingError, match=r"cannot record to .*events; everything"):
        start(tmp_path, role="actor")


def test_a_recording_that_cannot_begin_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.socket, "gethostname", None)
    with pytest.raises(TypeError):
        start(tmp_path, role="actor")
    assert list((tmp_path / "events").iterdir()) == []


@pytest.mark.slow
def test_interrupts_leave_whole_records(tmp_path: Path) -> None:
    """A signal may raise at any bytecode: the file stays readable and every acknowledged event is in it, once."""
    write_manifest(tmp_path, {})
    said = output(
        """
        import signal, sys
        from probes.install import start

        class Interrupt(Exception): ...

        armed, signals = False, 0

        def handler(number, frame):
            global armed, signals
            signals += 1
            try:
                recorder.event("note", number=-1)  # may meet a record under way: refused, never mixed into it
            except RuntimeError:
                pass
            if armed and signals % 2:
                armed = False
                raise Interrupt

        recorder = start(sys.argv[1], role="actor")
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.00037)
        number, acknowledged = 0, []
        while signals < 600:
            try:
                armed = True
                while signals < 600:
                    recorder.event("note", number=number)
                    acknowledged.append(number)
                    number += 1
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # none comes outside of this `try`
            except Interrupt:
                number += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        recorder.close()
        print(*acknowledged)
        """,
        str(tmp_path),
    )
    run = Run(tmp_path)
    numbers = [event["number"] for event in run.events("note") if event["number"] >= 0]
    assert run.complete and numbers == sorted(numbers)
    assert {int(number) for number in said.split()} <= set(numbers)


@pytest.mark.slow
def test_threads_share_a_recorder(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    recorder = start(tmp_path, role="actor")

    def work(thread: int) -> None:
        for number in range(200):
            recorder.event("note", thread=thread, number=number)
            recorder.frame("rollout", step=number, arrays={"thread": Flat.of([thread], "i4")})

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    recorder.close()
    run = Run(tmp_path)
    assert run.complete
    for thread in range(4):
        assert [event["number"] for event in run.events("note") if event["thread"] == thread] == list(range(200))
        mine = [frame.step for frame in run.frames() if frame.arrays["thread"].tolist() == [thread]]
        assert mine == list(range(200))


@pytest.mark.slow
def test_one_write_per_event_and_per_frame(tmp_path: Path) -> None:
    """An O_APPEND descriptor and one write(2) per record, as the kernel counts them."""
    recorder = start(tmp_path, role="actor")
    recorder.frame("rollout", step=0, arrays={})
    calls = []
    for record in (
        lambda: recorder.event("note", text="x" * 100_000),
        lambda: recorder.frame("rollout", step=1, arrays={"a": Flat.of(range(100_000), "i8")}),
    ):
        before = _writes()
        record()
        calls.append(_writes() - before)
    flags = {fd: int(_fdinfo(fd), 8) for fd in (recorder._journal._fd, recorder._tokens._fd)}  # type: ignore[union-attr]
    recorder.close()
    assert calls == [1, 1] and all(flag & os.O_APPEND for flag in flags.values())


def _writes() -> int:
    return int(Path("/proc/self/io").read_text().split("syscw: ")[1].split()[0])


def _fdinfo(descriptor: int) -> str:
    return Path(f"/proc/self/fdinfo/{descriptor}").read_text().split("flags:")[1].split()[0]


def test_own_time_counts_work_done_for_the_recording(tmp_path: Path) -> None:
    recorder = start(tmp_path, role="actor")
    before = recorder.self_ns
    with recorder.own_time():
        sum(range(1000))
    assert recorder.self_ns > before
    recorder.close()


def test_off_records_nothing_and_takes_every_call() -> None:
    with OFF.span("rollout", step=1) as span:
        span.note(samples=1)
    OFF.event("note", text="x")
    OFF.shapes("rollout", {"a": [1]}, step=1, samples=1)
    OFF.frame("rollout", step=1, arrays={})
    OFF.boundaries(step=1, sample=1, prompt=[1], output=[2], finish="stop")
    OFF.weights(step=1, version=1, digests={}, source="learner")
    OFF.group(name="g", backend="gloo", rank=0, world_size=1, members=[0])
    OFF.environment()
    OFF.watch_groups()
    OFF.close()
    assert OFF.self_ns == 0 and str(OFF.path) == os.devnull


@pytest.mark.slow
def test_frames_of_the_codec_and_the_recorder_are_the_same_bytes(tmp_path: Path) -> None:
    arrays = {"a": Flat.of([1], "i4")}
    recorder = start(tmp_path, role="actor", rank=1)
    recorder.frame("floor", step=3, fields={"variant": "base"}, arrays=arrays)
    recorder.close()
    log = tmp_path / "tokens" / f"{recorder.path.stem}.bin"
    assert log.read_bytes() == encode_frame("floor", 3, "actor", 1, {"variant": "base"}, arrays, seq=0)
