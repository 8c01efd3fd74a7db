"""Divergences: what can differ between two runs, or between one engine and what it is held against.

Each kind states its name, the stage of a run that shows it, and what it follows from. A kind belongs to one side
(`sided`) or to the comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from reports.model import Place

# Order within a step. A sync that a step's rollout already used comes before it (see `_judge` in `observed_sync`).
PHASES = ("prompt", "floor", "rollout", "experience", "train", "sync", "lifted", "native")
LAST = 1 << 60  # the native stage follows every step
Order = tuple[int, int, int, int]  # step, phase, sample, position


class Stage(Enum):
    """Which recordings of a run show a divergence."""

    RUN = "run"
    LIFTED = "lifted"  # the run's weights again, in float32
    NATIVE = "native"  # the engine's own sampler


class Kind(Enum):
    """What differs: its label in reports, and its words. Words of a sided kind contain `{side}`.

    A log-probability of a rollout has four: `LOGPROB` and `ENGINE` for single tokens, between the engines and against
    the learner; `ENGINE_DRIFT` and `DRIFT` for their means, where no single token decides.
    """

    # engine against engine
    FLIP = ("flip", "other tokens")
    UNJUDGED_FLIP = ("unjudged flip", "unjudged flip")  # no margin of the learner says how close the choice was
    LOGPROB = ("logprob", "other log-probabilities")
    LENGTH = ("length", "other lengths")
    FINISH = ("finish", "other finish reasons")
    ENGINE_DRIFT = ("drift", "a systematic difference of log-probabilities")
    # one engine against its learner, its prompts, its weights and itself
    ENGINE = ("learner", "the {side}'s engine away from its learner")
    CHOICE = ("choice", "tokens against the learner's choice in the {side}")
    NOT_FINITE = ("not finite", "not finite in the {side}")
    DRIFT = ("drift", "a systematic difference of log-probabilities in the {side}")
    BEHIND = ("behind", "weights before the last update in the {side}")
    PROMPT = ("prompt", "prompt in the {side}")
    TRAINED = ("trained", "trained in the {side}")
    SYNC = ("sync", "sync in the {side}")
    FLOOR = ("floor", "noise in the {side}")
    VERSION = ("version", "version")
    LIFECYCLE = ("lifecycle", "sleep and wake in the {side}")
    REASON = ("reason", "finish reasons of the {side} that its samples contradict")
    # learner against learner, and against float32
    EXPERIENCE = ("experience", "experience")
    REWARD = ("reward", "reward")
    LEARNER = ("learner", "another learner")
    LOSS = ("loss", "other losses")
    RETURNS = ("returns", "returns of the {side}'s learner that its rewards do not give")
    APPLIED_LOSS = ("applied loss", "losses of the {side}'s learner that its experience does not give")
    RANKS = ("ranks", "ranks of the {side}'s learner")
    TRAINER_DRIFT = ("trainer drift", "a learner away from what float32 makes of its weights")
    # the lifted stage, and the native one
    LIFTED = ("lifted", "other results in float32")
    NATIVE = ("native", "another distribution")
    NATIVE_PROMPT = ("native prompt", "other prompts in the native stage in the {side}")
    NATIVE_LEARNER = ("native learner", "native learner in the {side}")
    NATIVE_SAMPLER = ("native sampler", "native sampler in the {side}")
    NATIVE_REPEAT = ("native repeat", "native repeat in the {side}")
    COLLISION = ("collision", "collision in the {side}")
    SHARED_SEEDS = ("shared seeds", "seeds that engines of the {side} share")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words

    @property
    def sided(self) -> bool:
        """Whether the kind belongs to one side."""
        return "{side}" in self.words

    @property
    def stage(self) -> Stage:
        if self is Kind.LIFTED:
            return Stage.LIFTED
        return Stage.NATIVE if self in _NATIVE else Stage.RUN

    @property
    def downstream(self) -> bool:
        """Whether it follows from other tokens, like everything that the trainer makes of them."""
        return self in _DOWNSTREAM

    @property
    def of_trainer(self) -> bool:
        """Whether the trainer is what differs."""
        return self.downstream or self in (Kind.TRAINER_DRIFT, Kind.RANKS, Kind.RETURNS, Kind.APPLIED_LOSS)

    @property
    def systematic(self) -> bool:
        """Whether it is a difference of means."""
        return self in (Kind.ENGINE_DRIFT, Kind.DRIFT, Kind.TRAINER_DRIFT)

    def of(self, side: str | None = None) -> DivergenceKey:
        """Return the key of this kind. `side` is ignored for kinds of the comparison."""
        return DivergenceKey(self, side if self.sided else None)


_NATIVE = frozenset({
    Kind.NATIVE, Kind.NATIVE_PROMPT, Kind.NATIVE_LEARNER, Kind.NATIVE_SAMPLER, Kind.NATIVE_REPEAT, Kind.COLLISION,
    Kind.SHARED_SEEDS,
})  # fmt: skip
_DOWNSTREAM = frozenset({Kind.EXPERIENCE, Kind.REWARD, Kind.LEARNER, Kind.LOSS})
# What an engine can show in its rollouts, and in the native stage.
ROLLOUT = (
    Kind.FLIP, Kind.LOGPROB, Kind.LENGTH, Kind.FINISH, Kind.ENGINE, Kind.CHOICE, Kind.NOT_FINITE, Kind.ENGINE_DRIFT,
    Kind.DRIFT, Kind.BEHIND,
)  # fmt: skip
NATIVE = (Kind.NATIVE, Kind.NATIVE_LEARNER, Kind.NATIVE_SAMPLER, Kind.COLLISION)


class DivergenceKey(NamedTuple):
    """A kind, with the side that it belongs to."""

    kind: Kind
    side: str | None = None

    @property
    def label(self) -> str:
        """Return the label for reports."""
        return self.kind.label if self.side is None else f"{self.kind.label}:{self.side}"

    @property
    def words(self) -> str:
        return self.kind.words.format(side=self.side)

    @property
    def downstream(self) -> bool:
        """Whether it follows from other tokens. The candidate trains on what it drew; the baseline is what it is held
        against.
        """
        return self.kind.downstream or self == (Kind.TRAINED, "candidate")


def keys(kinds: Iterable[Kind], side: str) -> tuple[DivergenceKey, ...]:
    """Return the keys of these kinds, for a fault of `side`."""
    return tuple(kind.of(side) for kind in kinds)


@dataclass(frozen=True)
class Divergence:
    """The earliest divergence of a kind, of a run or of a step.

    `phase`: its phase within the step, which may be earlier than the phase of its place.
    """

    kind: Kind
    side: str | None
    place: Place
    phase: str

    @property
    def key(self) -> DivergenceKey:
        return DivergenceKey(self.kind, self.side)

    @property
    def step(self) -> int:
        return self.place.step

    @property
    def sample(self) -> int:
        return self.place.sample

    @property
    def position(self) -> int:
        return self.place.position

    @property
    def order(self) -> Order:
        """Return a sort key by where the divergence begins."""
        step = LAST if self.phase == "native" else self.step
        return step, PHASES.index(self.phase), self.sample, self.position
