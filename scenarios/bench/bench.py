"""Compares both live engines with a reference at their own weights, and reverses one change at a time on an engine.

A reading lets one engine draw the case along the reference's own draw (the guide), and scores the same sequences
teacher-forced. The caller decides what is reversed (`undo`). Runs in the learner's interpreter.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scenarios.bench import readback
from scenarios.bench.case import (
    CHOICES,
    NUMBERS,
    Alteration,
    CaseSample,
    Drawn,
    Fitted,
    HeadReport,
    HeldReport,
    PassedOver,
    Symptoms,
    Tolerance,
)
from scenarios.bench.fit import fit
from scenarios.bench.reference import NOTHING, ROUNDS, Reference
from scenarios.bench.tally import Tally, beyond
from scenarios.bench.undo import Stand, Undo
from scenarios.engines.engine_interface import Completion, Request
from scenarios.engines.native_arguments import most_scored
from scenarios.engines.sync import digest
from scenarios.remote import call
from scenarios.settings import Scenario

# Share of a hidden state's size by which layers may differ. An operation in float32 rounds by 6e-8 of it, so this is
# about a thousand roundings in one direction.
LAYER_APART = 1e-4
PROBED = 4  # sequences that are scored after each single tensor


@dataclass
class Reading:
    """What one engine drew and scored for the case.

    `drawn`: its samples. `scores`: teacher-forced log-probabilities of the guide's tokens, a row per sample. `noise`:
    tokens and log-probabilities that changed when the engine was read a second time.
    """

    drawn: list[Drawn]
    scores: list[list[float]]
    noise: int = 0


class Bench(Undo):
    """The engines, their references, and the readings of one comparison.

    `scenario`: what both sides were to follow. `stands`: the sides whose engines are up.
    """

    def __init__(
        self, scenario: dict[str, Any], stands: dict[str, Stand], *, device: str = "cpu", sync_backend: str = "gloo"
    ) -> None:
        super().__init__(stands, sync_backend=sync_backend)
        self._asked = Scenario.from_json(scenario)
        self._device = device
        self._references: dict[str, Reference] = {}
        self._owned: dict[str, Reference] = {}  # references with the learner's tensors, while `hold` replaces them
        self._readings: dict[str, Reading] = {}
        self._past_cache: set[str] = set()  # sides that are read without their prefix cache
        self._cache_keys: dict[str, str] = {}  # side -> key of the part of its prefix cache with which it is read
        self._reads = 0
        self._name = uuid.uuid4().hex  # part of the keys of prefix caches, which may outlive a bench
        self._ignored: dict[str, tuple[str, ...]] = {}  # kinds of symptoms that a side does not repeat
        self._samples: list[CaseSample] = []
        self._sent: dict[int, tuple[int, ...]] = {}  # sample -> its prompt
        self._tolerance = Tolerance(0.0, 0.0)

    def open(self, samples: list[CaseSample], tolerance: Tolerance) -> list[str]:
        """Draw the case on the reference of each side, and return the sides. Sides with equal weights share a
        reference.
        """
        self._samples, self._tolerance = samples, tolerance
        self._owned.clear()
        self._sent = {sample.number: sample.prompt for sample in samples}
        made: dict[str, Reference] = {}
        for side, stand in self._stands.items():
            digest = _digest(stand.policy)
            if digest not in made:
                made[digest] = Reference(stand.policy, self._asked, device=self._device)
                made[digest].take(samples)
            self._references[side] = made[digest]
        return list(self._stands)

    def read(self, side: str, *, again: bool = False) -> Symptoms:
        """Draw and score the case on one engine, and compare it with the reference.

        `again`: read twice, to measure the engine's noise. If its numbers do not repeat, but it chose the same tokens
        both times and other ones than the reference, only its choices are compared.
        """
        reading = self._reading(side)
        self._readings[side], self._ignored[side] = reading, ()
        if again:
            second_reading = self._reading(side)
            reading.noise, _ = _apart(reading, second_reading, self._tolerance.logprob)
            chose_alike = all(
                (a.output, a.finish, a.prompt_seen) == (b.output, b.finish, b.prompt_seen)
                for a, b in zip(reading.drawn, second_reading.drawn, strict=True)
            )
            if reading.noise and chose_alike and any(self.compare(side).of(kind) for kind in CHOICES):
                self._ignored[side] = NUMBERS
        return self.compare(side)

    def compare(self, side: str, alteration: Alteration = NOTHING) -> Symptoms:
        """Compare the last reading of one side with the reference under an alteration. Calls no engine."""
        reading, reference = self._readings[side], self._references[side]
        expected = {response.number: response for response in reference.draw(alteration, reading.drawn)}
        tally = Tally(self._samples, self._ignored.get(side, ()))
        for response in reading.drawn:
            self._sample(tally, _within(response, reference), expected[response.number], reference, alteration)
        for sample, reference_scores, theirs in zip(self._samples, reference.scores(), reading.scores, strict=True):
            pairs = zip(reference_scores, theirs, strict=False)  # the engine's row may end at its context
            for position, (p, q) in enumerate(pairs):
                p *= alteration.scored
                tally.number("scores", sample.number, position, p, q, self._tolerance)
                tally.nats += abs(p - q) if math.isfinite(q) else 0.0
        longest = self._most_scored(side)
        return tally.symptoms(
            noise=reading.noise,
            cached=sum(response.cached for response in reading.drawn),
            longest=longest,
            cut=sum(0 < longest < len(sequence) for sequence in reference.sequences()),
        )

    def rounding(self, side: str, alteration: Alteration) -> list[float]:
        """Return by how much the reference rounds at the tokens of the guide, in nats: see `Reference.rounding`."""
        return [width * alteration.widens for width in self._references[side].rounding(alteration)]

    def _reading(self, side: str) -> Reading:
        session, reference = self._stands[side].session, self._references[side]
        stand = self._stands[side]
        self._reads += 1
        past, key = side in self._past_cache, self._cache_keys.get(side, "")
        requests = [
            Request(sample.number, sample.prompt, salt=self._unused_key(sample.number) if past else key)
            for sample in self._samples
        ]
        result = call(
            session, "rollout", requests, step=-1, version=stand.version, guide=reference.guide, rounds=ROUNDS
        )
        return Reading([_drawn(c) for c in result.completions], self._scores(side, self._samples))

    def _unused_key(self, of: int | str) -> str:
        """Return a key of prefix caches under which nothing was drawn before this reading."""
        return f"{self._name}-{self._reads}-{of}"

    def _scores(self, side: str, samples: list[CaseSample]) -> list[list[float]]:
        """Return teacher-forced scores of the guide's tokens, as many as the engine scores of a sequence."""
        reference = self._references[side]
        sequences = [self._cut(side, sample.prompt + reference.guide[sample.number][0]) for sample in samples]
        rows = call(self._stands[side].session, "rescore", sequences)
        return [row[len(sample.prompt) - 1 :] for sample, row in zip(samples, rows, strict=True)]

    def _cut(self, side: str, sequence: tuple[int, ...]) -> tuple[int, ...]:
        return sequence[: self._most_scored(side) or None]

    def _sequence(self, side: str, number: int) -> tuple[int, ...]:
        """Return the ids of a sample with its guide, as many as the engine scores."""
        at = [sample.number for sample in self._samples].index(number)
        return self._cut(side, self._references[side].sequences()[at])

    def _most_scored(self, side: str) -> int:
        if side not in self._longest:
            live = call(self._stands[side].session, "snapshot")
            self._longest[side] = most_scored(live["engine"], live["resolved"])
        return self._longest[side]

    def regrouped(self, side: str) -> tuple[int, int]:
        """Draw the case in reverse order, a quarter at a time, and score it again. Return how many places change, and
        how many there are.

        A place is a drawn token with its log-probability, or a scored token. It is held against the last reading.
        """
        session, stand, last = self._stands[side].session, self._stands[side], self._readings[side]
        requests = [Request(sample.number, sample.prompt) for sample in self._samples][::-1]
        quarter = max(1, len(requests) // 4)
        responses: dict[int, Drawn] = {}
        for start in range(0, len(requests), quarter):
            part = requests[start : start + quarter]
            guide = self._references[side].guide
            result = call(session, "rollout", part, step=-1, version=stand.version, guide=guide, rounds=ROUNDS)
            responses |= {c.sample: _drawn(c) for c in result.completions}
        regrouped_reading = Reading(
            [responses[response.number] for response in last.drawn], self._scores(side, self._samples)
        )
        return _apart(last, regrouped_reading, self._tolerance.logprob)

    def _sample(
        self, tally: Tally, response: Drawn, expected: Drawn, reference: Reference, alteration: Alteration
    ) -> None:
        number = response.number
        tolerance = replace(self._tolerance, logprob=self._tolerance.logprob * alteration.widens)
        if response.prompt_seen:
            # An engine that changes a prompt silently reports the prompt that it was sent, so that one is accepted
            # too.
            wanted, seen_prompt = expected.prompt_seen, response.prompt_seen
            is_other = seen_prompt not in (wanted, self._sent[number])
            tally.look("prompts", number, -1, list(wanted), list(seen_prompt), is_other)
        # A tie within the margin is no difference, but its log-probability is that of another token.
        flips = False
        for position, (token, theirs) in enumerate(zip(expected.output, response.output, strict=False)):
            gap = 0.0 if token == theirs else reference.gap(number, position, theirs, alteration)
            flips |= token != theirs
            tally.look("tokens", number, position, token, theirs, gap > tolerance.margin)
            if token == theirs:
                p, q = expected.logprobs[position], response.logprobs[position]
                if alteration.report == "support" and beyond(p, q, tolerance.logprob):
                    least, largest = reference.support(number, position, token, alteration)
                    p = min(max(q, least), largest)
                if math.isfinite(p):
                    tally.number("logprobs", number, position, p, q, tolerance)
        if flips and (response.finish == "flip" or expected.finish == "flip"):
            return  # the readings end at the flip; what comes after was not compared
        lengths = len(expected.output), len(response.output)
        at = min(lengths) - 1
        tally.look("lengths", number, at, *lengths, lengths[0] != lengths[1])
        if lengths[0] == lengths[1] and not flips:
            tally.look("finish", number, at, expected.finish, response.finish, expected.finish != response.finish)

    def unmatched(self, side: str) -> tuple[int, int]:
        """Return (samples whose free response is not their own guide, those of them that are no sample's guide)."""
        stand, reference = self._stands[side], self._references[side]
        requests = [Request(sample.number, sample.prompt) for sample in self._samples]
        free = call(stand.session, "rollout", requests, step=-1, version=stand.version)
        guides = {ids for ids, _ in reference.guide.values()}
        wrong = [c for c in free.completions if c.output_ids != reference.guide[c.sample][0]]
        return len(wrong), sum(c.output_ids not in guides for c in wrong)

    def prompts_seen(self, side: str) -> dict[int, tuple[int, ...]]:
        """Return the prompt ids that the engine reports, for the samples where they are not those that it was sent."""
        return {
            response.number: response.prompt_seen
            for response in self._readings[side].drawn
            if response.prompt_seen and response.prompt_seen != self._sent[response.number]
        }

    def reprompted(self, side: str, numbers: list[int], how: str) -> dict[int, tuple[int, ...]]:
        """Return the prompts of these samples as a faulty path would send them, where that changes them."""
        reference = self._references[side]
        prompts = {number: reference.reprompted(number, how) for number in numbers}
        return {number: ids for number, ids in prompts.items() if ids and ids != self._sent[number]}

    def texts(self, rows: list[list[int]]) -> list[str]:
        """Return the text of each of these rows of ids, special tokens included."""
        return next(iter(self._references.values())).texts(rows)

    def slope(self, side: str, alteration: Alteration = NOTHING) -> float:
        """Return the factor that best turns the reference's log-probabilities into the engine's (least squares, equal
        tokens only).

        1.0 where there are none.
        """
        drawn = self._readings[side].drawn
        expected = {response.number: response for response in self._references[side].draw(alteration, drawn)}
        products = squares = 0.0
        for response in drawn:
            theirs = expected[response.number]
            for x, y, p, q in zip(theirs.output, response.output, theirs.logprobs, response.logprobs, strict=False):
                if x == y and math.isfinite(p) and math.isfinite(q):
                    products, squares = products + p * q, squares + p * p
        return products / squares if squares else 1.0

    def tempered(self, side: str, alteration: Alteration = NOTHING) -> float:
        """Return the temperature at which the reference's log-probabilities come closest to those that the engine
        reports.

        1.0 where there is nothing to fit.
        """
        return self._references[side].temperature_of(self._readings[side].drawn, alteration)

    def fitted(self, side: str, names: list[str], alteration: Alteration = NOTHING) -> list[Fitted]:
        """Return values of these sampling parameters that explain what the engine chose: see
        `scenarios.bench.fit.fit`.
        """
        drawn = self._readings[side].drawn
        choices = self._references[side].choices(drawn, alteration, self._tolerance.margin)
        if choices is None:
            return []
        tolerance = self._tolerance
        return fit(replace(choices, far_count=tolerance.few, far=tolerance.far, turned=tolerance.turned), tuple(names))

    def penalised(self, side: str, name: str, alteration: Alteration = NOTHING) -> tuple[float, float]:
        """Return the value of a penalty that fits the reported log-probabilities, and the mean |Δ| that remains, in
        nats.
        """
        return self._references[side].penalty_of(name, self._readings[side].drawn, alteration)

    def passed_over(self, side: str, alteration: Alteration = NOTHING) -> PassedOver:
        """Return where the engine chose another token than the reference under an alteration."""
        return self._references[side].passed_over(self._readings[side].drawn, alteration, self._tolerance.margin)

    def first_layer(self, side: str, number: int) -> tuple[int, float] | None:
        """Return (first layer whose hidden states differ from the reference's, by which share of their size).

        The layer is -1 for the embeddings. (number of layers, 0.0) where no layer differs; None where the engine does
        not show hidden states.
        """
        reference, sequence = self._references[side], self._sequence(side, number)
        theirs = call(self._stands[side].session, "layers", sequence)
        if theirs is None:
            return None
        reference_layers = reference.layers(sequence).layers
        for layer, (p, q) in enumerate(zip(reference_layers, theirs.layers, strict=True)):
            apart = max(abs(x - y) for x, y in zip(p, q, strict=True)) / max(map(abs, p))
            if not apart <= LAYER_APART:
                return layer - 1, apart
        return len(reference_layers) - 1, 0.0

    def head(self, side: str, number: int) -> HeadReport | None:
        """Give the reference's head what enters the engine's, at the last tokens of a sample; see `HeadReport`.

        None where the engine does not show its hidden states.
        """
        reference, sequence = self._references[side], self._sequence(side, number)
        session = self._stands[side].session
        states = call(session, "layers", sequence)
        by_reference = reference.scores_of_states(sequence, states.last) if states is not None else None
        if by_reference is None:
            return None
        [reported] = call(session, "rescore", [sequence])
        of_reference = reference.scores_of_states(sequence, reference.layers(sequence).last) or []

        def differing(first: list[float], second: list[float]) -> int:
            pairs = zip(first, second[len(second) - len(first) :], strict=True)
            return sum(not abs(x - y) <= self._tolerance.logprob for x, y in pairs)

        return HeadReport(
            differing(of_reference, reported), differing(by_reference, reported), differing(of_reference, by_reference)
        )

    def past_cache(self, side: str, on: bool) -> None:
        """From now on, draw every sample of every reading under a cache key of its own, so that nothing is reused."""
        change = self._past_cache.add if on else self._past_cache.discard
        change(side)

    def unused_cache(self, side: str) -> None:
        """From now on, draw with a part of the prefix cache under which nothing was drawn before."""
        self._cache_keys[side] = self._unused_key("all")

    def held(self, side: str, names: list[str] | None = None) -> HeldReport:
        """Compare the tensors that one engine holds with its learner's: all tensors and the buffers, or only
        `names`.
        """
        stand = self._stands[side]
        return readback.compare(stand.session, stand.policy, self._references[side].model, names)

    def digests(self, side: str, names: list[str]) -> dict[str, str]:
        """Return digests of these tensors as the engine holds them, in the form in which a sync records them."""
        stand = self._stands[side]
        values = readback.values(stand.session, stand.policy, names)
        return {name: digest(tensor) for name, tensor in values.items()}

    def hold(self, side: str, names: list[str]) -> None:
        """From now on, let the reference of this side compute with these tensors as its engine holds them.

        [] restores the learner's own tensors.
        """
        self._references[side] = learner_reference = self._owned.setdefault(side, self._references[side])
        if names:
            stand = self._stands[side]
            self._references[side] = learner_reference.holding(readback.values(stand.session, stand.policy, names))

    def write_buffers(self, side: str, names: list[str]) -> None:
        """Write into these buffers of one engine what the model's configuration computes."""
        readback.write_buffers(self._stands[side].session, self._references[side].model, names)

    def prompts_used(self, side: str, numbers: list[int]) -> dict[int, tuple[int, ...]]:
        """Return the prompt ids that the engine's forward passes received, for the samples where they are not what
        was sent.

        Samples for which this cannot be seen are left out. Each is drawn alone, without the cache.
        """
        stand, used_prompts = self._stands[side], {}
        for number in numbers:
            self._reads += 1
            request = Request(number, self._sent[number], salt=self._unused_key(number))
            used = readback.prompt_used(stand.session, request, stand.version)
            if used and used != self._sent[number]:
                used_prompts[number] = used
        return used_prompts

    def keys_read(self, side: str, number: int) -> list[tuple[int, int]] | None:
        """Return (position, number of keys and values that attention read there) of one sample, drawn alone without
        the cache.

        None where the engine does not show it.
        """
        stand = self._stands[side]
        self._reads += 1
        request = Request(number, self._sent[number], salt=self._unused_key(number))
        return readback.keys_read(stand.session, request, stand.version)

    def rescored(self, side: str) -> tuple[int, float, float]:
        """Score a few sequences again, without drawing a token: the cheapest reading that shows a change of a tensor.

        Return (tokens beyond the tolerance, sum of |Δ| against the reference, largest |Δ| against the last such
        reading), the latter two in nats.
        """
        reference = self._references[side]
        scores = self._scores(side, self._samples[:PROBED])
        before = self._readings[side].scores[:PROBED]
        self._readings[side].scores[:PROBED] = scores
        pairs = [
            (p, q) for reference_scores, theirs in zip(reference.scores(), scores, strict=False)
            for p, q in zip(reference_scores, theirs, strict=False)
        ]  # fmt: skip
        wrong = sum(beyond(p, q, self._tolerance.logprob) for p, q in pairs)
        distance = sum(abs(p - q) for p, q in pairs if math.isfinite(q))
        moved = max(
            (abs(p - q) for a, b in zip(before, scores, strict=True) for p, q in zip(a, b, strict=True)), default=0.0
        )
        return wrong, distance, moved


def _drawn(completion: Completion) -> Drawn:
    return Drawn(
        completion.sample,
        completion.prompt_seen,
        completion.output_ids,
        completion.logprobs,
        completion.finish_reason,
        completion.cached_tokens,
    )


def _within(response: Drawn, reference: Reference) -> Drawn:
    """Cut a reading that continued beyond its guide, and mark it with the finish "longer"."""
    size = len(reference.guide[response.number][0])
    if len(response.output) <= size:
        return response
    return replace(response, output=response.output[:size], logprobs=response.logprobs[:size], finish="longer")


def _apart(first: Reading, second: Reading, tolerance: float) -> tuple[int, int]:
    """Return in how many places two readings of one engine differ, and how many both have."""
    differs: list[bool] = []
    for a, b in zip(first.drawn, second.drawn, strict=True):
        pairs = zip(a.output, b.output, a.logprobs, b.logprobs, strict=False)
        differs += [x != y or beyond(p, q, tolerance) for x, y, p, q in pairs]
    for first_row, second_row in zip(first.scores, second.scores, strict=True):
        differs += [beyond(p, q, tolerance) for p, q in zip(first_row, second_row, strict=True)]
    return sum(differs), len(differs)


def _digest(policy: str) -> str:
    """Return a digest of the weight files of a policy directory, so that equal policies are loaded once."""
    content_hash = hashlib.blake2b()
    files = sorted(Path(policy).glob("*.safetensors")) or [Path(policy)]
    for file in files:
        if not file.is_file():  # a name of the hub
            content_hash.update(str(file).encode())
            continue
        content_hash.update(file.name.encode())
        with file.open("rb") as stream:
            while part := stream.read(1 << 22):
                content_hash.update(part)
    return content_hash.hexdigest()
