"""Copied numbers: numbers that one process cannot have made itself, because they equal another's in every bit.

Two engines, or an engine and the learner, have kernels of their own and round differently. Measured with the built-in
model on a CPU: vLLM and SGLang gave the same float32 in 39 to 51 % of the tokens of a step, and either of them and
Transformers in 25 to 45 % of those beyond 0.01 nats. In bfloat16 it is 1 % at most. A step in which nine in ten are the
same was copied.

The likelier tokens of a whole run say more, since float32 resolves their numbers finely: of 984 between 0.01 and 2 nats
31 to 41 % were the same, in a single step 19 to 47 %. Of less likely tokens of a nearly flat model it was 82 %, where
float32 has steps of 5e-7. Two thirds are ten standard deviations of 984 tokens above 51 %.

Runs of one engine draw and round alike in every bit, which is not held against them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.probabilities import binomial_from, poisson_from
from harness.parity.subjects.log_probabilities.observed_metrics import SIZEABLE, Mismatch
from harness.parity.subjects.native_sampler.observed import NativeResult
from harness.parity.subjects.weights.observed_sync import LEAST_PROOF
from harness.recordings.store import Recording
from harness.recordings.tables import Table
from probes.format import number
from scenarios.engines import registry

MOST_ALIKE = 0.9  # chosen: share of a step's tokens
MOST_ALIKE_LIKELY = 2 / 3  # share of a run's tokens between SIZEABLE and LIKELY
ALIKE_LIKELY = 0.51  # the largest share of a step's likely tokens that was equal in two processes
FEWEST = 64  # tokens of a step; with fewer a share says little
CHANCE = 1e-6  # least probability at which so many equal samples can be drawn twice by chance


def engines(recording: Recording) -> set[str]:
    return {info.engine_name for info in recording.records.engines} - {""}


def own_kernels(recording: Recording) -> bool:
    """Whether the engines compute with other code than the learner's, as an unknown engine does."""
    specs = [registry.find(name) for name in engines(recording)]
    return not specs or not all(spec is not None and spec.learners_code for spec in specs)


def strangers(e: Evidence) -> bool:
    """Whether two engines without common code drew."""
    baseline_engines, candidate_engines = engines(e.baseline.recording), engines(e.candidate.recording)
    both_known = bool(baseline_engines) and bool(candidate_engines)
    return both_known and not baseline_engines & candidate_engines


def equality(mismatch: Mismatch) -> str:
    """Return where more tokens are identical than two processes can have: the first such step, or the run; "" where
    none is.
    """
    for step, (tokens, identical) in sorted(mismatch.identical.items()):
        if tokens >= FEWEST and identical > MOST_ALIKE * tokens:
            return f"in step {step}"
    tokens, identical = mismatch.identical_likely
    by_chance = binomial_from(identical, tokens, ALIKE_LIKELY)
    if identical > MOST_ALIKE_LIKELY * tokens and by_chance < CHANCE:
        return f"in {identical:,} of {tokens:,} likely tokens"
    return ""


def copies_of_numbers(e: Evidence) -> list[str]:
    """Return a sentence for each kind of numbers in the runs that are copies."""
    of_engines = _of_the_other_engine(e) if strangers(e) else ()
    return [*_of_the_learner(e), *of_engines, *_proofs(e), *_empty_floors(e)]


def _of_the_learner(e: Evidence) -> Iterator[str]:
    for side in e.sides:
        where = equality(side.to_learner)
        if where and own_kernels(side.recording):
            yield (
                f"the log-probabilities of the {side.name} are the learner's to the last bit {where}: an engine's own "
                "are not"
            )


