"""Parameters that no recording speaks of, tried on the reference: the last family of trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import LEAST, Situation
from harness.parity.interventions.trial import Trial, same, shown
from harness.parity.subjects.sampling.causes import SAMPLING_PARAM, sampling_key
from harness.parity.subjects.sampling.causes_random_numbers import RNG
from harness.parity.subjects.sampling.causes_sampler import SPORADIC, excluded
from probes.format import mapping
from reports.text import counted, figure
from scenarios.bench.case import Fitted
from scenarios.engines import canonical

NEAR = 8  # of the seed that was asked
# Seeds that programs start with where nobody gives one: vLLM and most others 0, PyTorch's examples 1, Transformers, TRL
# and OpenRLHF 42, Megatron-LM 1234.
DEFAULT_SEEDS = (0, 1, 42, 1234)
FITTED = tuple(one.name for one in canonical.FITTED)
PENALTIES = tuple(one.name for one in canonical.PENALTIES)


def guesses(s: Situation) -> Iterator[Trial]:
    """Parameters that no recording speaks of: seeds and switches by common values, numbers by a fit."""
    chosen = s.rest.of("tokens", "lengths")
    yield from _penalties(s)
    # After a choice that is another a log-probability may be too: a shifted one is the choice's own, and the engine may
    # have gone on from another prompt.
    if s.rest.of("scores", "prompts") or s.rest.of("logprobs") > 2 * chosen or not s.rest.total:
        return
    asked = s.asked
    scenario = s.evidence.baseline.recording.scenario
    seed = int(scenario.get("seed") or 0)
    seeds = (seed + way * far for far in range(1, NEAR + 1) for way in (1, -1))  # a rank or a worker added to it
    engine_seed = int(mapping(scenario.get("engine")).get("seed") or 0)
    for other in dict.fromkeys((engine_seed, *DEFAULT_SEEDS, *seeds)):
        if other != seed:
            yield Trial(
                RNG.key("seed ignored"),
                f"seed {other} in the reference",
                f"the {s.side} draws with seed {other}, not with the {seed} that was asked",
                {"seed": other},
                details={"asked": seed, "as if": other},
            )
    fitted = _fitted(s) if chosen else []
    yield from _fits(s, fitted)
    yield from _passed_over(s)
    yield from _fits(s, fitted, partial=True)
    values: dict[str, list[Any]] = {
        "min_tokens": [0],
        "ignore_eos": [not asked.get("ignore_eos", False)],
        "stop_token_ids": [[]],
    }
    for name, tries in values.items():
        for value in tries:
            if same(value, asked.get(name)):
                continue
            # Where no number explains every choice, what does is the only one that does.
            yield replace(
                _guess(s, name, value), seen=() if any(one.complete for one in fitted) else (Seen.ALONE_EXPLAINS,)
            )


def _guess(s: Situation, name: str, value: Any, bounds: tuple[float, float] | None = None) -> Trial:
    """`bounds`: what explains the engine's choices as well."""
    more = f" ({shown(bounds[0])} to {shown(bounds[1])} does as well)" if bounds else ""
    return Trial(
        sampling_key(name),
        f"{name} {shown(value)} in the reference",
        f"the {s.side} samples as if {name} were {shown(value)}{more}",
        {"penalties": ((name, value),)} if name in PENALTIES else {"sampling": ((name, value),)},
        details={"asked": s.asked.get(name), "as if": value, "side": s.side, **({"bounds": bounds} if bounds else {})},
    )


def _fitted(s: Situation) -> list[Fitted]:
    """Numbers that explain what the engine chose: alone, or else several at once."""
    known = {one.cause for one in s.named if one.side == s.side}
    names = [name for name in (*FITTED, *PENALTIES) if SAMPLING_PARAM.key(name) not in known]
    return s.bench.fitted(s.side, names, s.alteration)


def _fits(s: Situation, fitted: list[Fitted], *, partial: bool = False) -> Iterator[Trial]:
    """The reference draws with them. `partial`: those that only come nearer, else those that explain every choice."""
    # Of several that explain every choice the one that is likeliest to have been written: that with the fewest digits.
    complete = sorted(
        (one for one in fitted if one.complete), key=lambda one: max(map(len, map(shown, one.values.values())))
    )
    for one in [one for one in fitted if not one.complete] if partial else complete:
        values = one.values
        alone = (Seen.ALONE_EXPLAINS,) if not partial and len(complete) == 1 else ()
        parts = [replace(_guess(s, name, value, one.bounds.get(name)), seen=alone) for name, value in values.items()]
        beside = [_said(other) for other in complete if other is not one and not partial]
        if beside:
            parts = [replace(part, details={**part.details, "explained as well by": beside}) for part in parts]
        if len(parts) == 1:
            yield parts[0]
            continue
        yield Trial(
            SAMPLING_PARAM.key(*sorted(values)),
            f"{_said(one)} in the reference",
            f"the {s.side} samples with other parameters than were asked",
            joined(parts),
            parts=tuple(parts),
        )


def _said(one: Fitted) -> str:
    return " and ".join(f"{name} {shown(value)}" for name, value in one.values.items())


def joined(parts: Iterable[Trial]) -> dict[str, Any]:
    """The changes of several parameters at once."""
    changes: dict[str, Any] = {}
    for part in parts:
        for name, pairs in part.change.items():
            changes[name] = (*changes.get(name, ()), *pairs)
    return changes


def _penalties(s: Situation) -> Iterator[Trial]:
    """A penalty that the reported log-probabilities show as well: before the others, for every number differs then."""
    if not s.rest.of("logprobs") or s.rest.of("scores", "prompts") or s.alteration.report:
        return
    found = {name: s.bench.penalised(s.side, name, s.alteration) for name in PENALTIES}
    fitting = [name for name, (_, left) in found.items() if left <= s.evidence.tolerance.value]
    for name in fitting:
        trial = _guess(s, name, found[name][0])
        summary = f"{trial.summary}; its log-probabilities are those after the penalty"
        seen = (Seen.ALONE_EXPLAINS,) if len(fitting) == 1 else ()
        yield replace(trial, summary=summary, change={**trial.change, "report": "penalised"}, seen=seen)


def _passed_over(s: Situation) -> Iterator[Trial]:
    """The second best token now and then, at near ties and elsewhere alike."""
    if not s.rest.of("tokens"):
        return
    found = s.bench.passed_over(s.side, s.alteration)
    seen = excluded(len(found.places), found.others, found.compared, found.wide, found.likely, found.chance)
    if len(found.places) < LEAST or not seen:
        return
    share = len(found.places) / found.compared
    what = f"{len(found.places)} of {counted(found.compared, 'token')}"
    yield Trial(
        SPORADIC,
        f"the reference takes its second best token at {what}",
        f"the {s.side}'s sampler now and then takes the second best token: {what}, {share:.1%}",
        {"passed_over": found.places},
        details={
            "positions": [list(one) for one in found.places[:50]],
            "share": share,
            "wide": found.wide,
            "by chance": figure(math.exp(max(found.chance, -700.0))),
        },
        seen=seen,
    )
