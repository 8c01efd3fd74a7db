"""Parameters that no recording mentions, tried on the reference: the last family of trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import LEAST, Situation
from harness.parity.interventions.trial import Trial, value_text
from harness.parity.subjects.sampling.causes import SAMPLING_PARAM, sampling_key
from harness.parity.subjects.sampling.causes_random_numbers import RNG
from harness.parity.subjects.sampling.causes_sampler import SPORADIC, excluded
from harness.recordings.records.values import equal_values
from reports.text import figure, part_of
from scenarios.bench.case import Fitted
from scenarios.engines import canonical

NEAR = 8  # seeds on either side of the one that was asked for
# Seeds that programs start with by default: vLLM and most others 0, PyTorch's examples 1, Transformers, TRL and
# OpenRLHF 42, Megatron-LM 1234.
DEFAULT_SEEDS = (0, 1, 42, 1234)
FITTED = tuple(parameter.name for parameter in canonical.FITTED)
PENALTIES = tuple(parameter.name for parameter in canonical.PENALTIES)


def guesses(s: Situation) -> Iterator[Trial]:
    """Try parameters that no recording mentions: seeds and switches with common values, numbers by a fit."""
    chosen = s.remaining.of("tokens", "lengths")
    yield from _penalties(s)
    # After a choice that differs a log-probability may differ too. A shifted one belongs to the choice itself, and the
    # engine may have gone on from another prompt.
    if s.remaining.of("scores", "prompts") or s.remaining.of("logprobs") > 2 * chosen or not s.remaining.total:
        return
    asked_sampling, settings = s.run_sampling, s.evidence.baseline.recording.records.settings
    seed = settings.seed or 0
    seeds = (seed + way * far for far in range(1, NEAR + 1) for way in (1, -1))  # a rank or a worker is added to it
    for guessed_seed in dict.fromkeys((settings.engine.seed or 0, *DEFAULT_SEEDS, *seeds)):
        if guessed_seed != seed:
            yield Trial(
                RNG.key("seed ignored"),
                f"seed {guessed_seed} in the reference",
                f"the {s.side} draws with seed {guessed_seed}, not with the {seed} that was asked",
                {"seed": guessed_seed},
                details={"asked": seed, "as if": guessed_seed},
            )
    # Complete fits first, then choices passed over, which need no number, and only then fits that leave some choices
    # unexplained.
    fitted = _fitted(s) if chosen else []
    yield from _fits(s, fitted)
    yield from _passed_over(s)
    yield from _fits(s, fitted, partial=True)
    # Where no number explains every choice, a switch that does is the only explanation.
    exclusions = () if any(fit.complete for fit in fitted) else (Seen.ALONE_EXPLAINS,)
    switches = {"min_tokens": 0, "ignore_eos": not asked_sampling.get("ignore_eos", False), "stop_token_ids": []}
    for name, value in switches.items():
        if not equal_values(value, asked_sampling.get(name)):
            yield replace(_guess(s, name, value), seen=exclusions)


def _guess(s: Situation, name: str, value: Any, bounds: tuple[float, float] | None = None) -> Trial:
    """Return the trial of one parameter. `bounds`: the range of values that explains the engine's choices as well."""
    more, details = "", {"asked": s.run_sampling.get(name), "as if": value, "side": s.side}
    if bounds:
        more = f" ({value_text(bounds[0])} to {value_text(bounds[1])} does as well)"
        details["bounds"] = bounds
    return Trial(
        sampling_key(name),
        f"{name} {value_text(value)} in the reference",
        f"the {s.side} samples as if {name} were {value_text(value)}{more}",
        {"penalties": ((name, value),)} if name in PENALTIES else {"sampling": ((name, value),)},
        details=details,
    )


def _fitted(s: Situation) -> list[Fitted]:
    """Return numbers that explain what the engine chose: single ones, else several at once."""
    named_causes = {named.cause for named in s.named if named.side == s.side}
    names = [name for name in (*FITTED, *PENALTIES) if SAMPLING_PARAM.key(name) not in named_causes]
    return s.bench.fitted(s.side, names, s.alteration)


def _fits(s: Situation, fitted: list[Fitted], *, partial: bool = False) -> Iterator[Trial]:
    """Try the reference with fitted values.

    `partial`: with those that only bring it nearer, else with those that explain every choice.
    """
    fits = [fit for fit in fitted if fit.complete != partial]
    # What explains every choice alone excludes its rivals. With others beside it, each names them.
    if not partial:
        # Of several that explain every choice, the one with the fewest digits most likely was written by someone.
        fits.sort(key=lambda fit: max(map(len, map(value_text, fit.values.values()))))
    alone = (Seen.ALONE_EXPLAINS,) if not partial and len(fits) == 1 else ()
    for fit in fits:
        values = fit.values
        parts = [replace(_guess(s, name, value, fit.bounds.get(name)), seen=alone) for name, value in values.items()]
        beside = [_fit_in_words(rival) for rival in fits if rival is not fit]
        if beside and not partial:
            parts = [replace(part, details={**part.details, "explained as well by": beside}) for part in parts]
        if len(parts) == 1:
            yield parts[0]
            continue
        yield Trial(
            SAMPLING_PARAM.key(*sorted(values)),
            f"{_fit_in_words(fit)} in the reference",
            f"the {s.side} samples with other parameters than were asked",
            joined(parts),
            parts=tuple(parts),
        )


def _fit_in_words(fit: Fitted) -> str:
    return " and ".join(f"{name} {value_text(value)}" for name, value in fit.values.items())


def joined(parts: Iterable[Trial]) -> dict[str, Any]:
    """Return the changes of several parameters as one."""
    changes: dict[str, Any] = {}
    for part in parts:
        for name, pairs in part.change.items():
            changes[name] = (*changes.get(name, ()), *pairs)
    return changes


def _penalties(s: Situation) -> Iterator[Trial]:
    """Try a penalty that the reported log-probabilities show as well. It comes first, because every number then
    differs.
    """
    if not s.remaining.of("logprobs") or s.remaining.of("scores", "prompts") or s.alteration.report:
        return
    penalty_fits = {name: s.bench.penalised(s.side, name, s.alteration) for name in PENALTIES}
    fitting = [name for name, (_, residual) in penalty_fits.items() if residual <= s.evidence.tolerance.value]
    for name in fitting:
        trial = _guess(s, name, penalty_fits[name][0])
        summary = f"{trial.summary}; its log-probabilities are those after the penalty"
        exclusions = (Seen.ALONE_EXPLAINS,) if len(fitting) == 1 else ()
        yield replace(trial, summary=summary, change={**trial.change, "report": "penalised"}, seen=exclusions)


def _passed_over(s: Situation) -> Iterator[Trial]:
    """Try the second best token now and then, at near ties and elsewhere alike."""
    if not s.remaining.of("tokens"):
        return
    choices = s.bench.passed_over(s.side, s.alteration)
    exclusions = excluded(
        len(choices.places), choices.others, choices.compared, choices.wide, choices.likely, choices.chance
    )
    if len(choices.places) < LEAST or not exclusions:
        return
    share = len(choices.places) / choices.compared
    what = part_of(len(choices.places), choices.compared, "token")
    yield Trial(
        SPORADIC,
        f"the reference takes its second best token at {what}",
        f"the {s.side}'s sampler now and then takes the second best token: {what}, {share:.1%}",
        {"passed_over": choices.places},
        details={
            "positions": [list(place) for place in choices.places[:50]],
            "share": share,
            "wide": choices.wide,
            "by chance": figure(math.exp(max(choices.chance, -700.0))),
        },
        seen=exclusions,
    )
