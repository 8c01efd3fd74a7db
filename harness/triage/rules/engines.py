"""Rollout engines: a refused call (K13), a transition that does not end (K8), a branch of one rank alone (K3)."""

from __future__ import annotations

import re

from harness.triage.evidence import Call
from harness.triage.graph import Subject
from harness.triage.graph.subjects import transition as standing
from harness.triage.rules.bystanders import elsewhere, leads_out, lost
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.ruling import YOUNG_S, Case, Ruling, brief
from harness.triage.stacks import Doing

AFTER_S = 30.0  # a sender comes to its broadcast so long after the refusal at most; an older one was got over
_STOPS = re.compile(r"abort|cancel", re.I)


def refused(case: Case) -> Ruling | None:
    """K13: the last call of an engine failed at once, the engine is idle again, and somebody waits for it."""
    waiting = [waiter for waiter in case.graph.stuck() if not waiter.ended]
    if not waiting:
        return None
    refusals: dict[str, Call] = {}
    waited_s = _waited_s(case, waiting)
    nowhere = [waiter for waiter in lost(case) if leads_out(case, waiter)]
    for subject in case.graph.subjects.values():
        call = last_refusal(subject)
        if call is None or subject.ended or subject.blocked or subject.progress or subject.pending is not None:
            continue
        if not (subject.doing.idle or subject.doing.within("scheduler", "queue", "lock", "select")):
            continue
        beside = [
            each for each in waiting if each.process and subject.process and each.process.host == subject.process.host
        ]
        if call.age_s > (_waited_s(case, beside) if case.evidence.directories else waited_s) + AFTER_S:
            continue  # nobody waited yet: work went on after it
        beyond = [wait for wait in case.graph.waits if wait.target.startswith("rank ")]  # engines without a recorder
        open_ended = beyond or any(each.key != subject.key for each in nowhere)
        if subject.key in case.awaited() or (open_ended and not elsewhere(case, {subject.key, *refusals})):
            refusals[subject.key] = call
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


def _waited_s(case: Case, waiting: list[Subject]) -> float:
    """How long the longest of the waiters has stood still; endless where nothing says it, and nothing at all where the
    waiters were looked at at another time than the call's engine."""
    ages = [wait.since_s for wait in case.graph.waits if wait.since_s is not None]
    for waiter in waiting:
        if waiter.pending is not None and waiter.pending.age_s is not None:
            ages.append(waiter.pending.age_s)
        if waiter.process is not None and waiter.process.beat is not None:
            ages.append(waiter.process.beat.progress_age_s)
    ages += [case.evidence.stall_s] if case.evidence.stall_s else []
    return max(ages, default=0.0 if case.evidence.directories else float("inf"))


def last_refusal(subject: Subject) -> Call | None:
    """The engine's last call, if it failed. To stop a request that has ended fails as well, and holds nobody up."""
    journal = subject.process.journal if subject.process else None
    calls = [call for call in (journal.calls if journal else ()) if not _STOPS.search(call.name)]
    return calls[-1] if calls and not calls[-1].ok else None


def transition(case: Case) -> Ruling | None:
    """K8: a process stands in its engine's sleep or wake-up."""
    for subject in case.live():
        name, age = standing(subject.process) if subject.process else ("", 0.0)
        if not name and _in_transition(subject.doing) and _in_transition(subject.before):
            name = subject.doing.op if subject.doing.kind == "transition" else subject.doing.frame.rsplit(" ", 1)[-1]
        if not name or subject.blocked:
            continue
        if subject.key in {wait.waiter for wait in case.graph.waits} and subject.key not in _ends(case):
            continue  # it stands there because it waits for somebody else, who has the answer
        if subject.pending is not None:
            continue  # it waits in a collective inside the transition: whoever does not come is asked first
        if not _held_up(case, subject):
            continue  # nobody waits for it, and somebody else is waited for
        if subject.progress:
            return slow_because(case, [subject.key])
        if name and 0.0 < age < YOUNG_S:
            continue
        since = f" for {age:.0f} s" if age else ""
        engine = (subject.process.engine if subject.process else "") or subject.role or "engine"
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
    """Somebody waits for it; or waiting ends nowhere else, and is no wait of a recorder that knows its peers."""
    if subject.key in case.awaited():
        return True
    nowhere = [each for each in lost(case) if each.key != subject.key]
    return not elsewhere(case, {subject.key}) and (not nowhere or any(leads_out(case, each) for each in nowhere))


def _in_transition(doing: Doing) -> bool:
    """By its stack alone. A function of the user's called sleep may as well be one that only sleeps."""
    if doing.kind == "transition":
        return doing.op != "sleep" or doing.within("scheduler")
    return "transition" in doing.around and doing.kind != "sleep"


def _ends(case: Case) -> set[str]:
    return {*case.graph.sinks, *(key for ring in case.graph.cycles for key in ring)}


def branch(case: Case) -> Ruling | None:
    """K3: ranks of one engine where some entered a collective and the others are in their scheduler loop."""
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
