"""What the fuzzer starts from: files as the harness itself writes them, and the commands that read them.

Each input is made once and copied for every case.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import framework_recordings
import recordings
import reports_examples
from hostile_changes import files_of
from kept_folders import kept_folder
from triage_evidence import process, rank

from harness.bundle.manifest import NAME as BUNDLE_MANIFEST
from harness.bundle.packing import pack
from harness.triage import directory, judge
from harness.triage.evidence import Call, Evidence, Gpu, Group, Journal, OpenSpan, RayActor, RayNode, RayTask, Silence
from harness.triage.flight import synthesis
from probes import format
from reports import exporters, renderers
from reports.model import AUDIT_EXIT_CODES, EXIT_CODES, TRIAGE_EXIT_CODES

BAD_INPUT = 2
PACKED = "packed"  # a folder that is zipped before the command runs
TRIAGE = frozenset(TRIAGE_EXIT_CODES.values())
PARITY = frozenset(EXIT_CODES.values())
AUDIT = frozenset(AUDIT_EXIT_CODES.values())
SHOWN = frozenset({0, 1, *PARITY, *TRIAGE, *AUDIT})  # `harness report` has the exit code of the verdict that it shows


@dataclass(frozen=True)
class Input:
    """`make` writes the files into an empty folder; `commands` run in a copy of it.

    `codes`: exit codes that the commands may end with, beside that of bad input. `recording`: the files belong to
    recordings with checksums, so a verdict that passes must not come of a change to them. `function`: of this module,
    called in the place of a command.
    """

    make: Callable[[Path], object]
    commands: tuple[tuple[str, ...], ...]
    codes: frozenset[int]
    recording: bool = False
    function: str = ""


def evidence(folder: Path, ranks: range = range(4), host: str = "node0") -> Evidence:
    """A job of four ranks and a driver, everything filled in that a collector may find."""
    groups = (Group("0", tuple(range(4)), "nccl", "default_pg", 4), Group("sync", (), "nccl", "", 2, 0))
    calls = (Call("generate", True, "", 3.0, 7), Call("sync", False, "no such tensor", 2.0, 7))
    journal = Journal(
        "events/actor-0-100.jsonl", 812, 3.0, "step", calls, ((2.0, "sync: no such tensor"),), groups,
        engine_stats={"running": 2, "waiting": 1, "kv_usage": 0.5},
    )  # fmt: skip
    span = OpenSpan("all_reduce", 61.0, {"step": 42})
    members = [
        dataclasses.replace(
            rank(number, "main:10 step:42 all_reduce" if number else "main:10 step:41 queue.get", spans=[span]),
            host=host,
            journal=journal,
            dump=f"recorder/{directory.file_name(host, 100 + number)}",
            dump_taken_ns=synthesis.START_NS + 10**10,
            environ={"RANK": str(number), "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
            listening=("10.0.0.1:29500",),
            peers=("10.0.0.2:4000",),
            notes=("no native stack: ptrace is not permitted",),
        )
        for number in ranks
    ]
    driver = dataclasses.replace(process(90, "driver", "main:5 fit:12 ray.get"), host=host)
    gone = dataclasses.replace(process(91, "rollout"), host=host, exit_code=1, error="CUDA error", error_age_s=70.0)
    job = synthesis.simulate(4, 40, synthesis.Fault("skip", 0, 20), tensor_parallel=2)
    (folder / "recorder").mkdir(parents=True)
    for number, member in zip(ranks, members, strict=True):
        (folder / member.dump).write_bytes(synthesis.encoded(job, number, "json" if number % 2 else "pickle"))
    (folder / "recorder" / "loose_rank_0.json").write_bytes(synthesis.encoded(job, 0, "json"))
    taken = Evidence(
        path=str(folder),
        source="watch",
        taken="2031-03-05T12:00:00+00:00",
        stall_s=62.0,
        processes=(*members, driver, gone),
        ray_actors=(RayActor("a1", "Actor", "ALIVE", host, 100), RayActor("a2", "Critic", "DEAD", host, 91, "killed")),
        ray_tasks=(RayTask("t1", "Actor.step", "RUNNING", 61.0, host, 100, "a1", 90, "", host),),
        gpus=(Gpu(host, 0, "H100", 70 << 30, 80 << 30, 1.0, (100, 101)),),
        ras={host: {"communicators": [{"size": 4, "ranks": [0, 1, 2, 3]}]}},
        dumps={"loose": "recorder/loose_rank_0.json"},
        expected_world=4,
        threshold_s=30.0,
        notes=("the dashboard of Ray was not asked",),
        ray_nodes=(RayNode(host, True), RayNode("node9", False, "missed heartbeats", "no answer")),
        unreached={"http://node8:8000": Silence("timed out", True)},
    )
    directory.write(taken, folder)
    return taken


def watch(folder: Path) -> None:
    """Heartbeats and journals of two processes of another host, as `harness watch` leaves them."""
    recordings.make("baseline", recordings.scenario(steps=1, prompts=2, group=2, max_tokens=4)).write(folder)
    (folder / "beats").mkdir()
    for pid in (4000, 4001):
        beat = {
            "count": 9, "host": "node-1", "pid": pid, "start_ticks": 5, "t_ns": 9 * 10**9, "progress_ns": 4 * 10**9,
            "period_s": 1.0, "open": [{"name": "sync", "start_ns": 2 * 10**9, "fields": {"step": 3}}],
            "sequences": {"0": 17}, "wait": "collective", "stack": ["train.py:10 main"], "tid": 7, "rank": 1,
            "world_size": 2, "role": "actor", "socket": "/tmp/s", "journals": ["events/a.jsonl"], "error": "",
            "states": {"engine": {"running": 4.0, "waiting": 28.0, "kv_usage": 0.93, "t_ns": 3 * 10**9}},
        }  # fmt: skip
        (folder / "beats" / f"{pid}.json").write_text(json.dumps(beat))


def collected(folder: str) -> int:
    """Read a watch directory as the collectors do."""
    from harness.triage.collect import beats, journals

    path = Path(folder)
    beats.read(path, 10**10)
    files = journals.files(path)
    journals.owners(files, "node-1")
    journals.read(files, {"node-1": 10**10})
    return 0


def dumps(folder: Path, form: str) -> None:
    job = synthesis.simulate(4, 40, synthesis.Fault("skip", 2, 20), tensor_parallel=2)
    list(synthesis.write(job, folder, form))  # type: ignore[arg-type]


def packed_dumps(folder: Path) -> None:
    """The dumps of a job, in an archive for each of two nodes, and one in a packed file of its own."""
    with tempfile.TemporaryDirectory() as made:
        dumps(Path(made), "pickle")
        files = sorted(Path(made).iterdir())
        for node, its in enumerate((files[:2], files[2:-1])):
            with tarfile.open(folder / f"node{node}.tar.gz", "w:gz") as tarred:
                for file in its:
                    tarred.add(file, file.name)
        (folder / f"{files[-1].name}.gz").write_bytes(gzip.compress(files[-1].read_bytes()))


def run(folder: Path, side: str = "baseline", *, ranks: int = 1, native: bool = True, half: bool = False) -> None:
    plan = recordings.scenario(steps=2, prompts=2, group=2, max_tokens=8, dtype="bfloat16" if half else "float32")
    plan = dataclasses.replace(plan, ppo=dataclasses.replace(plan.ppo, world_size=ranks, train_batch_size=4))
    recording = recordings.make(side, plan, native=native)
    recording.stage = recordings.stage(side, plan) if half else None
    for part in filter(None, (recording, recording.stage)):
        recordings.promise(part)
    recording.write(folder)


def pair(folder: Path, *, half: bool = False) -> None:
    for side in format.SIDES:
        run(folder / side, side, half=half)


def jobs(folder: Path) -> None:
    """Two runs of a framework, which records less than ours."""
    plan = dataclasses.replace(recordings.scenario(steps=2, prompts=2, group=2, max_tokens=8), guided=False)
    for side in format.SIDES:
        framework_recordings.job(side, plan=plan).write(folder / side)


def verdicts(folder: Path) -> None:
    made = [reports_examples.stale_tensor(), judge.triage(evidence(folder / "evidence"))]
    for number, verdict in enumerate(made):
        (folder / f"verdict-{number}.json").write_text(verdict.to_json())
    shutil.rmtree(folder / "evidence")


def bundle(folder: Path, make: Callable[[Path], object]) -> None:
    """The members of a bundle, in a folder that is zipped again."""
    with tempfile.TemporaryDirectory() as place:
        make(Path(place) / "made")
        pack([Path(place) / "made"], Path(place) / "made.zip")
        with zipfile.ZipFile(Path(place) / "made.zip") as zipped:
            zipped.extractall(folder / PACKED)


def nights(folder: Path) -> None:
    (folder / "nightly.toml").write_text(MATRIX)
    (folder / "known.toml").write_text(KNOWN)


MATRIX = """
name = "rlhf-harness"
known = "known.toml"
[defaults]
limit = "20m"
retries = 1
[matrix]
pairs = [["hf", "hf"]]
scenarios = ["rollout-tiny"]
[[include]]
pair = ["hf", "hf"]
candidate_settings = ["seed=1"]
[keep]
days = 7
size = "20G"
"""
KNOWN = """
[[known]]
cell = "hf-hf/*"
cause = "STALE_WEIGHTS*"
reason = "a known bug of the engine"
owner = "me"
expires = 2030-01-31
"""
FORMATS = tuple(name for name in renderers.names() if ":" not in name)
INPUTS: dict[str, Input] = {
    "evidence": Input(evidence, (("triage", "."), ("triage", ".", "--format", "json"), ("bundle", ".")), TRIAGE),
    "nodes": Input(
        lambda folder: [evidence(folder / f"node{n}", range(2 * n, 2 * n + 2), f"node{n}") for n in (0, 1)],
        (("triage", "node0", "node1", "--format", "json"), ("triage", ".", "--verbose")),
        TRIAGE,
    ),
    "evidence-zip": Input(
        lambda folder: evidence(folder / PACKED), (("triage", f"{PACKED}.zip", "--format", "json"),), TRIAGE
    ),
    "dumps": Input(lambda folder: dumps(folder, "json"), (("triage", ".", "--format", "json"),), TRIAGE),
    "pickles": Input(lambda folder: dumps(folder, "pickle"), (("triage", ".", "--format", "json"),), TRIAGE),
    "packed-dumps": Input(packed_dumps, (("triage", ".", "--format", "json"),), TRIAGE),
    "watch": Input(watch, ((".",),), frozenset({0}), function="collected"),
    "pair": Input(pair, (("diff", "baseline", "candidate", "--format", "json"),), PARITY, recording=True),
    "pair-half": Input(
        lambda folder: pair(folder, half=True), (("diff", "baseline", "candidate", "--format", "json"),), PARITY,
        recording=True,
    ),
    "pair-framework": Input(jobs, (("diff", "baseline", "candidate", "--format", "json"),), PARITY, recording=True),
    "run": Input(run, (("audit", ".", "--format", "json"),), AUDIT, recording=True),
    "run-ranks": Input(
        lambda folder: run(folder, ranks=2), (("audit", ".", "--format", "json"),), AUDIT, recording=True
    ),
    "run-shown": Input(
        lambda folder: run(folder / "run"),
        (
            ("report", "run"), ("report", "run", "--format", "json"), ("report", "run", "--format", "html"),
            *(("report", "run", "--export", tracker, "--out", "exported") for tracker in exporters.names()),
        ),
        SHOWN,
    ),
    "run-packed": Input(
        lambda folder: run(folder / "run"), (("bundle", "run"), ("bundle", "run", "--hash-prompts")), frozenset({0})
    ),
    "verdict": Input(
        verdicts,
        tuple(("report", f"verdict-{n}.json", "--format", format) for n in (0, 1) for format in FORMATS),
        SHOWN,
    ),
    "bundle-run": Input(
        lambda folder: bundle(folder, run), (("audit", f"{PACKED}.zip"), ("report", f"{PACKED}.zip")), SHOWN
    ),
    "bundle-pair": Input(
        lambda folder: bundle(folder, pair), (("diff", f"{PACKED}.zip"), ("report", f"{PACKED}.zip")), SHOWN
    ),
    "bundle-evidence": Input(
        lambda folder: bundle(folder, evidence), (("triage", f"{PACKED}.zip"), ("report", f"{PACKED}.zip")), SHOWN
    ),
    "nights": Input(
        nights,
        (
            ("render", "github", "nightly.toml", "--out", "written", "--source", "."),
            ("nightly", "nightly.toml", "--list"),
        ),
        frozenset({0}),
    ),
}  # fmt: skip


@functools.cache
def made(name: str) -> Path:
    """The folder of an input, unchanged."""
    folder = kept_folder(f"hostile-{name}-") / "files"
    folder.mkdir()
    INPUTS[name].make(folder)
    return folder


def packed(folder: Path, *, sealed: bool) -> None:
    """Zip the folder PACKED; `sealed`: after the manifest of a bundle was brought into line with its files."""
    place = folder / PACKED
    manifest = place / BUNDLE_MANIFEST
    if sealed:
        _list_files(manifest)
    with zipfile.ZipFile(folder / f"{PACKED}.zip", "w") as zipped:
        for file in sorted(files_of(place), key=lambda file: file != manifest):
            name = os.fsencode(file.relative_to(place).as_posix()).decode("cp437")  # names may be no UTF-8
            zipped.writestr(zipfile.ZipInfo(name), _read(file))


def _read(file: Path) -> bytes:
    """The bytes of a file. Raises OSError for a pipe or a device that a change put there: to open a pipe never ends."""
    if not file.is_file():
        raise FileNotFoundError(file)
    return file.read_bytes()


def _list_files(manifest: Path) -> None:
    try:
        content = json.loads(_read(manifest))
        listed = content["files"].items()
        for name, member in listed:
            data = _read(manifest.parent / name)
            member |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # a change of this case: the bundle stays as it is
    manifest.write_text(json.dumps(content))