def _of_the_other_engine(e: Evidence) -> Iterator[str]:
    where = equality(e.between_engines)
    if where:
        yield f"the log-probabilities are the same in both runs to the last bit {where}, of two engines"
    floors = zip(*(_base(side.recording) for side in e.sides), strict=False)
    step = next((first.step for first, second in floors if _same_floor(first, second)), None)
    if step is not None:
        yield f"the floor of step {step} is the same in both runs to the last bit, of two engines"
    native = e.native
    if native is not None and native.identical and not _seeds_tell(native):
        expected = native.identical_expected
        if poisson_from(native.identical, expected) < CHANCE:
            yield (
                f"{native.identical} samples of the native stage are the same in both runs, of two engines whose "
                f"samplers share no randomness: {expected:.2g} would be by chance"
            )


def _seeds_tell(native: NativeResult) -> bool:
    """Whether the requests' seeds decide the draws on both sides.

    Two engines with one algorithm then draw alike: vLLM 0.28 and 0.30 drew 1,024 of 1,024 samples as torch.multinomial
    does (measured).
    """
    return len(native.repeats) == 2 and all(repeat["request_seed"] == "honoured" for repeat in native.repeats.values())


def _base(recording: Recording) -> list[Table]:
    tables = [recording.table("floor", step, variant="base") for step in recording.steps("floor")]
    return [table for table in tables if table is not None]


def _empty_floors(e: Evidence) -> Iterator[str]:
    """Find floors with one number for every token: such an engine never differs from itself."""
    for side in e.sides:
        if any(map(_is_constant, _base(side.recording))):
            yield f"the floor of the {side.name} has one log-probability for every token: it measures nothing"


def _is_constant(floor: Table) -> bool:
    rows = floor.rows("logprob")
    return rows is not None and len(rows.values) >= FEWEST and bool((rows.values == rows.values[0]).all())


def _same_floor(baseline_table: Table, candidate_table: Table) -> bool:
    """Whether two floors are of the same samples in the same step, and nearly all of their numbers are equal."""
    p, q = baseline_table.rows("logprob"), candidate_table.rows("logprob")
    if p is None or q is None or not np.array_equal(p.lengths, q.lengths):
        return False
    if baseline_table.step != candidate_table.step or not np.array_equal(baseline_table.sample, candidate_table.sample):
        return False
    # Closer to 0 a log-probability has fewer digits in float32, and two engines may agree in all of them.
    sizeable = np.abs(p.values) > SIZEABLE
    tokens = int(np.count_nonzero(sizeable))
    identical = int(np.count_nonzero(sizeable & (p.values == q.values)))
    return tokens >= FEWEST and identical > MOST_ALIKE * tokens


def _proofs(e: Evidence) -> Iterator[str]:
    """Find proofs of weight syncs without any rounding, and proofs that are equal.

    An engine with other kernels than the learner has neither. An engine that computes with the learner's own code
    differs by one rounding now and then, so two of its proofs may be equal.
    """
    place_of_proof: dict[tuple[float, float], str] = {}
    strange = strangers(e)
    for side in e.sides:
        if not own_kernels(side.recording):
            continue
        for version, proof in _reported(side):
            where = f"of weight version {version} of the {side.name}"
            if proof[1] == 0.0:
                yield f"the proof {where} has not the slightest rounding, which no engine of its own kernels has"
                return
            # Both runs of one engine may prove one version alike, since they round alike. Two versions of one run, or
            # two engines, may not.
            earlier_place = place_of_proof.get(proof)
            if earlier_place is not None and (strange or side.name in earlier_place):
                yield f"the proof {where} is that {earlier_place}, to the last bit"
                return
            place_of_proof.setdefault(proof, where)


def _reported(side: Side) -> Iterator[tuple[int, tuple[float, float]]]:
    for sync in side.recording.records.syncs:
        proof = sync.proof
        if proof.tokens is not None and proof.tokens < LEAST_PROOF:
            continue  # it proves nothing, as `observed_sync` notes
        largest, mean = number(proof.largest), number(proof.mean)
        if sync.version is not None and math.isfinite(largest) and math.isfinite(mean):
            yield sync.version, (largest, mean)
