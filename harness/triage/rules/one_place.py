"""Rule about ranks that all wait in one call at one line of the program, where its text says why none goes on.

Ranks at one line are in one operation as a rule, and nothing is to be said of them. Two slips show in the text: the
call's source or destination is computed from the rank, so that each rank waits for another one; and the ranks make a
group, of which an earlier one stands in a branch on the rank, while every rank of the world has to make each group.
"""

from __future__ import annotations

from harness.triage import slip_text
from harness.triage.evidence import Frame
from harness.triage.graph import Subject
from harness.triage.graph.edges import forming
from harness.triage.places import inner_frame
from harness.triage.rules.apart import doubts, members, stands_in_collective
from harness.triage.rules.ruling import Case, Live, Ruling
from harness.triage.stacks import describe

_ONE_ROOT = "give every rank the same {name}: it is the rank that sends to all, or that gets what all send"
_ALL_MAKE = "call new_group on every rank, members or not, in one order: take line {line} out of its branch"


def one_place(case: Case) -> Ruling | None:
    """K2, K5 or INSUFFICIENT: all ranks wait at one line, whose text keeps them from going on."""
    ranks = members(case)
    frame = _common_line(ranks)
    is_recorded = case.evidence.stall_s or any(group.ranks for group in case.groups)
    if frame is None or case.evidence.source != "live" or is_recorded or len(ranks) < 2:
        return None
    place = describe(frame)
    if all(map(stands_in_collective, ranks)) and (root := slip_text.root_by_rank(frame)):
        reason = f"each rank waits in {place.partition(' in ')[0]} {ranks[0].doing.op} with another {root}"
        return _ruled(case, ranks, "K2", reason, place, _ONE_ROOT.format(name=root.partition("=")[0]))
    if all(forming(subject) and subject.rests for subject in ranks):
        line, condition = slip_text.group_in_a_branch(frame)
        if line:
            reason = f"the group of {place.partition(' in ')[0]} never forms: line {line} makes one {condition}"
            return _ruled(case, ranks, "K5", reason, place, _ALL_MAKE.format(line=line))
    return None


def _common_line(ranks: list[Subject]) -> Frame | None:
    """The line of the user's code at which all ranks stand at every look; None if they stand at several."""
    lines = {inner_frame(look.main_frames) for subject in ranks for look in subject.process.samples}
    return lines.pop() if len(lines) == 1 else None


def _ruled(case: Case, ranks: list[Subject], hang: str, reason: str, place: str, advice: str) -> Ruling:
    """HUNG without a culprit; INSUFFICIENT where somebody may still come, or something may still move."""
    if open_questions := doubts(case, ranks):
        again = Live(f"{case.again()}   # again, in a minute: whether all still stand there")
        return Ruling("INSUFFICIENT", reason, place=place, missing=tuple(open_questions), next=(advice, again))
    waiting = {subject.key: place for subject in ranks}
    return Ruling("HUNG", reason, hang, waiting=waiting, place=place, next=(advice,))
