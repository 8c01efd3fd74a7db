"""What the bench is asked and what it answers: plain data that is passed between interpreters, without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

KINDS = ("prompts", "tokens", "lengths", "finish", "logprobs", "scores")
CHOICES = ("prompts", "tokens", "lengths", "finish")
NUMBERS = ("logprobs", "scores")


@dataclass(frozen=True)
class CaseSample:
    """One sample to draw again.

    `number`: as in the recording; the key of its randomness. `prompt`: its token ids. `offends`: whether it differed.
    `leader`: the first sample of its prompt in its step; -1 where unknown.
    """

    number: int
    prompt: tuple[int, ...]
    offends: bool = True
    leader: int = -1


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal.

    `logprob`: in nats. `margin`: between two perturbed logits, in nats of logits/T. `few`: how many choices rounding
    may turn over although they are beyond `margin`, up to `far`. `turned`: the share of all choices that rounding is
    expected to turn over.
    """

    logprob: float
    margin: float
    few: int = 0
    far: float = 0.0
    turned: float = 0.0


@dataclass(frozen=True)
class Alteration:
    """A change of the reference that makes it repeat a fault's mistake. Alterations add up: see `with_`.

    sampling: canonical parameters by name. penalties: on tokens that occurred, by name. passed_over: (sample,
    position) where the second best token is taken. joint: top-p over the unfiltered mass. prompts: ids in place of a
    sample's own prompt. everywhere: use these ids for continuations under the guide too. seed: of the common
    randomness. report: how log-probabilities are changed: "shift:+1", "shift:-2", "temper:T", "scale:F", "support"
    (renormalised over what the filters keep), "penalised", "top" (of the most probable token). scored: factor of
    teacher-forced log-probabilities. output: "again" (decoded and encoded) or "without end" (the end token is
    dropped). streams: sample -> another sample whose random numbers it uses. context: number of tokens, prompt
    included, at which samples end.
    """

    sampling: tuple[tuple[str, Any], ...] = ()
    penalties: tuple[tuple[str, float], ...] = ()
    passed_over: tuple[tuple[int, int], ...] = ()
    joint: bool = False
    prompts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    everywhere: bool = False
    seed: int | None = None
    report: str = ""
    scored: float = 1.0
    output: str = ""
    streams: tuple[tuple[int, int], ...] = ()
    context: int | None = None

    @property
    def widens(self) -> float:
        """Return the factor by which it multiplies the rounding of log-probabilities: 1/T for "temper:T", F for
        "scale:F".
        """
        how, _, value = self.report.partition(":")
        if how == "temper":
            return max(1.0, 1 / float(value))
        return max(1.0, abs(float(value))) if how == "scale" else 1.0

    def with_(self, **changes: Any) -> Alteration:
        """Return the alteration with a further change. Sampling parameters are added to those that are changed
        already.
        """
        if "sampling" in changes:
            changes["sampling"] = tuple(sorted({**dict(self.sampling), **dict(changes["sampling"])}.items()))
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Symptoms:
    """How one side differs from the reference over the case.

    `counts`: kind -> number of differences (see KINDS). `healthy`: the same, among the samples that do not offend.
    `compared`: kind -> number of comparisons. `by_sample`: sample -> number of differences. `nats`: sum of |Δ| of
    finite teacher-forced log-probabilities. `noise`: log-probabilities and tokens that differ between two equal draws
    of the engine itself. `restless`: only the numbers did not repeat, so only choices were compared. `cached`: prompt
    tokens that came from a prefix cache. `longest`: how many tokens of a sequence the engine scores; 0 where unknown.
    `cut`: sequences that are longer and were scored up to there. `sizes`: for a kind of NUMBERS, the sample and |Δ|
    in nats of each difference; NaN where one of the two is not a number.
    """

    counts: dict[str, int] = field(default_factory=dict)
    healthy: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    by_sample: dict[int, int] = field(default_factory=dict)
    nats: float = 0.0
    noise: int = 0
    restless: bool = False
    cached: int = 0
    longest: int = 0
    cut: int = 0
    sizes: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    places: dict[str, list[Any]] = field(default_factory=dict)  # kind -> [sample, position, reference, engine]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def of(self, *kinds: str) -> int:
        return sum(self.counts.get(kind, 0) for kind in kinds)


@dataclass(frozen=True)
class HeldOtherwise:
    """A tensor whose values on an engine are not the learner's.

    `rows`: how many of its `of` rows differ, wholly or in part. `how`: in words; "" for other numbers. `marks`: rank
    -> a digest of what it holds, for those of the engine's `workers` whose part differs.
    """

    name: str
    rows: int
    of: int
    how: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    workers: int = 1

    @property
    def where(self) -> str:
        """Return the workers whose part differs, in words; "" where all of them do."""
        if len(self.marks) == self.workers:
            return ""
        return f"rank{'s' if len(self.marks) > 1 else ''} {', '.join(map(str, self.marks))} of {self.workers}"


@dataclass(frozen=True)
class HeadReport:
    """What a head makes of hidden states, in tokens whose log-probabilities differ beyond the tolerance.

    `before`: the reference's from the engine's. `after`: the same where the reference's head is given what enters the
    engine's, so that only the heads differ. `by_states`: the reference's from its own then, so that only the states do.
    """

    before: int
    after: int
    by_states: int


@dataclass(frozen=True)
class HeldReport:
    """What an engine holds, compared with its learner's tensors and, for buffers, with the model's configuration.

    `equal`: number of equal tensors. `otherwise`: those that differ. `unreadable`: name -> why it cannot be read.
    `buffers`: name -> "equal", "differs" or "not tested".
    """

    equal: int = 0
    otherwise: list[HeldOtherwise] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [difference.name for difference in self.otherwise]

    @property
    def all_equal(self) -> bool:
        """Whether every tensor was read and equals the learner's."""
        return self.equal > 0 and not self.otherwise and not self.unreadable

    def of_buffers(self, state: str) -> list[str]:
        return [name for name, buffer_state in self.buffers.items() if buffer_state == state]


Values = dict[str, Any]  # sampling parameters by their canonical names


@dataclass(frozen=True)
class Fitted:
    """Sampling parameters that explain every choice of an engine (`complete`), or single ones that come closest.

    `values`: by name. `bounds`: name -> the least and the largest value that explain as much beside the others; a
    parameter that is switched off has none.
    """

    values: Values
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class PassedOver:
    """Choices of an engine that are not the reference's.

    `places`: (sample, position) where it took the second best token. `others`: how many times it took yet another
    token. `compared`: number of choices. Of `places`, `wide` counts those where the lead of the best token is larger
    than at the closest quarter of all positions, and `likely` those where the best token is likelier than at the
    least likely quarter. `chance`: log of the probability that other random numbers would have taken the second best
    token at each place.
    """

    places: tuple[tuple[int, int], ...] = ()
    others: int = 0
    compared: int = 0
    wide: int = 0
    likely: int = 0
    chance: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """One sample of a reading. `output[t]` is the choice given the guide's tokens before t."""

    number: int
    prompt_seen: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float, ...]  # NaN where the alteration makes it unknown
    finish: str
    cached: int = 0
