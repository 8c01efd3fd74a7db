"""The cause TRAINER: the learner's ranks together do something else than one process would, or one rank computes
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

import numpy as np

from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import recorded
from harness.parity.facts.divergence import DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, Where, among, and_runs, from_step, when
from harness.parity.subjects.learner.observed_experience import FROZEN
from harness.parity.subjects.learner.observed_learner_faults import Divisor, Reading
from harness.parity.subjects.ranks.observed_answers import odd_rank
from harness.parity.subjects.ranks.observed_faults import RankFault, What
from reports.model import Cause, Proof
from reports.text import counted

MADE = (Kind.EXPERIENCE.of(), Kind.REWARD.of(), Kind.LEARNER.of(), Kind.LOSS.of())
SCORED = (Kind.ENGINE, Kind.CHOICE, Kind.DRIFT, Kind.BEHIND)  # divergences of the samples of a rank with wrong weights
_WORDS = {
    What.DEALT: "the {side}'s ranks do not train once on each sample",
    What.DIVISOR: "the {side}'s loss depends on the number of ranks",
    What.GRADIENT: "the {side}'s ranks do not sum their gradients",
    What.UPDATE: "a rank of the {side} does not apply an update",
    What.APART: "the {side}'s ranks hold other weights",
    What.ANSWERS: "the {side}'s ranks answer in another order than their samples",
    What.EXCHANGED: "the answers of a role of the {side} stand with other samples",
    What.ALTERED: "the answers of a role of the {side} were changed before the experience was made of them",
    What.ADVANTAGES: "the {side}'s advantages are normalised over each rank's samples",
    What.TOKENS: "the {side}'s {role} scores other tokens than prompts and responses have",
    What.FOLLOWED: "the {side}'s reference model follows the policy",
}

_LOGPROBS = ("actor_logprob", "kl", "return")  # what a wrong log-probability changes in its own sample
_RETURNS = ("return",)
_LACK = {
    Reading.NO_REWARD: "lack their rewards",
    Reading.NO_PENALTY: "lack the KL penalty",
    None: "do not follow from their rewards",
}
OLD_LOGPROBS = "old log-probabilities of the loss"
ANY_RETURNS, ANY_LOSS = "returns", "loss"  # of which no reading tells what is wrong with them
_WHOLE_BATCH = ("advantage",)  # what it changes in every sample of its batch, where advantages are normalised


def scored_wrongly(
    e: Evidence,
    cause: Cause,
    against_learner: tuple[DivergenceKey, ...],
    affected: np.ndarray,
    *,
    partial: bool = False,
    own: tuple[str, ...] = _LOGPROBS,
) -> Explanation:
    """Return what follows from a learner's wrong numbers of the `affected` (step, sample) rows: its log-probabilities.

    `against_learner`: kinds that are measured with those numbers; only the affected samples show them. `own`: columns
    that then differ in these samples. The learners part, and all that they make of later samples follows. Rewards and
    the reference's numbers never do.
    """
    first = int(affected[:, 0].min())
    selected = and_runs(affected)
    beyond: dict[DivergenceKey, Where] = {key: lambda items: ~selected(items) for key in against_learner}
    beyond[Kind.EXPERIENCE.of()] = lambda items: ~_follows(e, items, affected, own)
    return Explanation(
        cause, (*against_learner, Kind.EXPERIENCE.of(), Kind.LEARNER.of()), from_step(first), partial, beyond
    )


def _follows(e: Evidence, items: np.ndarray, affected: np.ndarray, own_columns: tuple[str, ...]) -> np.ndarray:
    """Return a mask of differences of the experience that follow from wrong numbers of these rows."""
    parted = e.learners.parted
    later = items[:, 0] > parted if parted is not None else np.zeros(len(items), bool)
    of_sample, batch = among(affected)(items), np.isin(items[:, 0], affected[:, 0])
    follows: np.ndarray = items[:, 1] >= 0  # without a sample: a mean of what frozen models make
    for column, rows in e.experience.differing.items():
        may_differ = np.zeros(len(items), bool) if column in FROZEN else later.copy()
        may_differ |= of_sample & (column in own_columns) | batch & (column in _WHOLE_BATCH)
        follows &= may_differ | ~among(rows)(items)
    return follows


@of_each_side
def ranks(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find faults that a learner's ranks recorded. They explain everything that is made of their work from then on."""
    for what in What:
        faults = [fault for fault in side.rank_faults if fault.what is what]
        if faults:
            yield _explained(e, side, what, faults)


