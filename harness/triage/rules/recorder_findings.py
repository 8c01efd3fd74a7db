"""Rule about what torch's own analysis of recorders said, where its text was pasted and not the dumps.

It says which rank has not come to an operation, and neither what that rank did last nor when the dumps were taken. So
nothing is proven by it, and the dumps that it read are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.triage.evidence import PASTED, RecorderFinding
from harness.triage.rules import standing
from harness.triage.rules.pasted import one_look
from harness.triage.rules.ruling import Case, Ruling
from reports.text import agreeing

_FOLDER = "harness triage FOLDER   # the flight recorder dumps that fr_trace read: they say what each rank did last"
_NEXT_RUN = (
    "TORCH_FR_DUMP_TEMP_FILE=/shared/nccl_trace_rank_ TORCH_NCCL_DUMP_ON_TIMEOUT=1 COMMAND   # for the next run, where "
    "no dumps are left of this one"
)


def analysed(case: Case) -> Ruling | None:
    """INSUFFICIENT: what was found of each operation; of a table, that the dumps say more.

    An error in a log says more, and so do stacks beside a table.
    """
    findings = case.evidence.recorder_findings
    if case.evidence.source != PASTED or case.groups or case.evidence.errors or not findings:
        return None
    operations = [finding for finding in findings if finding.kind not in ("table", "no dump")]
    beside = one_look(case)
    if beside is not None and not operations:
        return None
    first = _first(operations)
    return Ruling(
        "INSUFFICIENT",
        _headline(first) if first is not None else _without_findings(findings),
        evidence=(
            *(_line(finding) for finding in operations[: standing.MAX_LINES]),
            *(beside.evidence if beside is not None else ()),
        ),
        missing=(
            "what each rank did last, and when it was dumped: the dumps say it, and this text does not",
            *(_no_dumps(finding) for finding in findings if finding.kind == "no dump"),
            *(beside.missing if beside is not None else ()),
        ),
        place=_operation(first) if first is not None else "",
        next=(_FOLDER, _NEXT_RUN, "harness triage PID   # of any process of the job, while it stands"),
    )


def _first(operations: Sequence[RecorderFinding]) -> RecorderFinding | None:
    """The finding to begin with: of ranks that are missing and wait in none of the other operations, since one that
    waits elsewhere is held up there; else the first."""
    absences = [finding for finding in operations if finding.kind == "missing"]
    waiting = {rank for finding in absences for rank in {*finding.expected} - {*finding.ranks}}
    roots = (finding for finding in absences if finding.ranks and not waiting & {*finding.ranks})
    return next(roots, operations[0] if operations else None)


def _operation(finding: RecorderFinding) -> str:
    return f"{finding.op} #{finding.seq}" + (f" of group {''.join(finding.group.split())}" if finding.group else "")


def _headline(finding: RecorderFinding) -> str:
    who, where = standing.ranks_text(finding.ranks), _operation(finding)
    if finding.kind == "missing" and finding.ranks:
        return f"fr_trace: {who} {agreeing(len(finding.ranks), 'has', 'have')} not come to {where}; why is not in it"
    if finding.kind == "differs" and finding.ranks:
        return f"fr_trace: {who} {agreeing(len(finding.ranks), 'differs', 'differ')} from the first rank in {where}"
    return f"fr_trace: sizes do not fit each other in {where}"


def _line(finding: RecorderFinding) -> str:
    members = f", of {standing.ranks_text(finding.expected)}" if finding.expected else ""
    state = f"; it is {finding.state}" if finding.state else ""
    error = f"; {finding.error}" if finding.error else ""
    what = {"missing": "not there", "differs": "different from the first rank"}.get(finding.kind, "sizes do not fit")
    who = f"{standing.ranks_text(finding.ranks)} " if finding.ranks else ""
    return f"{_operation(finding)}{members}: {who}{what}{state}{error} ({finding.file}:{finding.line})"


def _no_dumps(finding: RecorderFinding) -> str:
    return f"the {agreeing(len(finding.ranks), 'dump', 'dumps')} of {standing.ranks_text(finding.ranks)}"


def _without_findings(findings: Sequence[RecorderFinding]) -> str:
    absent = next((finding for finding in findings if finding.kind == "no dump"), None)
    if absent is not None:
        return f"fr_trace had no dump of {standing.ranks_text(absent.ranks)}, and compared nothing"
    return "a table of fr_trace, from which nothing is read: give the dumps that it was made from"
