"""`harness triage WHAT`: finds out what WHAT is, takes or reads the evidence, judges it, writes the verdict down."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import BadInput, HarnessError
from harness.triage import judge
from harness.triage.evidence import Evidence
from reports.model import Verdict

WHAT = "a run directory, pids, a Ray address, an evidence directory or its zip, or a directory of recorder dumps"
LIVE = "events", "beats"


def triage(what: list[str], out: str | os.PathLike[str] | None = None) -> Verdict:
    """The verdict on `what`: WHAT above; `auto` or nothing is the Ray cluster of this host.

    Live processes are looked at now, for at most some ten seconds, and their evidence is kept under `out` (a new
    directory under the system's temporary one without it); directories are read. Raises BadInput for what is none of
    these.
    """
    evidence = _evidence(what, Path(out) if out else None)
    verdict = judge.triage(evidence)
    verdict = dataclasses.replace(verdict, reproduce=_command(what, evidence))
    if out is None and evidence.source not in ("live", "watch"):
        return verdict
    folder = Path(out) if out else Path(evidence.path)
    path = folder / "verdict.json"
    verdict = dataclasses.replace(verdict, paths={**verdict.paths, "verdict": str(path)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(verdict.to_json(), encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"the verdict cannot be written to {path}: {error.strerror}", mend="--out DIR") from error
    return verdict


def _evidence(what: list[str], out: Path | None) -> Evidence:
    from harness.triage import directory

    paths = [Path(one) for one in what]
    there = [path for path in paths if path.exists() and not str(path).isdigit()]
    if there and len(what) > 1:
        raise BadInput(f"{' '.join(what)}: one directory at a time, or several pids", mend=f"harness triage {what[0]}")
    if there:
        path = there[0]
        if directory.is_evidence(path) or path.is_file():
            return directory.read(path)
        taken = newest(path)
        if not any((path / name).is_dir() for name in LIVE):
            return directory.read(taken or path)
        return _run(path, taken, out)
    if len(what) == 1 and _pathlike(what[0]):
        raise BadInput(f"{what[0]}: no such file or directory", mend=f"harness triage takes {WHAT}")
    return _live(what, out)


def _run(run: Path, taken: Path | None, out: Path | None) -> Evidence:
    """A run directory: looked at now while any of its processes lives, else its newest evidence."""
    from harness.triage import directory

    evidence = _live([str(run)], out)
    alive = [one for one in evidence.processes if one.samples and one.samples[-1].state not in ("gone", "Z", "X")]
    if not alive and taken is not None:
        return directory.read(taken)
    return evidence


def newest(run: Path) -> Path | None:
    """The newest evidence directory of a run; None where it has none."""
    from harness.triage import directory

    try:
        found = [path for path in (run / "evidence").iterdir() if directory.is_evidence(path)]
    except OSError:  # no such folder: nothing was ever taken
        return None
    return max(found, key=lambda path: path.name, default=None)


def _live(what: list[str], out: Path | None) -> Evidence:
    from harness.triage.collect import collect, live

    scope = live(what or ["auto"])
    if out is None:
        out = Path(tempfile.mkdtemp(prefix=f"harness-triage-{datetime.now(UTC):%H%M%S}-"))
    elif (out / "evidence.json").exists():
        raise BadInput(
            f"{out} already holds evidence: another look needs another directory",
            mend=f"harness triage {' '.join(what)} --out {out}-2",
        )
    return collect(scope, out=out)


def _pathlike(word: str) -> bool:
    return "/" in word or word.endswith((".zip", ".json", ".pkl", ".pickle")) or word.startswith(".")


def _command(what: list[str], evidence: Evidence) -> str:
    import shlex

    live = evidence.source in ("live", "watch")
    return shlex.join(["harness", "triage", *([evidence.path] if live and evidence.path else what)])