def _explained(e: Evidence, side: Side, what: What, faults: list[RankFault]) -> Explanation:
    steps = sorted({step for fault in faults for step in fault.steps})
    blamed, evidence = {rank for fault in faults for rank in fault.ranks}, faults[0].text
    # The records do not say which rank has other samples or weights than it should. The other run may.
    if not blamed and what in (What.DEALT, What.APART):
        blamed = _unlike_the_other(e, side, faults[0])
        if blamed:
            evidence += f"; {_numbers(blamed)} alone did something else than in the other run"
    who = f", {_numbers(blamed)} of {side.ranks.world}" if blamed else ""
    roles = sorted({fault.role for fault in faults})
    details = {"side": side.name, "ranks": sorted(blamed), "roles": roles, "steps": steps}
    summary = f"{_WORDS[what].format(side=side.name, role=' and '.join(roles))}{who} {when(e, steps)}"
    # The engine has the weights of rank 0. So the samples that rank 0 scored agree with it, and only the others do not.
    apart = what in (What.GRADIENT, What.UPDATE, What.APART)  # such ranks score with other weights than those sent
    not_explained = {kind: _not_of_others(side) for kind in keys(SCORED, side.name)} if apart else {}
    # All that is measured with log-probabilities of other tokens is wrong.
    misscored = what is What.TOKENS and "actor" in roles
    of_side = keys((Kind.RANKS, Kind.APPLIED_LOSS, *(SCORED if misscored else ())), side.name)
    return Explanation(
        Cause.of(TRAINER.key(what), "trainer", summary, evidence, details),
        (*of_side, *MADE, *not_explained, *((Kind.TRAINER_DRIFT.of(),) if apart or misscored else ())),
        from_step(steps[0]),
        not_explained=not_explained,
    )


def _unlike_the_other(e: Evidence, side: Side, fault: RankFault) -> set[int]:
    """Return the ranks that differ in that step from the same ranks of the other run, where the other run is sound."""
    other_side = e.other_side(side)
    side_updates, other_updates = (
        run.ranks.updates.get((fault.steps[0], fault.role), {}) for run in (side, other_side)
    )
    other_is_sound = all(other_fault.what is not fault.what for other_fault in other_side.rank_faults)
    if not other_is_sound or set(side_updates) != set(other_updates):
        return set()
    what = attrgetter("samples" if fault.what is What.DEALT else "digest")
    unlike = {rank for rank, updates in side_updates.items() if what(updates) != what(other_updates[rank])}
    # Where all ranks differ, none of them is at fault alone.
    return unlike if len(unlike) < len(side_updates) else set()


def _numbers(ranks: set[int]) -> str:
    return f"rank {' and '.join(map(str, sorted(ranks)))}"


def _not_of_others(side: Side) -> Callable[[np.ndarray], np.ndarray]:
    """Return a mask function for samples that rank 0, whose weights are sent, scored itself."""
    rank_0_samples: set[tuple[int, int]] = set()
    for (step, role), by_rank in side.ranks.shares.items():
        if role == "actor" and 0 in by_rank:
            rank_0_samples |= {(step, sample) for sample in by_rank[0].samples}
    return lambda items: np.array([tuple(pair) in rank_0_samples for pair in items.tolist()], bool)


