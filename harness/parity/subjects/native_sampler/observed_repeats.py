"""The random numbers of the native stage: whether a sampler repeats itself under one seed, and its samples are
independent.

Equal samples of one prompt, more than the learner's probabilities allow, are clones (RNG_COLLISION). A few samples are
drawn twice with the same seed, which an engine that honours request seeds draws alike. Several engines must use seeds
of their own. Their answers do not show it, because their prompts differ, so the recorded seeds are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import Match
from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.facts.probabilities import poisson_from
from harness.parity.subjects.engines.observed import engines
from harness.parity.subjects.native_sampler.observed import Collisions, NativeStage
from harness.parity.subjects.native_sampler.observed_samples import Samples, tables
from harness.parity.subjects.sampling.observed import engine_infos
from harness.recordings.tables import Table
from reports.model import CauseKey, Finding
from reports.text import figure, part_of

_SEED = CauseKey("CONFIG", ("seed",))  # the same cause as in the check `engine-parameter-map`, for one setting
COLLISION = 1e-6  # least probability at which equal samples of a prompt can be chance
HONOURED = 0.8  # share of the repeated samples that are alike; rounding may turn ties of a few
CHANCE = 0.01  # greatest probability of chance at which equal samples speak for a seed
PROMISES = ("honoured", "ignored")  # what an engine may report about request seeds
TOO_FEW = "too few samples"
EXCHANGED = "exchanged"  # the second draw gave the samples of other requests
FEWEST = 5  # samples that chance alone would not repeat; fewer prove nothing


def collisions(e: EvidenceBuilder, side: SideBuilder, samples: Samples, stage: NativeStage) -> bool:
    """Note clones among the native samples. Returns whether there are any.

    Two independent samples of one prompt are equal with probability E[p(x)], estimated by the mean likelihood of the
    samples themselves. The number of equal pairs is about Poisson. A sampler that is sharper than asked for also draws
    more equal pairs: where the learner's fits show one, only a majority of equal pairs counts as clones.
    """
    groups: dict[bytes, list[int]] = {}
    for index, prompt in enumerate(samples.prompt):
        groups.setdefault(prompt, []).append(index)
    expected, equal, clones, pairs = 0.0, 0, 0, 0
    for members in groups.values():
        n = len(members)
        likelihood = np.exp(np.nan_to_num(samples.likelihood[members], nan=-np.inf))
        # n (n - 1) / 2 pairs, each equal with the mean likelihood of the n samples.
        expected += (n - 1) / 2 * float(likelihood.sum())
        pairs += n * (n - 1) // 2
        counts = list(_counts([samples.output[i] for i in members]).values())
        equal += sum(count * (count - 1) // 2 for count in counts)
        clones += sum(count for count in counts if count > 1)
    scored = bool(np.isfinite(samples.likelihood).any())
    side.collisions = Collisions(equal, expected, clones)
    if not scored or not equal or poisson_from(equal, expected) >= COLLISION:
        return False
    # A sampler that is narrower than asked draws the same again more often: then a fit explains the pairs.
    if samples.fits and 2 * equal <= pairs:
        stage.add(
            "not_compared",
            f"{side.name}: {equal} equal pairs of native samples, which a sampler other than asked may draw",
        )
        return False
    text = f"{side.name}: {equal} equal pairs, {figure(expected)} expected"
    values = side.paired(equal, expected)
    e.note_native(Kind.COLLISION.of(side.name), field="equal samples of one prompt", context=text, **values)
    return True


def shared_seeds(e: EvidenceBuilder, side: RecordedSide, draws: int, stage: NativeStage) -> None:
    """Note samples of one engine that were drawn with the seeds of another engine."""
    drawn = tables(side, "native", draws)
    if engines(side) < 2 or not drawn:
        return
    columns = [table.flat("seed") for table in drawn]
    recorded_seeds = [column for column in columns if column is not None]
    if len(recorded_seeds) < len(columns):
        seeds = {info.resolved.seed for info in engine_infos(side, "native")}
        clause = f"; each was started with the seed {seeds.pop()}" if len(seeds) == 1 and None not in seeds else ""
        stage.add("not_compared", f"{side.name}: whether its engines share seeds: no sample has one of its own{clause}")
        return
    # A seed belongs to the engine with the lowest number that used it. Every other engine that used it borrowed it.
    rank = np.concatenate([table.rank for table in drawn])
    values, place = np.unique(np.concatenate(recorded_seeds), return_inverse=True)
    owner = np.full(len(values), rank.max())
    np.minimum.at(owner, place, rank)
    shared = rank > owner[place]
    for engine in np.unique(rank[shared]).tolist():
        borrowed = shared & (rank == engine)
        owners = ", ".join(map(str, np.unique(owner[place][borrowed]).tolist()))
        text = (
            f"engine {engine} of the {side.name} drew {int(borrowed.sum()):,} of its {int((rank == engine).sum()):,} "
            f"native samples with seeds of samples of engine {owners}"
        )
        pair, key = side.paired(engine, owners), Kind.SHARED_SEEDS.of(side.name)
        e.note_native(key, field="seeds of two engines", context=text, rank=engine, **pair)


def _counts(values: list[bytes]) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def repeats(e: EvidenceBuilder, side: RecordedSide, samples: Samples, stage: NativeStage) -> None:
    """Compare the samples that were drawn twice with what the engine promises about request seeds."""
    drawn = tables(side, "repeat")
    if not drawn:
        if len(samples):
            stage.add("not_compared", f"{side.name}: no native sample was drawn twice")
        return
    twice = _drawn_twice(samples, drawn)
    promise, state = drawn[0].header.request_seed or "not reported", twice.state
    facts = {
        "samples": twice.compared, "alike": twice.equal, "exchanged": twice.exchanged, "expected": twice.expected,
        "request_seed": promise, "state": state,
    }  # fmt: skip
    stage.note("repeats", side.name, facts)
    _seed(side, stage)
    if state == TOO_FEW:
        reason = f"{twice.compared} drawn twice are too few to tell"
        stage.add("not_compared", f"does the {side.name}'s sampler repeat itself: {reason}")
    text = f"{part_of(twice.equal, twice.compared, 'sample')} drawn alike under the same seed, "
    text += f"{figure(twice.expected)} expected by chance"
    # A promise that was broken is a divergence. An engine that promises nothing is only reported.
    if state == EXCHANGED or (state == "not repeated" and promise == "honoured"):
        key, values = Kind.NATIVE_REPEAT.of(side.name), side.paired(twice.equal, twice.compared)
        e.note_native(key, field="samples drawn twice", context=f"{side.name}: {text}", **values)
    elif state == "partly repeated" or (state == "not repeated" and promise == "ignored"):
        why = "it promises no repetition: request seeds are ignored" if promise == "ignored" else "not all of them"
        stage.add("findings", Finding("native seeds", f"{text}; {why}", where=side.name))


@dataclass(frozen=True)
class _DrawnTwice:
    """Samples that were drawn twice under one seed.

    `equal`: samples with equal responses, of which chance explains `expected`. `exchanged`: samples with the response
    that another sample had the first time.
    """

    compared: int
    equal: int
    exchanged: int
    expected: float

    @property
    def state(self) -> str:
        """Return whether the sampler repeats itself, as a word."""
        chance = poisson_from(self.equal, self.expected)
        if self.compared and self.equal >= HONOURED * self.compared and chance <= CHANCE:
            return "repeated"
        if not self.compared - self.expected >= FEWEST:
            return TOO_FEW
        if self.exchanged >= FEWEST and self.equal + self.exchanged >= HONOURED * self.compared:
            return EXCHANGED
        return "not repeated" if chance > CHANCE else "partly repeated"


def _drawn_twice(samples: Samples, drawn: list[Table]) -> _DrawnTwice:
    """Compare the first draw, `samples`, with the second draw, `drawn`."""
    compared, equal, exchanged, expected = 0, 0, 0, 0.0
    first_outputs = set(samples.output)
    for table in drawn:
        output = table.rows("output")
        match = Match.of(samples.sample, table.sample)
        if output is None:
            continue
        for a, b in zip(match.a.tolist(), match.b.tolist(), strict=True):
            compared += 1
            drawn_again = output.row(b).tobytes()
            equal += samples.output[a] == drawn_again
            exchanged += samples.output[a] != drawn_again and drawn_again in first_outputs
            expected += float(np.exp(np.nan_to_num(samples.likelihood[a], nan=-np.inf)))
    return _DrawnTwice(compared, equal, exchanged, expected)


def _seed(side: RecordedSide, stage: NativeStage) -> None:
    """Add a finding for a seed that the engine did not resolve as asked, with its effect on the draws."""
    requested_seed = side.recording.records.settings.engine.seed
    resolved = next((info.resolved.seed for info in engine_infos(side, "native")), None)
    if requested_seed is None or resolved is None or requested_seed == resolved:
        return
    repeat = stage.result.repeats[side.name]
    effect = "the samples are repeated within a session all the same"
    if repeat["state"] != "repeated":
        effect = f"{part_of(repeat['alike'], repeat['samples'], 'sample')} repeat: this run cannot be drawn again"
    text = f"the engine's seed was asked as {requested_seed} and resolved as {resolved}"
    stage.add(
        "findings",
        Finding(
            name="native seeds",
            summary=text,
            effect=effect,
            severity="warning",
            where=side.name,
            details={"asked": requested_seed, "resolved": resolved},
            cause=_SEED,
            about="setting",
        ),
    )
