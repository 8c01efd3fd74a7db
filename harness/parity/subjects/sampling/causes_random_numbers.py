"""The causes RNG (another seed) and RNG_COLLISION (samples that share one).

Samples that share a seed are clones: they draw the same tokens more often than the learner's probabilities allow. In a
guided run the samples of a group share their context at the first token only, since the guide's tokens differ from
there on. So first tokens are compared; in a free run whole responses are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import either
from harness.parity.facts.align import Match
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, when
from harness.parity.facts.probabilities import binomial_from
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.engines.observed import engines, routed
from harness.parity.subjects.order.causes import MOST
from harness.recordings.tables import Table
from reports.model import Cause, Proof
from reports.text import figure, part_of
from scenarios.fleet import engine_of


@of_each_side
def collisions(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find samples of one prompt that are clones of each other, in the native stage or in the rollouts."""
    yield from _native_collisions(e, side)
    yield from _rollout_collisions(e, side, so_far)


def _native_collisions(e: Evidence, side: Side) -> Iterator[Explanation]:
    if Kind.COLLISION.of(side.name) in e.first:
        native = side.collisions
        assert native is not None
        cause = Cause.of(
            RNG_COLLISION.key(),
            side.name,
            "samples of one prompt are clones of each other: their advantages are zero",
            f"{native.equal} equal pairs where {figure(native.expected)} are expected",
            {"stage": "native", **native.facts()},
        )
        yield Explanation(cause, keys((Kind.NATIVE, Kind.COLLISION), side.name))
    shared = e.first.get(Kind.SHARED_SEEDS.of(side.name))
    if shared is not None:
        cause = Cause.of(
            RNG_COLLISION.key("engines"),
            side.name,
            "engines draw with one another's seeds: their samples are not independent",
            shared.place.context,
            {"stage": "native"},
        )
        yield Explanation(cause, keys((Kind.SHARED_SEEDS,), side.name))


