"""The mistakes that the reference is made to make, each with the cause that it would prove.

Each family of trials is a function Situation -> trials, in the order in which they are asked (`FAMILIES`). None costs
an engine call. To add one: write it, test it with a planted fault and a control, put it into its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.attribution.situation import Situation
from harness.parity.facts.parameters import follows_from
from harness.parity.facts.prompts_seen import how
from harness.parity.facts.readings import SHIFTS, tokenizer
from harness.parity.rules.prompts import NAMES
from harness.tables import mapping
from reports.text import counted
from scenarios.bench.case import Alteration


@dataclass(frozen=True)
class Trial:
    """A change to the reference with the cause that it would prove. `recorded`: a recording says so already."""

    cause: str
    intervention: str
    summary: str
    change: dict[str, Any]
    party: str = ""  # the side, unless said otherwise
    recorded: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Trial, ...] = ()  # of several parameters that only explain it together: each alone


def prompts_seen(s: Situation) -> Iterator[Trial]:
    """Give the reference the ids that the engine says it saw."""
    if not s.symptoms.of("prompts"):
        return
    kinds: dict[str, dict[int, tuple[int, ...]]] = {}
    sent = _sent(s)
    others = set(sent.values())
    # The prompt of another sample of the same call is a matter of order: nothing happened to the ids.
    seen = {number: ids for number, ids in s.bench.prompts_seen(s.side).items() if ids not in others}
    for number, ids in seen.items():
        kinds.setdefault(_prompt_cause(s, number, sent[number], ids), {})[number] = ids
    for cause, given in kinds.items():
        for everywhere in (False, True):
            yield Trial(
                cause,
                f"the reference is given the ids that the engine saw{', in continuations too' if everywhere else ''}",
                f"the engine saw other prompt ids than it was sent, in {counted(len(given), 'sample')} of the case",
                {"prompts": _joined(s.alteration, given), "everywhere": everywhere},
                recorded=True,
            )


def prompts_hidden(s: Situation) -> Iterator[Trial]:
    """The same where the engine says that it saw what it was sent, and draws otherwise."""
    if s.symptoms.of("scores") or not s.symptoms.of("logprobs"):
        return
    wrong = sorted(s.symptoms.by_sample)
    ways = (
        ("text", "TOKENIZATION(double BOS)", "the prompt was sent as text and tokenized again, specials added"),
        ("again", "RETOKENIZATION", "the prompt was turned into text and tokenized again"),
        ("no BOS", NAMES["no BOS"], "the prompt lacks its BOS"),
        ("no generation prompt", "TEMPLATE(no generation prompt)", "the prompt lacks the template's generation prompt"),
    )
    for way, cause, summary in ways:
        ids = s.bench.reprompted(s.side, wrong, way)
        for everywhere in (False, True) if ids else ():
            change = {"prompts": _joined(s.alteration, ids), "everywhere": everywhere}
            yield Trial(cause, f"prompts of the reference: {way}", summary, change)


def reports(s: Situation) -> Iterator[Trial]:
    """Log-probabilities that are right, and reported in another way."""
    if s.symptoms.of("scores") or not s.symptoms.of("logprobs"):
        return
    for shift in SHIFTS:
        yield Trial(
            "ALIGNMENT",
            f"read {shift:+d} position",
            f"log-probabilities are shifted by {abs(shift)}, to {'after' if shift > 0 else 'before'} their tokens",
            {"report": f"shift:{shift:+d}"},
            details={"shift": shift},
        )
    temperature = float({**s.asked, **s.given}.get("temperature") or 1.0)
    if temperature != 1.0:
        yield Trial(
            "LOGPROB_SEMANTICS(tempered)",
            f"the reference reports at temperature {temperature:g}",
            "the engine reports log-probabilities after temperature, not the model's own",
            {"report": f"temper:{temperature!r}"},
        )
    yield Trial(
        "LOGPROB_SEMANTICS(renormalised)",
        "the reference reports over what the filters leave",
        "the engine renormalises log-probabilities over what top-k and top-p leave",
        {"report": "support"},
    )
    slope = s.bench.slope(s.side, s.alteration)
    if abs(slope - 1) > 0.01:
        yield Trial(
            "LOGPROB_SEMANTICS(scaled)",
            f"log-probabilities of the reference times {slope:.4g}",
            f"the engine's log-probabilities are scaled by {slope:.4g}",
            {"report": f"scale:{slope!r}"},
            details={"scale": slope},
        )


NEAR = 8
_STOPS = {"stop_token_ids": "STOP(other end set)", "ignore_eos": "STOP(ignore_eos)"}


def parameters(s: Situation) -> Iterator[Trial]:
    """The reference samples with what the engine was given: every parameter that is not what was asked."""
    asked, own, given = s.asked, s.own, s.given
    differing = {name: value for name, value in given.items() if name in asked and not _same(value, asked[name])}
    undone = follows_from(s.said)
    for name, value in differing.items():
        if undone.get(name) in differing:
            continue  # it goes with the one that undoes it
        ours = name in own and not _same(own[name], asked[name])
        party = s.side if ours else "mapping"
        cause = _STOPS.get(name, f"SAMPLING_PARAM({name})")
        yield Trial(
            cause,
            f"{name} {_shown(value)} in the reference",
            f"the {s.side} samples with {name} {_shown(value)} where {_shown(asked[name])} was asked",
            {"sampling": ((name, value), *((one, given[one]) for one, by in undone.items() if by == name))},
            party,
            recorded=True,
            details={"asked": asked[name], "given": value, "side": s.side},
        )
    if len(differing) > 1:
        # Filters may only show together; what of them matters is found by putting one back at a time.
        yield Trial(
            f"SAMPLING_PARAM({', '.join(sorted(differing))})",
            "every given parameter in the reference",
            f"the {s.side} samples with other parameters than were asked",
            {"sampling": tuple(differing.items())},
            "mapping",
            recorded=True,
            details={"given": differing, "side": s.side},
        )


def filters(s: Situation) -> Iterator[Trial]:
    """Top-k and top-p jointly, where both are asked."""
    sampling = {**s.asked, **s.given}
    if s.symptoms.of("tokens") and int(sampling.get("top_k") or -1) > 0 and float(sampling.get("top_p") or 1.0) < 1.0:
        yield Trial(
            "SAMPLER(joint top-k/top-p)",
            "top-p over the unfiltered mass in the reference",
            "the engine applies top-p to the unfiltered mass, not to the renormalised top-k",
            {"joint": True},
        )


def outputs(s: Situation) -> Iterator[Trial]:
    """What comes back is not what was drawn."""
    if s.symptoms.of("scores") or not s.symptoms.of("tokens", "lengths"):
        return
    yield Trial(
        "STOP(end token dropped)",
        "the end token dropped from the reference's answers",
        "the engine leaves the end token out of its output",
        {"output": "without end"},
    )
    yield Trial(
        "RETOKENIZATION",
        "the reference's answers decoded and encoded again",
        "responses were turned into text and tokenized again",
        {"output": "again"},
    )
    yield Trial(
        "RNG_COLLISION",
        "samples of one prompt share their randomness in the reference",
        "samples of one prompt are clones of each other: their advantages are zero",
        {"siblings": True},
    )


def lengths(s: Situation) -> Iterator[Trial]:
    """The engine ends samples before the limit."""
    if not s.symptoms.of("lengths"):
        return
    limit = int(s.asked.get("max_tokens") or 0)
    for less in (1, 2, 4, 8):
        if limit > less:
            yield Trial(
                "LENGTH(context)",
                f"{less} tokens less in the reference",
                f"the engine stops {less} tokens before the limit",
                {"sampling": (("max_tokens", limit - less),)},
                details={"tokens": less},
            )


def guesses(s: Situation) -> Iterator[Trial]:
    """Parameters that no recording speaks of: seeds and switches by common values, numbers by a fit."""
    if s.symptoms.of("scores", "logprobs", "prompts") or not s.symptoms.total:
        return
    asked = s.asked
    scenario = s.evidence.baseline.recording.scenario
    seed = int(scenario.get("seed") or 0)
    seeds = (seed + way * far for far in range(1, NEAR + 1) for way in (1, -1))  # a rank or a worker added to it
    for other in dict.fromkeys((int(mapping(scenario.get("engine")).get("seed") or 0), 0, 1, 42, 1234, *seeds)):
        if other != seed:
            yield Trial(
                "RNG(seed ignored)",
                f"seed {other} in the reference",
                f"the {s.side} draws with seed {other}, not with the {seed} that was asked",
                {"seed": other},
                details={"asked": seed, "as if": other},
            )
    yield from _fits(s)
    values: dict[str, list[Any]] = {
        "min_tokens": [0],
        "ignore_eos": [not asked.get("ignore_eos", False)],
        "stop_token_ids": [[]],
    }
    for name, tries in values.items():
        for value in tries:
            if _same(value, asked.get(name)):
                continue
            yield _guess(s, name, value)


def _guess(s: Situation, name: str, value: Any, bounds: tuple[float, float] | None = None) -> Trial:
    """`bounds`: what explains the engine's choices as well."""
    more = f" ({_shown(bounds[0])} to {_shown(bounds[1])} does as well)" if bounds else ""
    return Trial(
        _STOPS.get(name, f"SAMPLING_PARAM({name})"),
        f"{name} {_shown(value)} in the reference",
        f"the {s.side} samples as if {name} were {_shown(value)}{more}",
        {"sampling": ((name, value),)},
        details={"asked": s.asked.get(name), "as if": value, "side": s.side, **({"bounds": bounds} if bounds else {})},
    )


