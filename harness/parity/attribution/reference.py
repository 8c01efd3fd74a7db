"""Interventions on the reference: it makes one mistake, and if it then agrees with the engine, so does the engine."""

from __future__ import annotations

from harness.parity.attribution.situation import Named, Situation, Tried, gone, improves
from harness.parity.attribution.trials import FAMILIES, Trial, finer
from reports.model import Proof
from scenarios.bench.case import Symptoms

HALVINGS = 9  # of the distance at which a guessed number is tried again: 0.05 to 0.0002


def search(s: Situation) -> None:
    """Change the reference family by family, keep what removes a part of the difference, go on with the rest."""
    for family in FAMILIES:
        while s.symptoms.total and not s.over:
            trials = [
                one for one in family(s) if one.cause not in {known.name for known in s.named if known.side == s.side}
            ]
            best = _best(s, trials)
            for halvings in range(HALVINGS) if best is not None else ():
                if best is None or gone(s.symptoms, best[1]):
                    break
                best = _best(s, finer(best[0], halvings), best)
            if best is None:
                break
            trial, after, seconds = best
            s.named.append(_named(s, trial, after, seconds))
            s.alteration, s.symptoms = s.alteration.with_(**trial.change), after


Best = tuple[Trial, Symptoms, float]


def _best(s: Situation, trials: list[Trial], best: Best | None = None) -> Best | None:
    """The first trial that removes everything, else the one that removes most; `best`: the one to surpass."""
    for trial in trials:
        if s.over:
            s.notes.append(f"not tried for lack of time: {trial.intervention} ({s.side})")
            break
        started = s.clock()
        after = s.bench.compare(s.side, s.alteration.with_(**trial.change))
        seconds = s.clock() - started
        good = improves(s.symptoms, after, recorded=trial.recorded)
        s.tried.append(Tried(trial.intervention, trial.cause, s.side, s.symptoms.total, after.total, seconds, good))
        if good and (best is None or after.total < best[1].total):
            best = trial, after, seconds
            if gone(s.symptoms, after):
                break
    return best


def _named(s: Situation, trial: Trial, after: Symptoms, seconds: float) -> Named:
    proof = Proof(trial.intervention, s.symptoms.total, after.total, "differences", "live engines", round(seconds, 3))
    return Named(trial.cause, trial.party or s.side, s.side, trial.summary, proof, trial.details)
