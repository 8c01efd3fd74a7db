"""Rules about rollout engines: a refused call (K13), a transition that does not end (K8), a branch of one rank (K3)."""

from __future__ import annotations

import re

from harness.triage.evidence import Call
from harness.triage.graph import Subject
from harness.triage.graph.subjects import transition as standing
from harness.triage.rules.bystanders import elsewhere, leads_out, lost
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.ruling import YOUNG_S, Case, Ruling, brief
from harness.triage.stacks import Doing

AFTER_S = 30.0  # a sender comes to its broadcast within this time after a refusal; older refusals were survived
_STOPS = re.compile(r"abort|cancel", re.I)


def refused(case: Case) -> Ruling | None:
    """K13: the last call of an engine failed at once, the engine is idle again, and somebody waits for it."""
    waiting = [waiter for waiter in case.graph.stuck() if not waiter.ended]
    if not waiting:
        return None
    refusals = _refusals(case, waiting)
    if not refusals:
        return None
    call = next(iter(refusals.values()))
    state = next((waiter.state() for waiter in waiting if waiter.key not in refusals), "")
    where = case.waited_in(refusals)
    sender = f"the sender waits in {where}" if where else f"the sender: {state}"
    return Ruling(
        "HUNG",
        f"{case.names(refusals)} refused {call.name}: {brief(call.message)}",
        "K13",
        {key: f"refused {call.name}: {call.message}" for key, call in refusals.items()},
        place=f"{call.name} at step {call.step}" if call.step >= 0 else call.name,
        evidence=(sender,),
        next=(
            "fix what the message says, and let the sender read each answer before it broadcasts",
            "give the weight-sync group a timeout of its own: new_group has 30 minutes whatever its parent has",
        ),
    )


def _refusals(case: Case, waiting: list[Subject]) -> dict[str, Call]:
    """Key of an engine that refused what somebody waits for, and is idle again -> its last call."""
    refusals: dict[str, Call] = {}
    nowhere = [waiter for waiter in lost(case) if leads_out(case, waiter)]
    has_unrecorded_engine = any(wait.target.startswith("rank ") for wait in case.graph.waits)
    for subject in case.graph.subjects.values():
        call = last_refusal(subject)
        if call is None or not _is_idle_again(subject) or call.age_s > _oldest_wait_s(case, waiting, subject) + AFTER_S:
            continue  # at work, or the refusal is older than the wait: work went on after it
        open_ended = has_unrecorded_engine or any(waiter.key != subject.key for waiter in nowhere)
        if subject.key in case.awaited() or (open_ended and not elsewhere(case, {subject.key, *refusals})):
            refusals[subject.key] = call
    return refusals


def _is_idle_again(subject: Subject) -> bool:
    rests = subject.rests and subject.pending is None
    return rests and (subject.doing.idle or subject.doing.within("scheduler", "queue", "lock", "select"))


def _oldest_wait_s(case: Case, waiting: list[Subject], subject: Subject) -> float:
    """How long others have waited. Ages of two directories cannot be compared, so that there only waiters of the same
    host count."""
    if case.evidence.directories:
        waiting = [waiter for waiter in waiting if waiter.process.host == subject.process.host]
    return _waited_s(case, waiting)


def _waited_s(case: Case, waiting: list[Subject]) -> float:
    """How long the oldest waiter has stood still, in seconds.

    If nothing says it: infinity for one look at one job, and 0 for directories, which may be of different times.
    """
    ages = [wait.since_s for wait in case.graph.waits if wait.since_s is not None]
    for waiter in waiting:
        if waiter.pending is not None and waiter.pending.age_s is not None:
            ages.append(waiter.pending.age_s)
        if waiter.process.beat is not None:
            ages.append(waiter.process.beat.progress_age_s)
    ages += [case.evidence.stall_s] if case.evidence.stall_s else []
    return max(ages, default=0.0 if case.evidence.directories else float("inf"))