def _fits(s: Situation) -> Iterator[Trial]:
    """Numbers that explain what the engine chose: alone, or else several at once."""
    known = {one.name for one in s.named if one.side == s.side}
    names = [name for name in ("temperature", "top_p", "top_k", "min_p") if f"SAMPLING_PARAM({name})" not in known]
    for fitted in s.bench.fitted(s.side, names, s.alteration) if s.symptoms.of("tokens", "lengths") else ():
        values = fitted.values
        parts = [_guess(s, name, value, fitted.bounds.get(name)) for name, value in values.items()]
        if len(parts) == 1:
            yield parts[0]
            continue
        yield Trial(
            f"SAMPLING_PARAM({', '.join(sorted(values))})",
            f"{' and '.join(f'{name} {_shown(value)}' for name, value in values.items())} in the reference",
            f"the {s.side} samples with other parameters than were asked",
            {"sampling": tuple(values.items())},
            parts=tuple(parts),
        )


FAMILIES: tuple[Callable[[Situation], Iterator[Trial]], ...] = (
    prompts_seen,
    parameters,
    reports,
    filters,
    prompts_hidden,
    outputs,
    lengths,
    guesses,
)


def _sent(s: Situation) -> dict[int, tuple[int, ...]]:
    return {one.number: one.prompt for one in s.samples}


def _joined(alteration: Alteration, ids: dict[int, tuple[int, ...]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(sorted({**dict(alteration.prompts), **ids}.items()))


def _prompt_cause(s: Situation, number: int, sent: tuple[int, ...], seen: tuple[int, ...]) -> str:
    kind = how(np.array(sent), np.array(seen), tokenizer(s.evidence))
    if kind == "other ids" and s.bench.reprompted(s.side, [number], "again").get(number) == seen:
        return "RETOKENIZATION"
    return NAMES.get(kind, f"TOKENIZATION({kind})")


def _same(one: Any, two: Any) -> bool:
    return (list(one) if isinstance(one, (list, tuple)) else one) == (
        list(two) if isinstance(two, (list, tuple)) else two
    )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
