"""`harness triage WHAT`: what WHAT may be, what is written down, and bad input in one sentence."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import triage_trial as trial

from harness import cli
from harness.bundle.packing import pack
from harness.errors import BadInput
from harness.triage import directory, run
from harness.triage.collect import Scope, conduct, live
from harness.triage.collect.ray import Cluster
from harness.triage.evidence import Evidence, Process
from harness.triage.flight import synthesis
from harness.triage.remote import serve
from probes.format import write_manifest
from probes.install import start
from reports.model import Verdict


@pytest.fixture
def dumps(tmp_path):
    """A job of 8 ranks whose rank 3 stopped coming."""

    def write(kind="dead", form="json", **more):
        folder = tmp_path / "dumps"
        folder.mkdir()
        job = synthesis.simulate(8, 120, synthesis.Fault(kind, rank=3, at=56, **more))
        return folder, list(synthesis.write(job, folder, form))

    return write


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_dumps_of_anybodys_job(dumps, form):
    folder, _ = dumps("extra", form)
    verdict = run.triage([str(folder)])
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K1")
    assert [party.rank for party in verdict.triage.culprits] == [3]
    assert verdict.reproduce == f"harness triage {folder}"
    if form == "pickle":
        assert verdict.triage.culprits[0].frame.startswith("layers.py:")
    assert not (folder / "verdict.json").exists()  # somebody else's directory stays as it is


def test_a_lost_dump_is_named(dumps):
    folder, files = dumps()
    files[3].unlink()
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and "no recorder data from rank 3" in verdict.missing


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b'{"entries": [{"reco', b"cos\nsystem\n(S'touch /tmp/x'\ntR.", b"\x00" * 999]
)
def test_a_spoilt_dump_is_a_missing_one(dumps, content):
    folder, files = dumps()
    files[3].write_bytes(content)
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert any("rank 3" in item for item in verdict.missing)


@pytest.mark.slow
def test_two_jobs_in_one_directory(dumps):
    folder, _ = dumps()
    for path in synthesis.write(synthesis.simulate(4, 50), folder, prefix="other_rank_"):
        assert path.exists()
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["77", "1000000000000000", "00"])
def test_a_stray_dump_is_left_out_by_name_and_the_job_is_judged(dumps, name):
    """A copy of the dump of rank 1; 00 comes before it by name."""
    folder, files = dumps()
    files[1].with_name(f"nccl_trace_rank_{name}.json").write_bytes(files[1].read_bytes())
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "HUNG" and [party.rank for party in verdict.triage.culprits] == [3]
    left_out = [line for line in verdict.missing if line.startswith("left out")]
    assert len(left_out) == 1 and f"nccl_trace_rank_{name}.json" in left_out[0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5])
def test_half_of_another_job_is_no_stray(dumps, size):
    """Three of the other job's five ranks, or all of its three: nobody knows which job is meant."""
    folder, _ = dumps()
    for path in list(synthesis.write(synthesis.simulate(size, 50), folder, "json", prefix="other_rank_"))[3:]:
        path.unlink()
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits and "2 jobs" in verdict.reason


@pytest.mark.slow
def test_evidence_is_read_with_its_verdict_written_where_asked(tmp_path):
    evidence, _ = trial.late(3, 1, "main:10 step:44 keep_alive")
    directory.write(dataclasses.replace(evidence, path=str(tmp_path / "ev")), tmp_path / "ev")
    verdict = run.triage([str(tmp_path / "ev")], tmp_path / "out")
    assert verdict.verdict == "HUNG" and [party.rank for party in verdict.triage.culprits] == [1]
    stored = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert Verdict.from_dict(stored).triage == verdict.triage and verdict.paths["verdict"].endswith("out/verdict.json")
    packed = directory.pack(tmp_path / "ev")
    assert run.triage([str(packed)]).triage.culprits == verdict.triage.culprits


def test_the_newest_evidence_of_a_run(tmp_path):
    assert run.newest(tmp_path) is None
    for name in ("2026-01-01", "2026-01-03", "2026-01-02"):
        directory.write(trial.late(2, 1, "main")[0], tmp_path / "evidence" / name)
    assert run.newest(tmp_path).name == "2026-01-03"
    assert run.triage([str(tmp_path)]).kind == "triage"


def test_a_directory_of_parity_is_its_watch(tmp_path):
    for side in ("baseline", "candidate"):
        (tmp_path / side / "events").mkdir(parents=True)
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(BadInput, match="harness parity and has no watch/") as refused:
        run.triage([str(tmp_path)])
    assert refused.value.fix == f"harness triage {tmp_path / 'candidate'}"
    evidence, _ = trial.late(3, 1, "main:10 step:44 keep_alive")
    directory.write(evidence, tmp_path / "watch" / "evidence" / "2026-01-01")
    (tmp_path / "watch" / "beats").mkdir()
    verdict = run.triage([str(tmp_path)], tmp_path / "out")
    assert verdict.verdict == "HUNG" and [party.rank for party in verdict.triage.culprits] == [1]


