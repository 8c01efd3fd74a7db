"""Interventions on the reference: it makes one mistake, and if it then agrees with the engine, the engine makes it
too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from harness.parity.attribution.guesses import guesses, joined
from harness.parity.causes import registry
from harness.parity.causes.family import Contest
from harness.parity.causes.registry import Slot
from harness.parity.interventions.situation import Named, Situation, improves, vanished
from harness.parity.interventions.steps import Undone, tell
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.log_probabilities import causes as log_probabilities
from harness.parity.subjects.prompts import causes as prompts
from harness.parity.subjects.prompts import causes_retokenization
from harness.parity.subjects.sampling import causes as sampling
from harness.parity.subjects.sampling import causes_meaning, causes_random_numbers, causes_sampler
from harness.parity.subjects.stop_conditions import causes as stop_conditions
from reports.model import Proof
from scenarios.bench.case import Symptoms

SEEN = 0.5  # share of the log-probabilities compared before that must still be compared
CONTESTS: tuple[Contest | Slot, ...] = (
    Contest((prompts.prompts_seen,), "a record; other ids change everything that is drawn and scored after them"),
    Contest((sampling.parameters,), "a record too: what was given comes before what is guessed"),
    Slot.PLUGINS,  # what is known comes before what is fitted
    Contest(
        (log_probabilities.shifted, causes_meaning.meanings),
        "numbers hide the choices beside them while they are misread; a factor is fitted, and a shift that fits as "
        "well is simpler",
    ),
    Contest((causes_sampler.filters,), "no number is fitted: the two parameters that were asked, in another order"),
    Contest((prompts.prompts_hidden,), "ids that no record speaks of cost a forward pass each"),
    Contest(
        (stop_conditions.end_dropped, causes_retokenization.encoded_again, causes_random_numbers.siblings),
        "a prompt explains answers, so it comes before answers that were altered: in the last token, in every token, "
        "or into those of a sibling",
    ),
    Contest((stop_conditions.lengths,), "an end token that was dropped makes answers shorter as well"),
    Contest((guesses,), "last: seeds and parameters that no record speaks of may fit by chance"),
)


@functools.cache
def contests() -> tuple[Contest, ...]:
    """Return the mistakes that the reference makes on purpose, in the order in which they are tried.

    None of them costs a call of the engine.
    """
    return registry.contests(CONTESTS)


def search(s: Situation) -> None:
    """Change the reference in one way after another, keep each change that removes a part, and go on with the rest.

    After a success the earlier ones are tried again, since the removed part may have hidden theirs: if an engine
    reports log-probabilities one position late, all of them differ, at whatever temperature it draws.
    """
    while any(_removed(s, contest) for contest in contests()):
        pass


def _removed(s: Situation, contest: Contest) -> bool:
    """Whether a trial of the contest removed something. What it removed is named, and stays in the reference."""
    named_before = len(s.named)
    while s.remaining.total and not s.over:
        named = {proven.cause for proven in s.named if proven.side == s.side}
        trials = (trial for mistakes in contest.rivals for trial in mistakes(s))
        best = _best(s, (trial for trial in trials if trial.cause not in named))
        if best is None:
            break
        trial, after, seconds = best
        s.named += _named(s, trial, after, seconds)
        s.alteration, s.symptoms = s.alteration.with_(**trial.change), after
    return len(s.named) > named_before


def _best(s: Situation, trials: Iterable[Trial]) -> tuple[Trial, Symptoms, float] | None:
    """Return the first trial that removes everything, else the one that removes most."""
    best: tuple[Trial, Symptoms, float] | None = None
    for trial in trials:
        if s.over:
            s.notes.append(f"not tried for lack of time: {trial.intervention} ({s.side})")
            break
        started = s.clock()
        alteration = s.alteration.with_(**trial.change)
        after = s.bench.compare(s.side, alteration)
        seconds = s.clock() - started
        # A trial counts only if its effect is real, and neither hidden numbers nor a guess that fits by chance.
        good = improves(s.remaining, s.settled(after, alteration), recorded=trial.recorded)
        good = good and not _blind(trial, s.symptoms, after) and not _by_chance(trial, s.symptoms, after)
        tell(s, trial.intervention, trial.cause, Undone(s.symptoms, after, seconds), good)
        if good and (best is None or after.total < best[1].total):
            best = trial, after, seconds
            if vanished(s.symptoms, after):
                break
    return best


def _blind(trial: Trial, before: Symptoms, after: Symptoms) -> bool:
    """Whether the trial only hid log-probabilities: answers that are encoded again have none where their length
    changes.
    """
    again = trial.change.get("output") == "again"
    return again and after.compared.get("logprobs", 0) < SEEN * before.compared.get("logprobs", 0)


def _by_chance(trial: Trial, before: Symptoms, after: Symptoms) -> bool:
    """Whether a guess may be nearer by chance.

    A prompt that no record mentions must bring most of its samples nearer. Other random numbers (a seed among many that
    are tried, or those of another sample) must bring most choices nearer.
    """
    if "seed" in trial.change or "streams" in trial.change:
        return 2 * after.of("tokens", "lengths") > before.of("tokens", "lengths")
    prompted_samples = {number for number, _ in trial.change.get("prompts", ())} & set(before.by_sample)
    nearer = sum(after.by_sample.get(number, 0) < before.by_sample[number] for number in prompted_samples)
    return bool(prompted_samples) and not trial.recorded and 2 * nearer <= len(prompted_samples)


def _named(s: Situation, trial: Trial, after: Symptoms, seconds: float) -> list[Named]:
    """Return the cause that a trial proved. Of several parameters, each is proven by what is left without it."""
    if not trial.parts:
        return [_proven(s, trial, trial.intervention, (s.symptoms.total, after.total), seconds)]
    named = []
    for part in trial.parts:
        started = s.clock()
        other_parts = [other_part for other_part in trial.parts if other_part is not part]
        without = s.bench.compare(s.side, s.alteration.with_(**joined(other_parts)))
        beside = " and ".join(other_part.intervention for other_part in other_parts)
        differences = (without.total, after.total)
        named.append(_proven(s, part, f"{part.intervention}, beside {beside}", differences, s.clock() - started))
    return named


def _proven(s: Situation, trial: Trial, intervention: str, differences: tuple[int, int], seconds: float) -> Named:
    """Return the cause of a trial with its proof. `differences`: without it, and with it."""
    return Named(
        cause=trial.cause,
        party=trial.party or s.side,
        side=s.side,
        summary=trial.summary,
        proof=Proof(intervention, *differences, "differences", "live engines", round(seconds, 3)),
        details=trial.details,
        seen=trial.seen,
    )
