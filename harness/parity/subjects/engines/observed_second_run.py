"""A job that was run again: how far it is from itself, and from which step on the two runs differ.

The engine of a user's own job cannot be asked to draw again. But the whole job can be started a second time, with the
same command, engine, seeds and draws. What both of its runs draw at equal weights gives the floor. Once they differ,
the job does not repeat itself, and no later difference says anything about the other engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.engines.observed_repetition import SecondRun
from harness.parity.subjects.recording.observed_integrity import bad_exit, copies, damage
from harness.parity.subjects.sampling.observed_modes import drawn_in, unclear
from harness.recordings.store import Recording

VARIANT = "repeat"
# Divergences within one run, which its repetition repeats: of an engine from its learner, its prompts, its weights.
_OF_EACH_RUN = {
    Kind.ENGINE, Kind.CHOICE, Kind.PROMPT, Kind.TRAINED, Kind.SYNC, Kind.NOT_FINITE, Kind.FLOOR, Kind.VERSION,
}  # fmt: skip
_TOKENS = {Kind.FLIP, Kind.UNJUDGED_FLIP, Kind.LENGTH, Kind.FINISH}


def compared(e: Evidence, other_recordings: Iterable[Recording] = ()) -> SecondRun:
    """Compare a run (`e.baseline`) with its repetition (`e.candidate`).

    `other_recordings`: recordings that it is judged against, of which the repetition must be no copy.
    """
    # A second run that is damaged, in another mode, a copy or of another engine measures no floor, whatever it shows.
    first_run, repeated_run = (side.recording for side in e.sides)
    broken = damage(repeated_run, "second run")
    broken += [*unclear(repeated_run, "second run"), *bad_exit(repeated_run, "second run")]
    if broken:
        return SecondRun(broken[0])
    if e.mode != drawn_in(repeated_run):
        return SecondRun(f"the second run drew in {drawn_in(repeated_run)} mode, the first in {e.mode} mode")
    if any(copies(repeated_run, recording) for recording in (first_run, *other_recordings)):
        return SecondRun("the second run is a copy of another recording of this comparison")
    if _engines(first_run) != _engines(repeated_run):
        return SecondRun(
            f"the second run is of another engine: {_engines(repeated_run)} instead of {_engines(first_run)}"
        )
    pairs = []
    for step in e.judged_steps:
        if e.confounded("everything", "prompts", step=step) is not None:
            continue
        first_rollout, second_rollout = (side.recording.table("rollout", step) for side in e.sides)
        if first_rollout is not None and second_rollout is not None:
            pairs.append((step, VARIANT, first_rollout, second_rollout))
    # If several reasons are of one step, the likeliest comes first.
    parts, why = min(_partings(e), key=lambda parting: parting[0], default=(None, ""))
    kinds = {key: first.step for key, first in e.first.items()}
    return SecondRun("", tuple(pairs), parts, why, kinds, drawn=e.mode in ("coupled", "greedy"))


def _engines(recording: Recording) -> str:
    engine_names = {f"{info.engine} {info.version}" for info in recording.records.engines}
    return " and ".join(sorted(engine_names)) or "unknown"


def _partings(e: Evidence) -> Iterator[tuple[int, str]]:
    """Yield (step, what) for everything in which the job does not repeat itself."""
    for confounder in e.confounders:
        yield confounder.step, confounder.finding.summary
    first_steps, second_steps = (set(side.recording.steps("rollout")) for side in e.sides)
    for step in sorted(first_steps ^ second_steps)[:1]:
        yield step, "only one of the two runs has rollouts there"
    for first in e.first.values():
        if first.kind in _TOKENS:
            yield first.step, "its engine draws other tokens"
        elif first.kind is Kind.LEARNER:
            yield first.step, "its learner makes other weights of the same samples"
        elif first.kind not in _OF_EACH_RUN:
            yield first.step, f"{first.place.field} differs"
    if e.learners.reordered is not None:
        yield e.learners.reordered, "its learner takes the samples in another order, which rounds differently"
    if e.learners.followed is not None:
        yield e.learners.followed, "its learner trains on other tokens"
    yield from e.unjudged_steps.items()


def irreproducible(e: Evidence) -> str:
    """Return a sentence where a side's job does not repeat itself; "" where each repeated job does."""
    for side in e.sides:
        second = e.second_runs.get(side.name)
        if second is not None and second.parts is not None:
            return f"{side.name}-itself: run again, the job is another run from step {second.parts} on: {second.why}"
    return ""


def required(e: Evidence, side: str) -> bool:
    """Whether a verdict needs the floor of this side.

    Where only the other side was run again, the tolerance comes from that side alone: a side whose noise was not
    measured is allowed none.
    """
    return not e.second_runs or side in e.second_runs
