"""The mistakes that the reference is made to make, each with the cause that it would prove.

Each is a function Situation -> trials. None costs an engine call. Those of `CauseFamily.trials` join them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from harness.parity.attribution.guesses import guesses
from harness.parity.causes import registry
from harness.parity.causes.alignment import ALIGNMENT
from harness.parity.causes.ends import CAPACITY, LENGTH, STOP
from harness.parity.causes.family import Seen
from harness.parity.causes.parameters import SAMPLING_PARAM, sampling_key
from harness.parity.causes.prompts import TEMPLATE, TOKENIZATION
from harness.parity.causes.retokenization import RETOKENIZATION
from harness.parity.causes.rng import RNG_COLLISION
from harness.parity.causes.sampler import JOINT
from harness.parity.causes.semantics import LOGPROB_SEMANTICS
from harness.parity.causes.turns import Turn
from harness.parity.facts.parameters import follows_from
from harness.parity.facts.prompts_seen import how
from harness.parity.facts.readings import SHIFTS, tokenizer
from harness.parity.interventions.situation import ROOMY, Situation
from harness.parity.interventions.trial import Trial, same, shown
from harness.parity.rules.prompts import prompt_key
from reports.model import CauseKey
from reports.text import counted
from scenarios.bench.case import Alteration

SAME_TEMPERATURE = 1e-3  # nearer than that a fitted one is the one it is near
_ALSO = ", in continuations too"


def prompts_seen(s: Situation) -> Iterator[Trial]:
    """Give the reference the ids that the engine says it saw."""
    if not s.rest.of("prompts"):
        return
    kinds: dict[CauseKey, dict[int, tuple[int, ...]]] = {}
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
                f"the reference is given the ids that the engine saw{_ALSO if everywhere else ''}",
                f"the engine saw other prompt ids than it was sent, in {counted(len(given), 'sample')} of the case",
                {"prompts": _joined(s.alteration, given), "everywhere": everywhere},
                recorded=True,
            )


def prompts_hidden(s: Situation) -> Iterator[Trial]:
    """The same where the engine says that it saw what it was sent, and draws otherwise."""
    if s.rest.of("scores") or not s.rest.of("logprobs"):
        return
    wrong = sorted(s.rest.by_sample)
    kinds: dict[CauseKey, dict[int, tuple[int, ...]]] = {}
    sent = _sent(s)
    others = set(sent.values())
    for number, used in s.bench.prompts_used(s.side, wrong).items():
        if used not in others:
            kinds.setdefault(_prompt_cause(s, number, sent[number], used), {})[number] = used
    for cause, given in kinds.items():
        for everywhere in (False, True):
            yield Trial(
                cause,
                f"the reference is given the ids of the engine's forward pass{_ALSO if everywhere else ''}",
                f"the engine drew {counted(len(given), 'sample')} of the case from other prompt ids than it was sent, "
                "and says that it saw what was sent; it scores the whole prompt",
                {"prompts": _joined(s.alteration, given), "everywhere": everywhere},
            )
    ways = (
        ("text", TOKENIZATION.key("double BOS"), "the prompt was sent as text and tokenized again, specials added"),
        ("again", RETOKENIZATION.key(), "the prompt was turned into text and tokenized again"),
        ("no BOS", prompt_key("no BOS"), "the prompt lacks its BOS"),
        (
            "no generation prompt",
            TEMPLATE.key("no generation prompt"),
            "the prompt lacks the template's generation prompt",
        ),
    )
    for way, cause, summary in ways:
        ids = s.bench.reprompted(s.side, wrong, way)
        for everywhere in (False, True) if ids else ():
            change = {"prompts": _joined(s.alteration, ids), "everywhere": everywhere}
            yield Trial(cause, f"prompts of the reference: {way}", summary, change)


def reports(s: Situation) -> Iterator[Trial]:
    """Log-probabilities that are right, and reported in another way."""
    if not s.rest.of("logprobs"):
        return
    if s.rest.of("scores"):  # another base of the logarithm, say, is in both; nothing else of this family is
        yield from _scaled(s, scored=True)
        return
    for shift in SHIFTS:
        yield Trial(
            ALIGNMENT.key(),
            f"read {shift:+d} position",
            f"log-probabilities are shifted by {abs(shift)}, to {'after' if shift > 0 else 'before'} their tokens",
            {"report": f"shift:{shift:+d}"},
            details={"shift": shift},
        )
    temperature = float({**s.asked, **s.given}.get("temperature") or 1.0)
    if temperature != 1.0:
        yield Trial(
            LOGPROB_SEMANTICS.key("tempered"),
            f"the reference reports at temperature {temperature:g}",
            "the engine reports log-probabilities after temperature, not the model's own",
            {"report": f"temper:{temperature!r}"},
        )
    other = s.bench.tempered(s.side, s.alteration)
    if abs(other - temperature) > SAME_TEMPERATURE and abs(other - 1.0) > SAME_TEMPERATURE:
        yield Trial(
            LOGPROB_SEMANTICS.key("tempered"),
            f"the reference reports at temperature {other:.4g}",
            f"the engine reports log-probabilities at temperature {other:.4g}, and draws at {temperature:g}",
            {"report": f"temper:{other!r}"},
            details={"temperature": other, "drawn at": temperature},
        )
    yield Trial(
        LOGPROB_SEMANTICS.key("renormalised"),
        "the reference reports over what the filters leave",
        "the engine renormalises log-probabilities over what top-k and top-p leave",
        {"report": "support"},
    )
    yield from _scaled(s, scored=False)


def _scaled(s: Situation, *, scored: bool) -> Iterator[Trial]:
    """All reported log-probabilities times one factor; `scored`: those of a forward pass too."""
    slope = s.bench.slope(s.side, s.alteration)
    if abs(slope - 1) > 0.01:
        yield Trial(
            LOGPROB_SEMANTICS.key("scaled"),
            f"log-probabilities of the reference times {slope:.4g}{', its scores too' if scored else ''}",
            f"the engine's log-probabilities are scaled by {slope:.4g}",
            {"report": f"scale:{slope!r}", **({"scored": slope} if scored else {})},
            details={"scale": slope},
        )


def parameters(s: Situation) -> Iterator[Trial]:
    """The reference samples with what the engine was given: every parameter that is not what was asked."""
    asked, own, given = s.asked, s.own, s.given
    differing = {name: value for name, value in given.items() if name in asked and not same(value, asked[name])}
    undone = follows_from(s.said)
    for name, value in differing.items():
        if undone.get(name) in differing:
            continue  # it goes with the one that undoes it
        ours = name in own and not same(own[name], asked[name])
        party = s.side if ours else "mapping"
        cause = sampling_key(name)
        yield Trial(
            cause,
            f"{name} {shown(value)} in the reference",
            f"the {s.side} samples with {name} {shown(value)} where {shown(asked[name])} was asked",
            {"sampling": ((name, value), *((one, given[one]) for one, by in undone.items() if by == name))},
            party,
            recorded=True,
            details={"asked": asked[name], "given": value, "side": s.side},
            seen=(Seen.GIVEN,),
        )
    if len(differing) > 1:
        # Filters may only show together; what of them matters is found by putting one back at a time.
        yield Trial(
            SAMPLING_PARAM.key(*sorted(differing)),
            "every given parameter in the reference",
            f"the {s.side} samples with other parameters than were asked",
            {"sampling": tuple(differing.items())},
            "mapping",
            recorded=True,
            details={"given": differing, "side": s.side},
            seen=(Seen.GIVEN,),
        )


def filters(s: Situation) -> Iterator[Trial]:
    """Top-k and top-p jointly, where both are asked."""
    sampling = {**s.asked, **s.given}
    if s.rest.of("tokens") and int(sampling.get("top_k") or -1) > 0 and float(sampling.get("top_p") or 1.0) < 1.0:
        yield Trial(
            JOINT,
            "top-p over the unfiltered mass in the reference",
            "the engine applies top-p to the unfiltered mass, not to the renormalised top-k",
            {"joint": True},
        )


def outputs(s: Situation) -> Iterator[Trial]:
    """What comes back is not what was drawn."""
    if s.rest.of("scores") or not s.rest.of("tokens", "lengths"):
        return
    yield Trial(
        STOP.key("end token dropped"),
        "the end token dropped from the reference's answers",
        "the engine leaves the end token out of its output",
        {"output": "without end"},
    )
    yield Trial(
        RETOKENIZATION.key(),
        "the reference's answers decoded and encoded again",
        "responses were turned into text and tokenized again",
        {"output": "again"},
    )
    yield Trial(
        RNG_COLLISION.key(),
        "samples of one prompt share their randomness in the reference",
        "samples of one prompt are clones of each other: their advantages are zero",
        {"siblings": True},
    )


def lengths(s: Situation) -> Iterator[Trial]:
    """The engine ends samples before the limit: where prompt and response reach one total, or so many tokens early.

    Not while a context or a pool of its own can still be put back: that says whose limit it is.
    """
    if not s.rest.of("lengths") or {*ROOMY} & {*s.changed} - {*s.last_put_back}:
        return
    capacity = CAPACITY.key("kv pool") in s.recorded and LENGTH.key("context") not in s.recorded
    for total in s.ended_at:
        cause = CAPACITY.key("kv pool") if capacity else LENGTH.key("context")
        yield Trial(
            cause,
            f"the reference ends at {counted(total, 'token')}, prompt included",
            f"the engine ends samples at {counted(total, 'token')}, prompt included",
            {"context": total},
            recorded=cause in s.recorded,
            details={"total": total},
        )
    limit = int(s.asked.get("max_tokens") or 0)
    for less in dict.fromkeys((*(limit - one for one in s.ended_after), 1, 2, 4, 8)):
        if limit > less:
            yield Trial(
                LENGTH.key("context"),
                f"{counted(less, 'token')} less in the reference",
                f"the engine stops {counted(less, 'token')} before the limit",
                {"sampling": (("max_tokens", limit - less),)},
                details={"tokens": less},
            )


_TRIALS = (
    Turn(prompts_seen, "", "a record; with other ids everything that follows is drawn and scored otherwise"),
    Turn(parameters, "prompts_seen", "a record too: what was given comes before what is guessed"),
    Turn(reports, "parameters", "it looks at numbers, which hide the choices beside them while they are misread"),
    Turn(filters, "reports", "no number is fitted: the two parameters that were asked, in another order"),
    Turn(prompts_hidden, "filters", "ids that no record speaks of cost a forward pass each"),
    Turn(outputs, "prompts_hidden", "a prompt explains answers; only then are answers taken to be altered"),
    Turn(lengths, "outputs", "an end token that was dropped makes answers shorter as well"),
    Turn(guesses, "lengths", "last: seeds and parameters that no record speaks of may fit by chance"),
)


@functools.cache
def trials() -> tuple[Turn, ...]:
    """Everything that the reference is made to do wrong, in the order in which it is asked."""
    return registry.trials(_TRIALS)


def _sent(s: Situation) -> dict[int, tuple[int, ...]]:
    return {one.number: one.prompt for one in s.samples}


def _joined(alteration: Alteration, ids: dict[int, tuple[int, ...]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(sorted({**dict(alteration.prompts), **ids}.items()))


def _prompt_cause(s: Situation, number: int, sent: tuple[int, ...], seen: tuple[int, ...]) -> CauseKey:
    if s.bench.reprompted(s.side, [number], "no BOS").get(number) == seen:
        return prompt_key("no BOS")
    kind = how(np.array(sent), np.array(seen), tokenizer(s.evidence))
    if kind == "other ids" and s.bench.reprompted(s.side, [number], "again").get(number) == seen:
        return RETOKENIZATION.key()
    return prompt_key(kind)
