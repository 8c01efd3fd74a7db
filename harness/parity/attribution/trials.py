"""The mistakes that the reference is made to make, each with the cause that it would prove.

Each is a function Situation -> trials. None costs an engine call. Those of `CauseFamily.trials` join them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from harness.parity.attribution.guesses import guesses
from harness.parity.causes import registry
from harness.parity.causes.alignment import ALIGNMENT
from harness.parity.causes.ends import STOP
from harness.parity.causes.retokenization import RETOKENIZATION
from harness.parity.causes.rng import RNG_COLLISION
from harness.parity.causes.sampler import JOINT
from harness.parity.causes.semantics import LOGPROB_SEMANTICS
from harness.parity.causes.turns import Turn
from harness.parity.facts.readings import SHIFTS
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial

SAME_TEMPERATURE = 1e-3  # nearer than that a fitted one is the one it is near


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


_TRIALS = (
    Turn(reports, "parameters", "it looks at numbers, which hide the choices beside them while they are misread"),
    Turn(filters, "reports", "no number is fitted: the two parameters that were asked, in another order"),
    Turn(outputs, "prompts_hidden", "a prompt explains answers; only then are answers taken to be altered"),
    Turn(guesses, "lengths", "last: seeds and parameters that no record speaks of may fit by chance"),
)


@functools.cache
def trials() -> tuple[Turn, ...]:
    """Everything that the reference is made to do wrong, in the order in which it is asked."""
    return registry.trials(_TRIALS)
