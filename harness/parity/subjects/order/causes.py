"""The cause ORDER: a sample has the response or the prompt of another sample of its step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import ROLLOUT, DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, and_runs, keys_of, when
from harness.parity.interventions.situation import LEAST, Named, Situation, Tried
from harness.parity.subjects.learner.causes import MADE, SCORED
from harness.parity.subjects.order.observed import TOLD, Source
from harness.parity.subjects.prompts.observed import PERMUTED
from reports.model import RESIDUE, Cause, Proof
from reports.text import part_of
from scenarios.bench.case import Symptoms

MOST = 0.98  # share of a step's differing responses that must have another owner
FEWEST = 2  # one response that equals another's may be a short one by chance


@of_each_side
def mispaired(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find samples that were trained on with each other's responses, though their engines recorded their own.

    The digest of what was trained on shows that the prompts did not change places with the responses.
    """
    paired = {step for step, agrees in side.witnesses.batch_agrees.items() if agrees}
    steps = sorted((step, exchange) for step, exchange in side.exchanged.items() if step in paired)
    if not steps:
        return
    affected = np.array([(step, sample) for step, exchange in steps for sample in exchange.samples], np.int64)
    compared = sum(exchange.compared for _, exchange in steps)
    trained = f"{part_of(len(affected), compared, 'sample')} were trained on"
    evidence = f"{trained} with the response that an engine recorded for another one of the step, token for token "
    evidence += "and one to one, after these samples' own prompts"
    if all(exchange.by_engine for _, exchange in steps):
        evidence += "; they stand one engine after the other, and are numbered by place"
    # The proof counts every sample that was trained on with other tokens; those that were not exchanged remain.
    differing = np.unique(keys_of(np.concatenate([affected, e.found(Kind.TRAINED.of(side.name))])))
    remaining = len(differing) - len(affected)
    yield Explanation(
        Cause.of(
            ORDER.key(),
            side.name,
            f"samples are trained on with the responses of others {when(e, affected[:, 0])}",
            f"the {side.name}'s answers are paired with other prompts where they are put together, after its "
            f"engines recorded them; {evidence}",
            {"samples": affected[:50].tolist()},
            [Proof("match responses trained on by their tokens", len(differing), remaining, "samples")],
        ),
        (*keys((Kind.TRAINED, *SCORED), side.name), *MADE),
        and_runs(affected),
    )