def returns(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find returns that a learner's own rewards do not give, in one run or in both."""
    wrong = [side for side in e.sides if len(side.returns.items)]
    for reading in dict.fromkeys(side.returns.reading for side in wrong):
        sides = [side for side in wrong if side.returns.reading is reading]
        yield _wrong_returns(e, reading, sides)


def _wrong_returns(e: Evidence, reading: Reading | None, sides: list[Side]) -> Explanation:
    """Explain the returns of these learners. `reading`: what makes them again; None where nothing does."""
    whose = "both learners'" if len(sides) > 1 else f"the {sides[0].name}'s"
    count = sum(len(side.returns.items) for side in sides)
    affected = np.unique(np.concatenate([side.returns.items for side in sides]), axis=0)
    kinds = tuple(Kind.RETURNS.of(side.name) for side in sides)
    complete = [separation for side in sides for separation in side.returns.separations if separation.complete]
    where = complete[0].in_words() if complete else ""
    proofs = []
    if reading is not None:
        proofs = [Proof(f"make the returns again: {reading}", count, 0, "samples")]
    cause = Cause.of(
        TRAINER.key(reading or ANY_RETURNS),
        "trainer",
        f"{whose} returns {_LACK[reading]} {when(e, affected[:, 0])}",
        "; ".join(filter(None, [counted(count, "sample"), where, e.first_place(*kinds).context])),
        {"sides": [side.name for side in sides], "samples": count, "steps": np.unique(affected[:, 0]).tolist()},
        proofs,
    )
    return scored_wrongly(e, cause, kinds, affected, own=_RETURNS)


@of_each_side
def applied_losses(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find losses that a learner's own experience does not give: they are divided by something else, or their old
    log-probabilities are the present ones.
    """
    nothing = np.empty((0, 2), np.int64)

    def before_they_part(items: np.ndarray) -> np.ndarray:
        return ~_follows(e, items, nothing, ())

    key, losses = Kind.APPLIED_LOSS.of(side.name), side.applied_losses
    if not len(so_far.left(key)):
        return
    place, roles = e.first[key].place, " and the ".join(losses.roles)
    text, proofs = f"the {side.name}'s {roles} applies another loss than its experience gives", list[Proof]()
    # A fixed ratio is looked for only where every loss follows from the experience: the two exclude each other.
    reading, steps = losses.divisor or ANY_LOSS, losses.steps
    if losses.fixed_ratio:
        reading, steps = OLD_LOGPROBS, losses.fixed_ratio
        text = f"the {side.name}'s loss takes the present log-probabilities for the old ones"
    elif losses.divisor is not None:
        text = f"the {side.name}'s loss of the {roles} depends on the {losses.divisor.removesuffix(' in the loss')}"
        proofs = [Proof(f"divide again: {losses.divisor}", losses.wrong, 0, "losses")]
    # The learners part where the divisor is first used, however little it moves the loss there.
    first = losses.since if losses.divisor is not None and not losses.fixed_ratio else steps[0]
    nearer = f"from step {first} on that divisor is nearer to each loss" if first < steps[0] else ""
    details = {"side": side.name, "roles": list(losses.roles), "steps": list(steps), "since": first}
    cause = Cause.of(
        TRAINER.key(reading),
        "trainer",
        f"{text} {when(e, steps)}",
        "; ".join(filter(None, [place.context, nearer])),
        details,
        proofs,
    )
    kinds = (key, Kind.EXPERIENCE.of(), Kind.LEARNER.of())
    yield Explanation(cause, kinds, from_step(first), not_explained={Kind.EXPERIENCE.of(): before_they_part})


def one_rank(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find a role in which a single rank answers differently from the other run: it computes with something else."""
    if not any(len(so_far.left(kind)) for kind in MADE):
        return
    for lone in odd_rank(e):
        side = f"the {lone.side}'s" if lone.side else "one run's"
        yield Explanation(
            Cause.of(
                TRAINER.key("answers of a rank"),
                "trainer",
                f"rank {lone.rank} of {side} {lone.role} answers unlike the other ranks {when(e, lone.steps)}",
                lone.text,
                {"side": lone.side, "ranks": [lone.rank], "roles": [lone.role], "steps": list(lone.steps)},
            ),
            MADE,
            from_step(lone.steps[0]),
        )


def scaled_gradients(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find gradients that equal the other run's but for a divisor that the number or the load of the ranks explains."""
    parted, divisor = e.learners.parted, e.learners.scaled
    if parted is None or divisor is None or not len(so_far.left(Kind.LEARNER.of())):
        return
    where = f"the {divisor.side}" if divisor.side else "one of the runs"
    summary = f"gradients depend on the {divisor.what.removesuffix(' in the loss')} in {where}, "
    summary += f"from step {parted} on"
    details = {"side": divisor.side, "ranks": [], "roles": [], "steps": [parted]}
    cause = Cause.of(TRAINER.key(divisor.what), "trainer", summary, divisor.text, details)
    yield Explanation(cause, MADE, from_step(parted))


TRAINER = CauseFamily(
    "TRAINER",
    meaning="the learner computes something else: in its ranks, its loss or its log-probabilities",
    fix="look at the trainer's code and settings: the rollouts are not the cause",
    details={
        **{what: words.format(side="learner", role="actor") for what, words in _WORDS.items()},
        **{reading: f"the returns {lack}" for reading, lack in _LACK.items() if reading is not None},
        ANY_RETURNS: f"the returns {_LACK[None]}",
        ANY_LOSS: "the loss that was applied does not follow from the experience",
        OLD_LOGPROBS: "the loss takes the present log-probabilities for the old ones: nothing is clipped",
        Divisor.MICRO_BATCHES: "the loss depends on how the batch is cut into micro-batches",
        Divisor.SAMPLES: "each sample counts alike in the loss, whatever its length",
        "packing in the loss": "the loss depends on how samples are packed into rows",
        "samples of the ranks in the loss": "the loss depends on which rank has which samples",
        "cut of the batch in the loss": "the loss depends on the ranks, the micro-batches or the packing",
        "answers of a rank": "one rank answers unlike the others",
        "forward pass": "the learner computes other log-probabilities with the same weights and ids",
        "log-probabilities scaled": "the learner's log-probabilities are all multiplied by one factor",
        "scored with the reference": "the learner's log-probabilities are those of the reference",
    },
    alone="it is read off the trainer's own records: one factor gives every number again, which no engine reports, or "
    "its ranks say what each was asked, trained on, summed and applied",
    proof=recorded("one factor, another sample's response, or a term left out gives every number of the learner again"),
)

FAMILIES = (TRAINER,)
