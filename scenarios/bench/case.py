"""What is asked of the bench and what it answers: plain data that travels between interpreters, without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

KINDS = ("prompts", "tokens", "lengths", "finish", "logprobs", "scores")
CHOICES = ("prompts", "tokens", "lengths", "finish")
NUMBERS = ("logprobs", "scores")


@dataclass(frozen=True)
class CaseSample:
    """One sample to draw again. `number`: as in the recording, the key of its randomness. `offends`: it differed.
    `leader`: the first sample of its prompt in its step, -1 where that is not known."""

    number: int
    prompt: tuple[int, ...]
    offends: bool = True
    leader: int = -1


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal: `logprob` in nats, `margin` between two perturbed logits in nats of logits/T; `few`:
    choices that rounding may turn over beyond `margin`, up to `far`; `turned`: the share of all that it does."""

    logprob: float
    margin: float
    few: int = 0
    far: float = 0.0
    turned: float = 0.0


@dataclass(frozen=True)
class Alteration:
    """What is done to the reference, so that it makes the fault's mistake. Alterations add up: see `with_`.

    sampling: canonical parameters by name. joint: top-p over the unfiltered mass. prompts: the ids given in place of a
    sample's own; `everywhere`: in continuations under the guide too. seed: of the common randomness. report: what
    happens to log-probabilities, "shift:+1", "shift:-2", "temper:T", "scale:F", "support" (renormalised over what the
    filters leave), "penalised". scored: factor of teacher-forced ones. output: "again" (decoded and encoded), "without
    end" (the end token is dropped). streams: samples that draw with the random numbers of another one, by numbers.
    context: tokens, prompt included, at which samples end. penalties: of tokens that occurred, by name. passed_over:
    (sample, position) where the second best token is taken.
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
        """By how much it multiplies what log-probabilities round by: those at T by 1/T, those times F by F."""
        how, _, value = self.report.partition(":")
        return max(1.0, 1 / float(value) if how == "temper" else abs(float(value)) if how == "scale" else 1.0)

    def with_(self, **changes: Any) -> Alteration:
        """A further change; sampling parameters are added to those that are changed already."""
        if "sampling" in changes:
            changes["sampling"] = tuple(sorted({**dict(self.sampling), **dict(changes["sampling"])}.items()))
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Symptoms:
    """How one side differs from the reference over the case. `counts`: kind -> how many (see KINDS); `healthy`: the
    same among the samples that do not offend; `compared`: how many were looked at.

    `nats`: sum of |Δ| of teacher-forced log-probabilities, finite ones. `noise`: log-probabilities and tokens that
    differ between two equal draws of the engine itself; `restless`: numbers alone, and so only what it chooses was
    looked at. `cached`: prompt tokens served from a prefix cache. `longest`: tokens of a sequence that the engine
    scores, 0 where that is not known; `cut`: sequences that are longer, and were scored up to there. `sizes`: of a
    kind of NUMBERS, the sample and |Δ| in nats of each difference; NaN where one of the two is not a number.
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
    """A tensor that an engine holds otherwise than its learner: so many of its rows differ, all of each or a part.
    `how`: in words, "" for other numbers; `marks`: rank -> a digest of what it holds, of those of the engine's
    `workers` that hold their part otherwise."""

    name: str
    rows: int
    of: int
    how: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    workers: int = 1

    @property
    def where(self) -> str:
        """The workers that hold it otherwise, in words; "" where all do."""
        if len(self.marks) == self.workers:
            return ""
        return f"rank{'s' if len(self.marks) > 1 else ''} {', '.join(map(str, self.marks))} of {self.workers}"


@dataclass(frozen=True)
class HeldReport:
    """What an engine holds against its learner's tensors, and its buffers ("equal", "differs", "not tested") against
    the model's configuration. `equal`: tensors; `unreadable`: name -> why."""

    equal: int = 0
    otherwise: list[HeldOtherwise] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [difference.name for difference in self.otherwise]

    @property
    def all_equal(self) -> bool:
        """Every tensor was read, and is the learner's."""
        return self.equal > 0 and not self.otherwise and not self.unreadable

    def of_buffers(self, state: str) -> list[str]:
        return [name for name, buffer_state in self.buffers.items() if buffer_state == state]


Values = dict[str, Any]  # sampling parameters by their canonical names


@dataclass(frozen=True)
class Fitted:
    """Sampling parameters that explain every choice of an engine (`complete`), or come nearest alone. `bounds`: name ->
    the least and the most that do as well beside the others; without a name where nothing was asked."""

    values: Values
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class PassedOver:
    """Choices of an engine that are not the reference's. `places`: (sample, position) where it took the second best
    token; `others`: how many are another one; `compared`: choices. Of `places`, `wide`: those at which the best token
    is further ahead than at a quarter of all; `likely`: at which it is likelier. `chance`: the probability, as a
    logarithm, that other random numbers would have taken the second best at each."""

    places: tuple[tuple[int, int], ...] = ()
    others: int = 0
    compared: int = 0
    wide: int = 0
    likely: int = 0
    chance: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """One sample of a reading. `output[t]` is what was chosen given the guide's tokens before t."""

    number: int
    prompt_seen: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float, ...]  # NaN where the alteration leaves none
    finish: str
    cached: int = 0