def permuted(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find steps whose responses are the baseline's, each under another sample number."""
    open_samples = so_far.open_samples(Kind.FLIP.of(), Kind.LOGPROB.of())
    by_step: dict[int, list[Source]] = {}
    for source in e.response_sources:
        if (source.step, source.sample) in open_samples:
            by_step.setdefault(source.step, []).append(source)
    matched = [sources for _, sources in sorted(by_step.items()) if _is_permutation(sources)]
    # One token may agree by chance, and within a group its log-probability then agrees too. So several tokens must
    # agree in at least one step. Then the other steps in which every response has another owner are believed too.
    if not any(_agreeing_tokens(sources) >= min(2 * len(sources), TOLD) for sources in matched):
        matched = []
    owned = [source for sources in matched for source in sources if source.owners]
    exchanged = {side.name: side.prompts.kinds.get(PERMUTED, ()) for side in e.sides}
    if owned:
        affected = [(source.step, source.sample) for source in owned]
        party = _party(e, affected)
        yield _permuted(e, party, affected, sum(map(len, matched)), exchanged[party])
        return
    # Without permuted responses, prompts that changed places are a cause of their own, on each side that saw some.
    for side in e.sides:
        if exchanged[side.name]:
            yield _permuted(e, side.name, [], 0, exchanged[side.name])


def _is_permutation(sources: list[Source]) -> bool:
    """Whether nearly every differing response of a step is another sample's of the baseline, one to one."""
    return len(sources) >= FEWEST and _matched(sources) >= max(FEWEST, MOST * len(sources))


def _permuted(
    e: Evidence, party: str, affected: list[tuple[int, int]], compared: int, exchanged: tuple[tuple[int, int], ...]
) -> Explanation:
    """Build the cause.

    `affected`: samples with another's response, out of `compared`. `exchanged`: samples with another's prompt.
    """
    samples = sorted({*affected, *exchanged})
    proofs, parts = list[Proof](), list[str]()
    if affected:
        proofs.append(Proof("match responses by their tokens", compared, compared - len(affected), "samples"))
        parts.append(
            f"{len(affected):,} of {compared:,} differing responses are another sample's of the same step, token for "
            "token and with its log-probabilities"
        )
    if exchanged:
        proofs.append(Proof("match prompts by their ids", len(exchanged), 0, "prompts"))
        parts.append(f"{len(exchanged):,} prompts that the engine saw are another sample's")
    return Explanation(
        Cause.of(
            ORDER.key(),
            party,
            f"responses are permuted {when(e, [step for step, _ in samples])}: the same, under other sample numbers",
            "; ".join(parts),
            {"samples": [list(pair) for pair in samples[:50]]},
            proofs,
        ),
        (*keys((*ROLLOUT, Kind.PROMPT, Kind.TRAINED), party), *_floor(e, party, samples)),
        among(set(samples)),
    )


def _floor(e: Evidence, party: str, affected: list[tuple[int, int]]) -> tuple[DivergenceKey, ...]:
    """Return the side's floor as explained, where permuted responses explain it: other batches permute otherwise.

    That holds where the floor was taken in steps whose responses are permuted, or where the floor itself shows them.
    """
    floor_steps = set(e.side(party).recording.steps("floor"))
    if not floor_steps:
        return ()
    permuted_steps = {step for step, _ in affected}
    permuted = floor_steps <= permuted_steps or all(_reordered(e, party, step) for step in floor_steps)
    return (Kind.FLOOR.of(party),) if permuted else ()


def _reordered(e: Evidence, party: str, step: int) -> bool:
    """Whether the responses of the floor's other order are those of its base, under other sample numbers.

    Tokens and log-probabilities must agree.
    """
    recording = e.side(party).recording
    base, order = (recording.table("floor", step, variant=variant) for variant in ("base", "order"))
    if base is None or order is None:
        return False
    base_output, base_logprobs = base.rows("output"), base.rows("logprob")
    order_output, order_logprobs = order.rows("output"), order.rows("logprob")
    if base_output is None or base_logprobs is None or order_output is None or order_logprobs is None:
        return False
    owners: dict[bytes, list[int]] = {}
    for row in range(len(base.sample)):
        owners.setdefault(base_output.row(row).tobytes(), []).append(row)
    differing = matches = 0
    # A response under its own number is in order. The others must be another sample's, with its log-probabilities.
    for row, number in enumerate(order.sample.tolist()):
        like = owners.get(order_output.row(row).tobytes(), [])
        if number in base.sample[like]:
            continue
        differing += 1
        off = (np.abs(base_logprobs.row(at) - order_logprobs.row(row)) for at in like)
        matches += any((distances <= e.tolerance.cap).all() for distances in off)
    return differing >= FEWEST and matches >= MOST * differing


def _agreeing_tokens(sources: list[Source]) -> int:
    """Return how many tokens agree, with their log-probabilities, with those of another sample."""
    return sum(source.tokens for source in sources if source.by_log_probabilities and source.owners)


def _matched(sources: list[Source]) -> int:
    """Return how many samples can have an owner each of their own, among these samples: the largest matching.

    A sample whose response is the same in both runs has not lost it to another. Where one has its response as well,
    both drew it, as two engines with the same random numbers do.
    """
    from scipy.sparse import csr_array  # heavy, and few recordings have such samples
    from scipy.sparse.csgraph import maximum_bipartite_matching

    columns = {source.sample: column for column, source in enumerate(sources)}
    at = [(row, columns[owner]) for row, source in enumerate(sources) for owner in source.owners if owner in columns]
    if not at:
        return 0
    graph = csr_array((np.ones(len(at), np.int8), tuple(zip(*at, strict=True))), shape=(len(sources), len(sources)))
    return int(np.count_nonzero(maximum_bipartite_matching(graph, perm_type="column") >= 0))


def _party(e: Evidence, affected: list[tuple[int, int]]) -> str:
    """Return the side whose learner was trained on other tokens than its rollouts have, in all of these samples.

    Where neither or both sides' learners were, return the side whose tokens the learner, by its margins at the flips,
    would not have drawn.
    """
    samples = keys_of(np.array(affected))
    contradicted = [
        side.name for side in e.sides if np.isin(samples, keys_of(e.found(Kind.TRAINED.of(side.name)))).all()
    ]
    if len(contradicted) == 1:
        return contradicted[0]
    flips = e.flips.table
    chosen = np.isin(keys_of(flips[:, :2]), samples)
    margins = e.flips.margin[chosen]
    return "baseline" if len(margins) and 2 * np.count_nonzero(margins < 0) > len(margins) else "candidate"


def other_sample_numbers(s: Situation) -> None:
    """Look for each differing response under the other sample numbers. ORDER is named where all are there."""
    if not s.remaining.of("tokens", "lengths") or s.remaining.of("scores"):
        return
    started = s.clock()
    wrong, remaining = s.bench.unmatched(s.side)
    seconds = s.clock() - started
    good = wrong >= LEAST and remaining <= RESIDUE * wrong
    s.tried.append(
        Tried(
            intervention="look under other sample numbers",
            cause=ORDER.key(),
            side=s.side,
            before=wrong,
            after=remaining,
            seconds=seconds,
            removed=good,
        )
    )
    if good:
        proof = Proof("look under other sample numbers", wrong, remaining, "samples", "live engines", round(seconds, 3))
        summary = "responses are permuted: the same ones, under other sample numbers"
        s.named.append(Named(ORDER.key(), s.side, s.side, summary, proof))
        s.symptoms = Symptoms(compared=s.symptoms.compared)  # the responses themselves are the reference's


ORDER = CauseFamily(
    "ORDER",
    meaning="responses or prompts are assigned to other samples than their own",
    fix="assign responses to prompts by request id, not by the order in which they finish",
    alone="its proof finds each response, whole, under another sample number",
    prompts={PERMUTED: ()},
    proof=either("each response, whole, is found under another sample number"),
)

FAMILIES = (ORDER,)