def _rollout_collisions(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    open_ = so_far.left(Kind.FLIP.of())
    if not len(open_):
        return
    tally = clones(e, side, np.unique(open_[:, 0]).tolist())
    # Clones draw what another member of their group draws in the other run. Groups that are alike for another
    # reason do not.
    if not tally.implausible or not tally.differing or tally.following < MOST * tally.differing:
        return
    # Only the first token of a guided sample is its own. Clones follow one member, at the same place in every
    # group. A sharper sampler follows the most likely token instead.
    if e.guided and max(tally.leaders.values(), default=0) < MOST * tally.equal_groups:
        return
    affected = np.array(tally.samples, np.int64)
    what = "begin alike" if e.guided else "are alike"
    groups = part_of(tally.equal_groups, tally.groups, "prompt")
    cause = Cause.of(
        RNG_COLLISION.key(),
        side.name,
        f"samples of one prompt are clones {when(e, affected[:, 0])}: their advantages are zero",
        f"all samples of {groups} {what}, where {figure(tally.expected)} are expected",
        {"stage": "rollouts", "samples": len(affected)},
        [
            Proof(
                "hold each sample against the one of its group that it is a clone of",
                tally.differing,
                tally.differing - tally.following,
                "samples",
            )
        ],
    )
    yield Explanation(cause, keys(ROLLOUT, side.name), among(affected))


CHANCE = 1e-6  # least probability at which so many alike groups can be chance


@dataclass
class Clones:
    """Groups whose samples all draw the same, against the number that chance explains."""

    equal_groups: int = 0
    groups: int = 0
    expected: float = 0.0
    samples: list[tuple[int, int]] = field(default_factory=list)  # (step, sample) in them
    following: int = 0  # samples that differ from the other run and draw what another of their group draws there
    differing: int = 0  # samples that draw something else than in the other run
    leaders: Counter[int] = field(default_factory=Counter)  # place in its group -> groups that follow that sample

    def add(self, step: int, members: list[int], drawn: dict[int, bytes], paired: dict[int, bytes]) -> None:
        """Add a group whose members all drew the same. `paired`: what each sample drew in the other run."""
        self.equal_groups += 1
        self.samples += [(step, sample) for sample in members]
        differing = [sample for sample in members if drawn[sample] != paired.get(sample)]
        self.differing += len(differing)
        leaders = [place for place, sample in enumerate(members) if paired.get(sample) == drawn[members[0]]]
        self.leaders.update(leaders)
        self.following += len(differing) if leaders else 0

    @property
    def implausible(self) -> bool:
        # Independent groups with unequal probabilities are alike at most as often as groups with equal ones
        # (Hoeffding).
        rate = min(1.0, self.expected / max(1, self.groups))
        chance = binomial_from(self.equal_groups, self.groups, rate)
        return self.equal_groups > self.expected + 1 and chance < CHANCE


def clones(e: Evidence, side: Side, steps: list[int]) -> Clones:
    """Count the clones among one side's samples of these steps.

    All of n independent samples of one prompt are equal with probability E[p(x)^(n-1)], taken over the baseline's own
    samples under its learner. Where groups of the other run are alike more often than that (at another temperature,
    say), their count is the expectation.
    """
    tally, other_equal_groups = Clones(), 0
    other_side = e.other_side(side)
    for step in steps:
        tables = [run.recording.table("rollout", step) for run in (side, other_side)]
        if tables[0] is None or tables[1] is None:
            continue
        drawn, paired = _drawn(e, tables[0]), _drawn(e, tables[1])
        chance = _probabilities(e, step)
        for members in _groups(tables[0]):
            tally.groups += 1
            # The chance that the other members equal one of them is E[p(x)^(n-1)].
            group_chances = [chance[sample] for sample in members if sample in chance]
            tally.expected += float(np.mean(np.power(group_chances, len(members) - 1))) if group_chances else 1.0
            other_equal_groups += len({paired.get(sample) for sample in members}) == 1
            if len({drawn[sample] for sample in members}) == 1:
                tally.add(step, members, drawn, paired)
    # Where the other run has more alike groups than chance gives, its count is the expectation.
    tally.expected = max(tally.expected, other_equal_groups + 1.0)
    return tally


def _drawn(e: Evidence, table: Table) -> dict[int, bytes]:
    output = table.rows("output")
    if output is None:
        return {}
    last = 1 if e.guided else None
    return {int(number): output.row(row)[:last].tobytes() for row, number in enumerate(table.sample)}


def _groups(table: Table) -> list[list[int]]:
    """Return the sample numbers of each prompt that has several samples."""
    prompt, output = table.rows("prompt"), table.rows("output")
    if prompt is None or output is None:
        return []
    numbers_by_prompt: dict[bytes, list[int]] = {}
    for row, number in enumerate(table.sample.tolist()):
        numbers_by_prompt.setdefault(prompt.row(row).tobytes(), []).append(number)
    return [members for members in numbers_by_prompt.values() if len(members) > 1]


def _probabilities(e: Evidence, step: int) -> dict[int, float]:
    """Return the learner's probability of what each of the baseline's samples drew: its first token, or all of a free
    response.
    """
    table = e.baseline.recording.table("experience", step)
    if table is None or (logprob := table.rows("actor_logprob")) is None:
        return {}
    last = 1 if e.guided else None
    rows = Match.of(table.sample, table.sample).a
    sums = {int(table.sample[row]): float(np.sum(logprob.row(row)[:last], dtype=np.float64)) for row in rows}
    return {number: float(np.exp(min(total, 0.0))) for number, total in sums.items() if np.isfinite(total)}


def siblings(s: Situation) -> Iterator[Trial]:
    """Try samples of one prompt that share their random numbers, and samples of an engine that share those of another
    engine.
    """
    if not s.answers_differ:
        return
    yield Trial(
        RNG_COLLISION.key(),
        "samples of one prompt share their randomness in the reference",
        "samples of one prompt are clones of each other: their advantages are zero",
        {"streams": tuple((sample.number, sample.leader) for sample in s.samples if sample.leader >= 0)},
    )
    yield from _other_engines(s)


def _other_engines(s: Situation) -> Iterator[Trial]:
    """Try each sample with the random numbers of the sample at the same place of another engine."""
    side = s.evidence.side(s.side)
    several = engines(side)
    if several < 2 or routed(side):  # behind a router no rule says which sample corresponds to which
        return
    per_prompt = side.recording.records.settings.rollout.samples_per_prompt
    if not per_prompt:
        return
    drew = {sample.number: engine_of(sample.number, per_prompt, several) for sample in s.samples}
    wrong = sorted({drew[number] for number in s.symptoms.by_sample})
    for source_engine in range(several):
        if source_engine in wrong:
            continue
        who = f"engine {' and '.join(map(str, wrong))} of the {s.side}"
        yield Trial(
            RNG_COLLISION.key("engines"),
            f"samples of {who} draw with the random numbers of engine {source_engine} in the reference",
            f"{who} draws with the random numbers of engine {source_engine}: its samples are not independent of those",
            {
                "streams": tuple(
                    (at, at + (source_engine - engine) * per_prompt)
                    for at, engine in drew.items()
                    if engine != source_engine
                )
            },
            details={"engines": wrong, "as": source_engine},
        )


RNG = CauseFamily(
    "RNG",
    meaning="the engine draws with another seed, or ignores its seed",
    fix="give both engines the same seeds, and a seed to each request",
    details={"seed ignored": "the same request with the same seed draws other tokens"},
    alone="its proof draws every choice with another seed; without one it carries none",
    suspicion=7,
    proof=either("with the other seed, each choice comes out as the engine's"),
)
RNG_COLLISION = CauseFamily(
    "RNG_COLLISION",
    meaning="several samples of a prompt, or of two engines, were drawn with the same random numbers",
    fix="give each sample of a prompt a seed of its own, and each engine",
    details={"engines": "several engines draw with the same seeds"},
    alone="its proof finds what another sample of the group, or of the other engine, should have drawn",
    suspicion=7,
    proof=either("each choice is that of the other sample's random numbers"),
)

FAMILIES = (RNG, RNG_COLLISION)