@pytest.mark.parametrize(
    ("sides", "whole", "command"),
    [
        (("baseline", "candidate"), ("baseline",), ["diff", ""]),
        (("baseline",), ("baseline",), ["report", "baseline"]),
        (("baseline",), (), ["report", "baseline"]),
    ],
)
def test_a_comparison_that_was_interrupted_says_what_there_is(tmp_path, sides, whole, command):
    for side in sides:
        write_manifest(tmp_path / side, {})
        (tmp_path / side / "events").mkdir()
    for side in whole:
        (tmp_path / side / "index.json").write_text("{}")
    with pytest.raises(BadInput) as refused:
        run.triage([str(tmp_path)])
    for side in ("baseline", "candidate"):
        state = "whole" if side in whole else "not whole" if side in sides else "missing"
        assert f"the {side} is {state}" in refused.value.message
    fix = shlex.split(str(refused.value.fix), comments=True)
    assert fix == ["harness", command[0], str(tmp_path / command[1])]


def ended_run(folder: Path, *, well: bool) -> Path:
    """A run whose only process has ended."""
    write_manifest(folder, {"watch": True})
    (folder / "beats").mkdir()
    if (pid := os.fork()) == 0:
        recorder = start(folder, role="trainer", rank=0)
        recorder.event("step", step=0)
        if well:
            recorder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("well", "verdict"), [(True, "HEALTHY"), (False, "INSUFFICIENT")])
def test_a_run_that_has_ended_leaves_no_second_evidence(tmp_path, monkeypatch, well, verdict):
    monkeypatch.chdir(tmp_path)
    folder = ended_run(tmp_path / "demo", well=well)
    looked = run.triage(["demo"])
    assert (looked.verdict, looked.paths, looked.reproduce) == (verdict, {"evidence": "demo"}, "harness triage demo")
    assert not (tmp_path / "runs").exists() and looked.coverage["source"] == "directory"
    evidence, _ = trial.late(3, 1, "main:10 step:44 keep_alive")
    directory.write(evidence, folder / "evidence" / "2026-01-01")
    assert run.triage(["demo"], tmp_path / "out").verdict == "HUNG"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["verdict.json"]


STACKS = (
    'Process 7: python train.py\nThread 7 (idle): "MainThread"\n    wait (threading.py:331)\n    step (train.py:3)\n'
)


@pytest.mark.slow
def test_dumps_and_pasted_text_become_evidence_where_out_is_given(dumps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, files = dumps(form="pickle")
    Path("stacks.txt").write_text(STACKS)
    for out, words in {"a": [str(folder)], "b": ["stacks.txt"], "c": [*map(str, files)]}.items():
        first = run.triage(words, out)
        with pytest.raises(BadInput, match="already holds evidence"):
            run.triage(words, out)
        assert pack([Path(out)], Path(f"{out}.bundle.zip")).kind == "evidence"
        for again in (out, f"{out}.bundle.zip"):
            verdict = run.triage([again])
            assert (verdict.verdict, verdict.reason) == (first.verdict, first.reason)
            assert verdict.triage.culprits == first.triage.culprits


@pytest.mark.slow
def test_the_advice_for_the_dump_of_one_rank_names_what_belongs_to_it(dumps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, (first, second, *rest) = dumps(form="pickle")
    for file in rest:
        file.unlink()

    def fix(file):
        steps = run.triage([str(file)]).triage.next
        assert not [step for step in steps[1:] if step.startswith("harness triage ")]
        return steps[0]

    assert fix(first) == f"harness triage {folder}"
    (folder / "config.json").write_text("{}")
    assert fix(first) == f"harness triage {first} {second}"
    assert run.triage([str(first), str(second)]).coverage["ranks"] == 2
    with pytest.raises(BadInput) as caught:
        run.triage([str(folder / "config.json")])
    assert caught.value.fix.startswith("harness triage --help")
    second.unlink()
    assert fix(first).startswith(f"ls {folder}")


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("nothere/", "nother"),
        ("./stack.txt", "stacks.txt"),
        ("far/away/", "ls ."),
        ("empty.txt", "harness triage --help"),
    ],
)
def test_the_fix_for_a_path_that_is_not_there_or_empty(tmp_path, monkeypatch, word, fix):
    monkeypatch.chdir(tmp_path)
    Path("nothere.txt").write_text("x")
    Path("stacks.txt").write_text("x")
    Path("empty.txt").touch()
    Path("nother").mkdir()
    with pytest.raises(BadInput) as caught:
        run.triage([word])
    assert caught.value.fix.startswith(fix)
    assert ("is empty" in caught.value.message) == (word == "empty.txt")


