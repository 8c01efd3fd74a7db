"""Put an engine's start parameters back as they were asked for: all that differ at once, then fewer, by bisecting."""

from __future__ import annotations

from dataclasses import dataclass

from harness.parity.interventions.situation import ROOMY, Named, Situation, improves, vanished
from harness.parity.interventions.steps import Undone, tell
from harness.parity.subjects.sampling.causes import CONFIG
from harness.parity.subjects.stop_conditions.causes import CAPACITY, LENGTH
from harness.parity.subjects.weights.causes_derived import STALE_DERIVED
from reports.model import CauseKey, Proof
from scenarios.bench.case import Symptoms

ROOM_S = 20.0  # seconds for starts of an engine that tell several parameters apart; after that they are named together
_LIMITS = {"max_model_len": LENGTH.key("context"), "kv_cache_tokens": CAPACITY.key("kv pool")}
START = "a fresh engine that is given the same parameters"


@dataclass
class _Search:
    """The bisection. `floor`: what is left with every parameter put back. `spoilt`: a fresh engine was seen to differ
    anyway.
    """

    s: Situation
    before: Symptoms
    floor: Symptoms
    until: float
    seconds: float  # of one start with one reading
    spoilt: bool = False

    def clean(self, names: list[str]) -> bool:
        """Whether putting these back removes as much as putting back all."""
        after = _read(self.s, names)
        good = after.total <= self.floor.total or vanished(self.before, after)
        tell(self.s, _intervention(self.s, names), _cause(names), Undone(self.before, after, self.seconds), good)
        self.spoilt |= not good
        return good

    def guilty(self, names: list[str], fixed: list[str]) -> list[list[str]]:
        """Return the parameters without which the difference comes back (delta debugging, Zeller 1999).

        They are returned one by one, or together where there is no time. `fixed`: parameters that stay put back.
        """
        if len(names) == 1:
            return [names]
        if self.s.clock() + self.seconds > self.until:
            self.s.notes.append(f"no time to tell {', '.join(names)} apart: each needs a start of the engine")
            return [names]
        # A half whose correction is enough holds every guilty one. Where neither is, each half has one, and is searched
        # with the other put back.
        half, other_half = names[: len(names) // 2], names[len(names) // 2 :]
        if self.clean([*half, *fixed]):
            return self.guilty(half, fixed)
        if self.clean([*other_half, *fixed]):
            return self.guilty(other_half, fixed)
        return self.guilty(half, [*fixed, *other_half]) + self.guilty(other_half, [*fixed, *half])


def engine_parameters(s: Situation) -> None:
    """Name the parameters that the engine was not started with as asked, and whose correction removes the difference.

    A fresh engine alone may remove it too. So unless a fresh engine was already seen to differ, one is started with the
    same wrong parameters. That is not needed where samples merely end at one total, since a fresh engine has the same
    limit.
    """
    names = sorted(s.changed)
    if not names:
        return
    # 1. Does a fresh engine with every parameter put back agree?
    limited = set(names) <= set(ROOMY) and _only_a_limit(s, names)
    started, before = s.clock(), s.symptoms
    after = _read(s, names)
    seconds = s.clock() - started
    good = improves(before, after, recorded=_cause(names) in s.recorded)
    done = Undone(before, after, seconds)
    tell(s, _intervention(s, names), _cause(names), done, good)
    s.symptoms = after
    if not good:
        return
    # 2. Which of them are needed?
    search = _Search(s, before, after, started + ROOM_S, seconds)
    groups = search.guilty(names, [])
    # 3. Would a fresh engine with the wrong parameters have agreed as well? Not if one was seen to differ.
    if not (search.spoilt or s.from_start or limited):
        again = _read(s, [])
        alone = not vanished(before, again) and again.total > after.total
        tell(s, START, STALE_DERIVED.key(), Undone(before, again, seconds), not alone)
        if not alone:  # left to the intervention that restarts the engine
            s.symptoms = before
            return
    # 4. Name them, with the engine as it is when all are put back.
    if s.last_put_back != names:
        s.symptoms = _read(s, names)
    for guilty_group in groups:
        for group in _narrowed(s, guilty_group):
            s.named.append(_named(s, group, done.proof(_intervention(s, group))))


def _named(s: Situation, names: list[str], proof: Proof) -> Named:
    """Return the cause of parameters that the engine was started with in place of those that were asked."""
    changed = {name: s.changed[name] for name in names}
    texts = [f"{name} {received!r} where {requested!r} was asked" for name, (requested, received) in changed.items()]
    details = {
        "side": s.side,
        "asked": {name: requested for name, (requested, _) in changed.items()},
        "given": {name: received for name, (_, received) in changed.items()},
    }
    summary = f"the {s.side}'s engine was started with {', '.join(texts)}"
    return Named(_cause(names), "mapping", s.side, summary, proof, details)


def _only_a_limit(s: Situation, names: list[str]) -> bool:
    """Whether the reference agrees when it ends where the engine does."""
    for total in s.ended_at:
        started = s.clock()
        after = s.bench.compare(s.side, s.alteration.with_(context=total))
        good = vanished(s.symptoms, after)
        what = f"the reference ends at {total} tokens, prompt included"
        seconds = s.clock() - started
        tell(s, what, _cause(names), Undone(s.symptoms, after, seconds), good)
        if good:
            return True
    return False


def _narrowed(s: Situation, group: list[str]) -> list[list[str]]:
    """Return what recordings name of a group that could not be told apart; else the group."""
    recorded_groups = [[name] for name in group if _cause([name]) in s.recorded]
    return recorded_groups or [group]


def _read(s: Situation, names: list[str]) -> Symptoms:
    s.bench.put_back(s.side, names)
    s.last_put_back = names
    s.bench.read(s.side)
    return s.bench.compare(s.side, s.alteration)


def _intervention(s: Situation, names: list[str]) -> str:
    return "put back " + ", ".join(f"{name} {s.changed[name][0]!r}" for name in names)


def _cause(names: list[str]) -> CauseKey:
    limit = _LIMITS.get(names[0]) if len(names) == 1 else None
    return limit or CONFIG.key(*sorted(names))
