"""The cause LOGPROB_SEMANTICS: log-probabilities that are tempered, renormalised, scaled or of another token."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import either
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial

SAME_TEMPERATURE = 1e-3  # a fitted temperature counts as the temperature that it is nearer to than this


def meanings(s: Situation) -> Iterator[Trial]:
    """Try log-probabilities of the right distribution that are reported in another way."""
    if not s.remaining.of("logprobs"):
        return
    if s.remaining.of("scores"):  # another base of the logarithm, say, changes scores too; nothing else here does
        yield from _scaled(s, scored=True)
        return
    temperature = float({**s.run_sampling, **s.given_sampling}.get("temperature") or 1.0)
    if temperature != 1.0:
        yield Trial(
            LOGPROB_SEMANTICS.key("tempered"),
            f"the reference reports at temperature {temperature:g}",
            "the engine reports log-probabilities after temperature, not the model's own",
            {"report": f"temper:{temperature!r}"},
        )
    fitted = s.bench.tempered(s.side, s.alteration)
    if abs(fitted - temperature) > SAME_TEMPERATURE and abs(fitted - 1.0) > SAME_TEMPERATURE:
        yield Trial(
            LOGPROB_SEMANTICS.key("tempered"),
            f"the reference reports at temperature {fitted:.4g}",
            f"the engine reports log-probabilities at temperature {fitted:.4g}, and draws at {temperature:g}",
            {"report": f"temper:{fitted!r}"},
            details={"temperature": fitted, "drawn at": temperature},
        )
    yield Trial(
        LOGPROB_SEMANTICS.key("renormalised"),
        "the reference reports over what the filters leave",
        "the engine renormalises log-probabilities over what top-k and top-p leave",
        {"report": "support"},
    )
    above = all(expected < reported < 0 for _, _, expected, reported in s.symptoms.places.get("logprobs", []))
    if above and not s.remaining.of("tokens"):  # the most probable token's is the larger one, whatever was drawn
        yield Trial(
            LOGPROB_SEMANTICS.key("top token"),
            "the reference reports the log-probability of the most probable token",
            "the engine reports the log-probability of the most probable token, whichever it drew",
            {"report": "top"},
        )
    yield from _scaled(s, scored=False)


def _scaled(s: Situation, *, scored: bool) -> Iterator[Trial]:
    """Try one factor for all reported log-probabilities. `scored`: it also applies to those of a forward pass."""
    slope = s.bench.slope(s.side, s.alteration)
    if abs(slope - 1) > 0.01:
        yield Trial(
            LOGPROB_SEMANTICS.key("scaled"),
            f"log-probabilities of the reference times {slope:.4g}{', its scores too' if scored else ''}",
            f"the engine's log-probabilities are scaled by {slope:.4g}",
            {"report": f"scale:{slope!r}", **({"scored": slope} if scored else {})},
            details={"scale": slope},
        )


LOGPROB_SEMANTICS = CauseFamily(
    "LOGPROB_SEMANTICS",
    meaning="the engine reports log-probabilities of another distribution: scaled, tempered or renormalised; or of "
    "another token, or a placeholder in place of some",
    fix="ask the engine for raw log-probabilities, at temperature 1 and before any filter",
    details={
        "tempered": "they are those after the temperature was applied",
        "renormalised": "they are those among the tokens that top-k and top-p leave",
        "scaled": "they are those of the model times one factor, such as that of another base of the logarithm",
        "top token": "each is that of the most probable token, whichever was drawn",
        "rounded": "they went through a type of fewer digits than float32",
        "placeholder": "some are a constant that stands in for the number",
    },
    fixes={
        "placeholder": "keep the log-probability of every token that was drawn, that of the end token too, and put no "
        "number in its place",
        "top token": "look the drawn token up by its id where an engine lists several tokens: the first of the list is "
        "the most probable one",
        "rounded": "compute and keep log-probabilities in float32, whatever type the model has",
        "renormalised": "ask the engine for log-probabilities before any filter, or draw without one: an importance "
        "ratio needs both of its numbers of one distribution",
    },
    alone="its proof gives every number again, from the whole distribution of its position",
    proof=either("each number comes out in the other meaning"),
)

FAMILIES = (LOGPROB_SEMANTICS,)