def last_refusal(subject: Subject) -> Call | None:
    """The engine's last call if it failed; None otherwise. Calls that abort or cancel are ignored: they also fail
    for a request that has ended, and that holds nobody up."""
    journal = subject.process.journal
    calls = [call for call in (journal.calls if journal else ()) if not _STOPS.search(call.name)]
    return calls[-1] if calls and not calls[-1].ok else None


def transition(case: Case) -> Ruling | None:
    """K8: a process stands in its engine's sleep or wake-up."""
    for subject in case.live():
        name, age = standing(subject.process)
        if not name and _in_transition(subject.doing) and _in_transition(subject.before):
            name = subject.doing.op if subject.doing.kind == "transition" else subject.doing.frame.rsplit(" ", 1)[-1]
        if not name or subject.blocked:
            continue
        if subject.key in case.graph.waiting and subject.key not in _ends(case):
            continue  # it waits for another process, and the answer is there
        if subject.pending is not None:
            continue  # the rank that has not come is looked at first
        if not _held_up(case, subject):
            continue  # nobody waits for it, and another process is waited for
        if subject.progress:
            return slow_because(case, [subject.key])
        if name and 0.0 < age < YOUNG_S:
            continue
        since = f" for {age:.0f} s" if age else ""
        engine = subject.process.engine or subject.role or "engine"
        return Ruling(
            "HUNG",
            f"{subject.label} stands in {name}{since}",
            "K8",
            {subject.key: f"stands in {name}{since}"},
            place=f"{engine}: {name}",
            next=(
                "look at what the frame waits for: a lock that a failed call kept, or a request never counted out",
                "drain or abort requests before sleep; restart the engine to go on",
            ),
        )
    return None


def _held_up(case: Case, subject: Subject) -> bool:
    """Whether somebody waits for it; or waiting ends nowhere else, and some waiter may mean it because no recorder
    knows the members of its group."""
    if subject.key in case.awaited():
        return True
    nowhere = [each for each in lost(case) if each.key != subject.key]
    return not elsewhere(case, {subject.key}) and (not nowhere or any(leads_out(case, each) for each in nowhere))


def _in_transition(doing: Doing) -> bool:
    """Whether the stack alone shows a transition. A function of the user's that is called "sleep" may only sleep."""
    if doing.kind == "transition":
        return doing.op != "sleep" or doing.within("scheduler")
    return "transition" in doing.around and doing.kind != "sleep"


def _ends(case: Case) -> set[str]:
    return {*case.graph.sinks, *(key for ring in case.graph.cycles for key in ring)}


def branch(case: Case) -> Ruling | None:
    """K3: some ranks of one engine entered a collective while the others are in their scheduler loop."""
    loops = [
        sink
        for sink in case.sinks()
        if sink.doing.within("scheduler") and not sink.doing.waiting and sink.pending is None
    ]
    if not loops:
        return None
    keys = {subject.key for subject in loops}
    inside = [
        case.subject(wait.waiter)
        for wait in case.graph.waits
        if wait.target in keys and wait.layer in ("collective", "store")
    ]
    inside = [waiter for waiter in dict.fromkeys(inside) if waiter.doing.within("scheduler")]
    if not inside:
        return None
    alone = inside if len(inside) < len(loops) else loops
    where = case.waited_in(keys)
    if alone is inside:
        how = f"entered {where} alone"
        why = f"entered {where} alone, its peers stay in their scheduler loop"
        opposite_side = f"{case.names(keys)} in {loops[0].frame}"
    else:
        how = "stays in its scheduler loop"
        why = f"stays in its scheduler loop, its peers are in {where}"
        opposite_side = f"{case.names(waiter.key for waiter in inside)} in {inside[0].frame}"
    return Ruling(
        "HUNG",
        f"a branch of one rank: {case.names(subject.key for subject in alone)} {how}",
        "K3",
        {subject.key: f"{why}; here {subject.frame}, there {opposite_side}" for subject in alone},
        place=where,
        next=(
            "compare the inputs of the branch on both ranks: clocks, queue lengths, free memory",
            "decide on one rank and broadcast the decision",
        ),
    )