def gone() -> str:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (["/nowhere/at/all"], "no such file"),
        (["missing.zip"], "no such file"),
        (["{empty}"], "empty"),
        (["{text}"], "dump"),
        (["{empty}", "{text}"], "is empty"),
        (["{gone}"], "no process"),
        (["what is this"], "is neither a process id, a file, a directory"),
        (["10.0.0.1:99999"], "a number from 1 to 65535"),
        (["10.0.0.1:0"], "a number from 1 to 65535"),
        (["127.0.0.1:1"], "127.0.0.1:1"),
        (["{http}"], "is an HTTP server and no Ray cluster's GCS"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, what, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "core").write_bytes(b"\x7fELF\0\0")
    server = serve.Server("0", b"0123456789abcdef")
    server.start(lambda folder: folder)
    places = {"empty": tmp_path / "empty", "text": tmp_path / "text", "http": server.url.removeprefix("http://")}
    words = [one.format(**places, gone=gone()) for one in what]
    with pytest.raises(BadInput) as caught:
        run.triage(words, tmp_path / "out")
    server.close()
    assert said in caught.value.message and "\n" not in caught.value.message and caught.value.fix
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_watch_directories_of_nodes_are_looked_at_into_one_folder_with_the_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watched = [tmp_path / "a" / "w", tmp_path / "b" / "w"]
    for folder in watched:
        (folder / "beats").mkdir(parents=True)
    verdict = run.triage([str(folder) for folder in watched])
    [made] = (tmp_path / "runs").iterdir()
    taken = [str(made.relative_to(tmp_path) / name) for name in ("w", "w-2")]
    assert verdict.paths == {
        "evidence 1": taken[0],
        "evidence 2": taken[1],
        "verdict": f"runs/{made.name}/verdict.json",
    }
    assert verdict.reproduce.split()[2:] == taken and (made / "verdict.json").exists()
    assert run.triage([str(folder) for folder in watched], tmp_path / "out").paths["evidence 1"] == f"{tmp_path}/out/w"
    assert not any((folder / "evidence.json").exists() for folder in watched)
    assert run.triage(taken).paths == {"evidence 1": taken[0], "evidence 2": taken[1]}, "recorded: nothing is written"


def test_a_second_look_does_not_overwrite_the_first(tmp_path):
    directory.write(trial.late(2, 1, "main")[0], tmp_path / "out")
    with pytest.raises(BadInput, match="already holds evidence"):
        run.triage([str(os.getpid())], tmp_path / "out")


def test_without_a_target_it_is_told_what_was_looked_at(tmp_path, monkeypatch):
    scope, lines = Scope(ray_address="127.0.0.1:6379"), []
    driver = Process(socket.gethostname(), os.getpid(), role="driver", command="python -m train")
    monkeypatch.setattr(run, "live", lambda what: scope)
    monkeypatch.setattr(run, "collect", lambda scope, out: Evidence(str(out), "live", "", 0.0, (driver,)))
    verdict = run.triage([], tmp_path / "out", tell=lines.append)
    [line] = lines
    user = pwd.getpwuid(os.getuid()).pw_name
    assert line.startswith(
        f"no target given: the Ray cluster at 127.0.0.1:6379: driver pid {os.getpid()} of user {user}, "
        "command python -m train; for another job: harness triage PID"
    )
    assert verdict.evidence[0].removeprefix("this is ") == line.removeprefix("no target given: ")
    verdict = run.triage(["7"], tmp_path / "out-2", tell=lines.append)
    assert len(lines) == 1 and not any("Ray cluster" in sentence for sentence in verdict.evidence[:1])


@pytest.mark.slow
def test_a_verdict_that_could_not_be_written_says_so_below_its_headline(tmp_path, dumps, monkeypatch):
    folder, _ = dumps()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "write_whole", full)
    verdict = run.triage([str(folder)], tmp_path / "out")
    assert "could not be written" in verdict.evidence[0] and verdict.evidence[0] in verdict.missing
    assert verdict.exit_code == 1  # of what it found


