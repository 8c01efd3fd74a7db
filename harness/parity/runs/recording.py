"""What all recording commands share: the new directory, the watchdog, the verdict and its files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import reports
from harness import dates, verdict_file
from harness.cluster.waiting import RunCut
from harness.errors import BadInput, HarnessError
from harness.nearest_run import what_there_is
from harness.other_paths import another_out
from harness.parity.runs.run_options import LaunchOptions
from harness.recordings.library import Library
from harness.triage.watch.guard import Guard
from probes.files import FILE_MODE, folder_or_nothing, try_writing, write_whole
from probes.format import EVENTS, FormatError
from reports.model import EXIT_CODES, Verdict
from reports.progress import ProgressEvent

CLAIM = ".recording"  # a file of the command that writes into a folder, while it does


def guarded(folder: Path, options: LaunchOptions) -> contextlib.AbstractContextManager[Guard | None]:
    """Return the watchdog of a recording; None where it is turned off."""
    if not options.stall_s:
        return contextlib.nullcontext()
    return Guard(
        folder / "watch", options.stall_s, say=lambda line: options.progress(ProgressEvent("", "", message=line))
    )


def verdict_with_cut(
    baseline: Path,
    candidate: Path,
    cut: RunCut | None,
    *,
    native: bool,
    cap: float | None,
    library: Library | None = None,
) -> Verdict:
    """Return the verdict on two recordings. It never passes where the candidate was cut short."""
    from harness.parity.answers import cut_short
    from harness.parity.verdict import judged_pair

    if cut is None:
        return judged_pair(baseline, candidate, native=native, cap=cap, library=library).verdict
    try:
        verdict = judged_pair(baseline, candidate, native=False, cap=cap, library=library).verdict
    except HarnessError:
        verdict = Verdict("parity", "INCONCLUSIVE", EXIT_CODES["INCONCLUSIVE"], "")
    if not verdict.coverage.get("samples"):  # an engine did not start: what is missing need not be listed
        verdict = dataclasses.replace(verdict, missing=[], findings=[], parity=None)
    # Whatever the judge says about the recorded parts, a run that was cut short never passes.
    answer = cut_short(cut.message)
    return dataclasses.replace(
        verdict,
        verdict="INCONCLUSIVE",
        exit_code=EXIT_CODES["INCONCLUSIVE"],
        reason=answer.reason,
        evidence=answer.evidence,
        fix=cut.fix or "",
        triage=cut.triage.triage if cut.triage is not None else None,
    )


def compacted(*runs: Path, library: Library | None = None) -> None:
    """Write the same recordings as Parquet, for pandas. It is an extra, so a full disk does not cost the verdict."""
    from harness.recordings.compact import compact

    for run in runs:
        with contextlib.suppress(FormatError, OSError):
            compact(run, library)


def check_ranks(run: Path) -> None:
    """Check that the ranks of a run's learner did together what one process would. Raises HarnessError."""
    from harness.parity.subjects.ranks.observed import Ranks
    from harness.parity.subjects.ranks.observed_faults import rank_faults
    from harness.recordings.store import Recording

    for fault in rank_faults(Ranks(Recording(run))):
        raise HarnessError(f"{fault.text}; the run was recorded in {run}", fix=f"harness report {run}")


@contextlib.contextmanager
def recording_in(out: str | os.PathLike[str] | None, name: str) -> Iterator[Path]:
    """Yield the new directory of a recording.

    An empty one is removed when nothing was recorded. An interrupt is told where the rest is. Raises BadInput.
    """
    folder = _folder(out, name)
    with contextlib.ExitStack() as opened:
        try:
            opened.enter_context(folder_or_nothing(folder))
            opened.enter_context(_claimed(folder, out))
            try_writing(folder)
        except OSError as error:
            raise BadInput(
                f"{folder} cannot be written: {error.strerror}",
                fix="--out DIR   # a folder that can be written, on a disk with free space (df -h)",
            ) from error
        try:
            yield folder
        except KeyboardInterrupt as error:
            if any(folder.glob(f"**/{EVENTS}/*.jsonl")):
                error.add_note(f"what was recorded until then is in {folder}")
                error.__dict__["fix"] = what_there_is(folder)
            raise


@contextlib.contextmanager
def _claimed(folder: Path, out: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold an empty folder alone: of two commands that begin at the same time, one gets it. Raises BadInput."""
    claim = folder / CLAIM
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError as error:
        raise _not_empty(folder, out) from error
    try:
        if any(entry.name != CLAIM for entry in folder.iterdir()):
            raise _not_empty(folder, out)
        yield
    finally:
        claim.unlink(missing_ok=True)


def _not_empty(folder: Path, out: str | os.PathLike[str] | None) -> BadInput:
    return BadInput(f"{folder} is not empty; a recording never overwrites another", fix=another_out(out or folder))


def _folder(out: str | os.PathLike[str] | None, name: str) -> Path:
    if out is None:
        return (Path("runs") / f"{name.replace('@', '-')}-{dates.stamp()}").resolve()
    folder = Path(out).resolve()
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; a recording is a directory", fix=another_out(out))
    if folder.exists() and any(folder.iterdir()):
        raise _not_empty(folder, out)
    return folder


def written(verdict: Verdict, folder: Path) -> Verdict:
    """Write the verdict with its paths into the folder, and return it. A full disk costs the files, not the verdict."""
    files = {"verdict": folder / verdict_file.NAME, "report": folder / "report.html"}
    complete = dataclasses.replace(
        verdict, paths={"run": str(folder)} | {name: str(file) for name, file in files.items()}
    )
    try:
        write_whole(files["verdict"], complete.to_json().encode())
        write_whole(files["report"], reports.render(complete, "html").encode())
    except OSError as error:
        for file in files.values():
            file.unlink(missing_ok=True)  # half a verdict would be read as a whole one
        lost = f"verdict.json and report.html: they could not be written to {folder}: {error.strerror}"
        return dataclasses.replace(verdict, missing=[*verdict.missing, lost], paths={"run": str(folder)})
    return complete
