"""What a watch keeps: every verdict that was shown, evidence within its limits; and what no full disk prevents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_triage_watch_watchdog import Job

from harness.triage.evidence import Evidence
from harness.triage.watch.retention import Limits, Retention
from reports.model import TRIAGE_EXIT_CODES, Verdict

ROOT = Path(__file__).parents[4]


def verdict(says: str) -> Verdict:
    return Verdict("triage", says, TRIAGE_EXIT_CODES[says], f"it is {says}")


def kept(directory: Path) -> dict[str, str]:
    """Name of each evidence directory -> its verdict."""
    return {
        folder.name: json.loads((folder / "verdict.json").read_text())["verdict"]
        for folder in sorted((directory / "evidence").iterdir())
    }


def whole(directory: Path) -> list[str]:
    """The verdicts of those whose evidence is still there."""
    return [kept(directory)[one.parent.name] for one in sorted((directory / "evidence").glob("*/evidence.json"))]


def go_on(job: Job) -> None:
    job.moved += 1
    job.run(3)


def test_a_hang_is_kept_when_the_job_is_healthy_later(tmp_path: Path) -> None:
    job = Job(tmp_path)
    [stall] = job.run(30)
    job.says = "HEALTHY"
    go_on(job)
    assert job.run(60) == [] and job.looks > 2
    assert kept(tmp_path) == {stall.evidence.name: "HUNG"} and bool(job.dog.retention)
    assert json.loads((tmp_path / "verdict.json").read_text()) == stall.verdict.to_dict()
    assert job.dog.verdict == stall.verdict


def test_what_is_unclear_later_does_not_overwrite_a_hang(tmp_path: Path) -> None:
    job = Job(tmp_path)
    [stall] = job.run(30)
    job.says = "INSUFFICIENT"
    go_on(job)
    assert job.run(30) == [] and "it is INSUFFICIENT" in job.lines[-1]
    assert json.loads((tmp_path / "verdict.json").read_text()) == stall.verdict.to_dict()
    assert sorted(kept(tmp_path).values()) == ["HUNG", "INSUFFICIENT"] and job.dog.verdict == stall.verdict
    job.says = "HUNG"
    go_on(job)
    [later] = job.run(30)
    assert json.loads((tmp_path / "verdict.json").read_text()) == later.verdict.to_dict() != stall.verdict.to_dict()


def test_every_verdict_that_was_shown_lies_beside_its_evidence(tmp_path: Path) -> None:
    job, stalls = Job(tmp_path), []
    for _ in range(3):
        stalls += job.run(30)
        go_on(job)
    assert len(stalls) == 3
    for stall in stalls:
        assert json.loads((stall.evidence / "verdict.json").read_text()) == stall.verdict.to_dict()


@pytest.mark.slow
def test_a_look_that_says_nothing_new_replaces_the_one_before(tmp_path: Path) -> None:
    job = Job(tmp_path, "INSUFFICIENT")
    for _ in range(50):
        job.run(30)
        go_on(job)
    assert job.looks >= 50 and len(job.lines) == 1
    assert list(kept(tmp_path).values()) == ["INSUFFICIENT"] * 2  # the one that was shown, and the last


def look(retention: Retention, says: str, subject: str, size: int = 10, shown: bool = True) -> Path:
    folder = retention.folder()
    (folder / "evidence.json").write_bytes(bytes(size))
    (folder / "processes").mkdir()
    (folder / "processes" / "h-1.json").write_bytes(bytes(size))
    retention.keep(folder, verdict(says), subject=subject, displayed=shown)
    return folder


def test_evidence_is_capped_in_number_and_the_verdicts_stay(tmp_path: Path) -> None:
    retention = Retention(tmp_path, print, Limits(count=4))
    says = ["SLOW", "INSUFFICIENT", "HUNG", "SLOW", "HUNG", "INSUFFICIENT", "HUNG", "SLOW", "INSUFFICIENT"]
    folders = [look(retention, one, str(number)) for number, one in enumerate(says)]
    there = [number for number, folder in enumerate(folders) if (folder / "processes" / "h-1.json").exists()]
    assert there == [0, 2, 6, 8]  # the first and the last, of all and of the hangs
    assert [json.loads((folder / "verdict.json").read_text())["verdict"] for folder in folders] == says
    assert all(sorted(os.listdir(folders[number])) == ["verdict.json"] for number in (1, 3, 4, 5, 7))


def test_of_two_the_first_hang_and_the_last_look_are_kept(tmp_path: Path) -> None:
    retention = Retention(tmp_path, print, Limits(count=2))
    folders = [look(retention, one, one) for one in ("SLOW", "HUNG", "HUNG", "INSUFFICIENT")]
    assert [(folder / "evidence.json").exists() for folder in folders] == [False, True, False, True]


def test_evidence_is_capped_in_bytes(tmp_path: Path) -> None:
    retention = Retention(tmp_path, print, Limits(size=10 << 20))
    folders = [look(retention, "INSUFFICIENT", str(number), size=1 << 20) for number in range(12)]
    there = [number for number, folder in enumerate(folders) if (folder / "evidence.json").exists()]
    assert there == [0, 9, 10, 11] and len(kept(tmp_path)) == 12
    used = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert used <= 10 << 20


def test_the_first_and_the_last_are_kept_whatever_they_weigh(tmp_path: Path) -> None:
    retention = Retention(tmp_path, print, Limits(size=1 << 20))
    folders = [look(retention, "HUNG", str(number), size=1 << 20) for number in range(3)]
    assert [(folder / "evidence.json").exists() for folder in folders] == [True, False, True]


def test_verdicts_without_evidence_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.triage.watch.retention.MAX_VERDICTS", 5)
    retention = Retention(tmp_path, print, Limits(count=2))
    for number in range(20):
        look(retention, "INSUFFICIENT", str(number))
    assert len(kept(tmp_path)) == 7


def test_the_evidence_of_an_earlier_watch_counts(tmp_path: Path) -> None:
    for number in range(6):
        look(Retention(tmp_path, print, Limits(count=3)), "INSUFFICIENT", str(number))
    assert len(whole(tmp_path)) == 3


def test_a_collector_that_comes_back_leaves_nothing_behind(tmp_path: Path) -> None:
    retention = Retention(tmp_path, print)
    folder = retention.folder()
    retention.discard(folder)
    (folder / "processes").mkdir(parents=True)  # a thread that was given up on
    assert retention.folder() != folder
    look(retention, "SLOW", "x")
    assert not folder.exists()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.getuid() or not shutil.which("mount"):
        pytest.skip("only root mounts a file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    with pytest.raises(OSError, match="No space left"), open(folder / "filler", "ab", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_a_full_disk_does_not_end_the_watch(tiny: Path) -> None:
    job = Job(tiny)
    job.run(2)
    fill(tiny)
    [stall] = job.run(30)
    assert stall.verdict.verdict == "HUNG" and stall.evidence.parent.parent != tiny
    assert (stall.evidence / "evidence.json").exists()
    assert json.loads((stall.evidence / "verdict.json").read_text()) == stall.verdict.to_dict()
    assert any("No space left" in line and str(stall.evidence.parent) in line for line in job.lines)
    assert bool(job.dog.retention) and len(job.lines) == len(set(job.lines)) <= 3
    shutil.rmtree(stall.evidence)
    job.dog.close()
    assert not stall.evidence.parent.exists()  # nothing is left elsewhere


def test_evidence_makes_room_for_evidence_on_a_full_disk(tiny: Path) -> None:
    retention = Retention(tiny, print)
    folders = [look(retention, "INSUFFICIENT", str(number), size=100_000) for number in range(3)]
    fill(tiny)
    folders.append(retention.folder())
    assert folders[-1].parent == tiny / "evidence"
    retention.keep(folders[-1], verdict("HUNG"), subject="hung", displayed=True)
    assert [(folder / "evidence.json").exists() for folder in folders] == [True, False, True, False]
    assert set(kept(tiny).values()) == {"INSUFFICIENT", "HUNG"}


def test_a_directory_that_takes_nothing_does_not_end_the_watch(tmp_path: Path) -> None:
    job = Job(tmp_path / "watch")
    job.run(2)
    (tmp_path / "watch" / "evidence").write_text("a file where the folder should be")
    [stall] = job.run(30)
    assert stall.evidence.is_dir() and stall.verdict.verdict == "HUNG"
    assert json.loads((tmp_path / "watch" / "verdict.json").read_text()) == stall.verdict.to_dict()
    shutil.rmtree(stall.evidence.parent)


def test_where_nothing_can_be_written_it_is_judged_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.setattr("harness.triage.watch.retention.SHARED_MEMORY", str(tmp_path / "nowhere"))
    job = Job(tmp_path / "file" / "watch")
    job.dog._collect = lambda folder, stall_s: Evidence(str(folder), "watch", "now", stall_s)
    [stall] = job.run(30)
    assert stall.verdict.verdict == "HUNG" and not stall.evidence.exists()
    assert [line for line in job.lines if "judged from what is in memory" in line]


def test_a_directory_that_vanishes_is_said_and_made_anew(tmp_path: Path) -> None:
    job = Job(tmp_path / "watch")
    job.run(3)
    shutil.rmtree(tmp_path / "watch")
    [stall] = job.run(30)
    assert [line for line in job.lines if "was removed" in line]
    assert json.loads((tmp_path / "watch" / "watchdog.json").read_text())["count"] > 3
    assert json.loads((stall.evidence / "verdict.json").read_text())["verdict"] == "HUNG"


@pytest.mark.slow
def test_a_process_without_free_descriptors_judges_once_there_are_some(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        from pathlib import Path
        from test_triage_watch_watchdog import Job
        from harness.triage.watch import Observer

        job = Job(Path(sys.argv[1]))
        real = Observer(Path(sys.argv[1]), (os.getpid(),))
        def observe():
            real()
            return Job.observe(job)
        job.dog._observe = observe
        job.run(5)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        assert job.run(30) == [] and job.looks == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(job.run(30)) == 1
        print("\\n".join(job.lines))
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support"), str(Path(__file__).parent))),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert "Too many open files" in line


def test_without_descriptors_for_evidence_the_look_is_repeated(tmp_path: Path) -> None:
    job = Job(tmp_path)

    def collect(folder: Path, stall_s: float) -> Evidence:
        raise OSError(24, os.strerror(24))

    right, job.dog._collect = job.dog._collect, collect
    assert job.run(25) == [] and len(job.lines) == 1 and "Too many open files" in job.lines[0]
    job.dog._collect = right
    assert len(job.run(100)) == 1


def test_a_terminal_that_was_closed_does_not_end_the_watch(tmp_path: Path) -> None:
    job = Job(tmp_path, "INSUFFICIENT")

    def say(line: str) -> None:
        raise OSError(5, "Input/output error")

    job.dog._say = say
    assert job.run(30) == []
    job.says = "HUNG"
    go_on(job)
    assert len(job.run(30)) == 1