@pytest.mark.parametrize(
    "parents",
    [{7: 1, os.getpid(): 7}, {7: os.getpid(), os.getpid(): 1}],
    ids=["the collector below the driver", "the driver below the collector"],
)
def test_a_driver_is_looked_at_with_what_it_started(parents, monkeypatch):
    table = {8: 7, 9: 8, 10: 7, 12: os.getpid(), **parents}
    monkeypatch.setattr(conduct.proc, "parents", lambda: table)
    monkeypatch.setattr(conduct.proc, "alive", lambda pid: True)
    monkeypatch.setattr(conduct.proc, "arguments", lambda pid: ("raylet",) if pid == 10 else ("python",))
    monkeypatch.setattr(conduct.roles, "infrastructure", lambda arguments: arguments == ("raylet",))
    assert list(conduct._drivers_beside(Cluster(drivers=(("h", 7), ("elsewhere", 99))), "h", {})) == [7, 8, 9]


def test_a_folder_that_cannot_be_written_is_refused_before_the_look(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "stack.txt").write_text('Thread 1 (idle): "MainThread"\n    f (train.py:1)\n')
    assert cli.main(["triage", "stack.txt", "--out", "/proc/nowhere"]) == 2
    (tmp_path / "stack.txt").unlink()
    capsys.readouterr()
    for out in ("file", "file/below", "/proc/nowhere"):
        assert cli.main(["triage", str(os.getpid()), "--out", out]) == 2
        refused, fix = capsys.readouterr().err.splitlines()
        assert refused.startswith(f"harness: {out} cannot be written: ")
        assert shlex.split(fix.removeprefix("  fix: "), comments=True) == ["harness", "triage", str(os.getpid())]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "json", "md", "html", "junit"])
def test_the_command_prints_and_leaves_with_the_verdicts_code(dumps, format, capsys):
    folder, _ = dumps()
    assert cli.main(["triage", str(folder), "--format", format]) == 1
    printed = capsys.readouterr().out
    assert "HUNG" in printed and "K4" in printed
    if format == "json":
        assert Verdict.from_dict(json.loads(printed)).exit_code == 1


def test_the_command_refuses_in_one_line(capsys):
    assert cli.main(["triage", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err.startswith("harness: /nowhere/at/all: no such file or directory\n  fix: ")


@pytest.mark.slow
def test_a_full_disk_costs_the_file_and_not_the_answer(dumps, tmp_path, monkeypatch):
    """What it would have said stands in the verdict that is printed, with why it is in no file."""
    folder, _ = dumps()

    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    expected = run.triage([str(folder)])
    monkeypatch.setattr(run, "write_whole", full)
    verdict = run.triage([str(folder)], tmp_path / "out")
    assert (verdict.verdict, verdict.exit_code, verdict.reason) == (
        expected.verdict, expected.exit_code, expected.reason
    )  # fmt: skip
    assert any("No space left" in note for note in verdict.missing) and "verdict" not in verdict.paths


@pytest.mark.slow
@pytest.mark.parametrize("content", ["a file", "no zip", "an empty directory", "a directory"])
def test_the_advice_about_what_cannot_be_read_is_not_to_read_it_again(tmp_path, content):
    """Each fix is followed once: it may not end in the same advice, nor in advice about another thing to read."""
    place = tmp_path / "place"
    place.mkdir()
    what = place / "stacks.txt" if content in ("a file", "no zip") else place
    if content == "a file":
        what.write_bytes(b"\x7fELF\0\0")
    if content == "no zip":
        what = what.with_suffix(".zip")
        what.write_text("this is no zip")
    if content == "a directory":
        (place / "core").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(BadInput) as raised:
        run.triage([str(what)])
    fix = shlex.split(raised.value.fix, comments=True)
    assert "PID" not in fix and "DIR" not in fix
    if fix[:2] == ["harness", "triage"] and fix[2] != "--help":
        assert run.triage(fix[2:]).verdict == "HUNG"


@pytest.mark.parametrize("name", ["run.json", "events", "baseline", "beats"])
def test_a_verdict_is_never_written_into_a_recording(tmp_path: Path, name: str) -> None:
    held = tmp_path / "recorded"
    (held / name).mkdir(parents=True)
    with pytest.raises(BadInput):
        run.triage([str(os.getpid())], held)
    assert [path.name for path in held.iterdir()] == [name]


def test_the_pid_of_one_rank_finds_the_ranks_of_its_job() -> None:
    """Two jobs of two ranks; each rank is a process that sleeps, with the variables that torchrun sets."""
    ranks = []
    try:
        for port in ("29501", "29502"):
            for rank in ("0", "1"):
                place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": rank}
                ranks.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **place}))
        pids = [process.pid for process in ranks]
        assert sorted(live(str(pids[0])).roots) == pids[:2] and sorted(live(str(pids[3])).roots) == pids[2:]
        alone = subprocess.Popen(["sleep", "60"], env={**os.environ, "WORLD_SIZE": "1", "RANK": "0"})
        ranks.append(alone)
        assert live(str(alone.pid)).roots == (alone.pid,)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
