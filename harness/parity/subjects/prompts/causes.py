"""The causes TOKENIZATION, TRUNCATION and TEMPLATE: an engine saw other prompt ids than it was sent.

What became of the ids says which of the causes it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from harness.parity.causes import registry
from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import NATIVE, ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import (
    Explained,
    Explanation,
    among,
    and_native,
    restricted,
    scored_otherwise,
    when,
)
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from harness.parity.subjects.prompts.observed import ENCODED_AGAIN, OF_ONE_REQUEST, OTHER_IDS, PERMUTED, how
from harness.parity.subjects.prompts.observed_text import by_sample
from harness.parity.subjects.stop_conditions.causes import cut_earlier
from reports.model import Cause, CauseKey, Proof
from reports.text import counted
from scenarios.bench.case import Alteration

FEWEST = 2  # samples with other ids that are a fault of tokenization and not of one record
# What turns the prompt that was seen into the one that was sent.
UNDONE = {
    "double BOS": "leave out the first id that the engine saw",
    "no BOS": "put the BOS in front of what the engine saw",
    "truncated left": "leave out the ids in front, of what was sent",
    "truncated right": "leave out the ids at the end, of what was sent",
    "truncated in the middle": "leave out ids in the middle of what was sent",
    "no generation prompt": "append the generation prompt to what the engine saw",
    "generation prompt twice": "leave out the last generation prompt that the engine saw",
    "ids added in front": "leave out the ids in front that the engine saw",
    "ids added at the end": "leave out the ids at the end that the engine saw",
}


def prompt_key(kind: str) -> CauseKey:
    """Return the cause for prompts with this kind of change (see `observed.how`)."""
    cause_keys = (
        family.key(*family.prompts[kind]) for family in registry.families().values() if kind in family.prompts
    )
    return next(cause_keys, TOKENIZATION.key(kind))


@of_each_side
def prompts(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find one cause for each kind of change of prompts."""
    # Each kind of change is a cause of its own: one engine may cut long prompts and double the BOS of all.
    for kind, where in _kinds(e, side).items():
        if kind in (PERMUTED, OF_ONE_REQUEST):
            continue  # belongs to ORDER, or is no change that tokenization makes
        where = [(step, sample) for step, sample in where if step not in side.witnesses.seen_as_sent]
        if not where:
            continue  # the rollouts are wrong about what was sent
        retold = _same_text(e, side, where) if kind == OTHER_IDS else 0
        if is_of_one_sample(kind, len(where)) and not retold:
            continue
        yield _changed(e, side, kind, where, retold)


def _changed(e: Evidence, side: Side, kind: str, where: list[tuple[int, int]], retold: int) -> Explanation:
    """Explain what follows from prompts that changed in one way. `where`: (step, sample) of each. `retold`: how many of
    them have the same text."""
    affected = np.array(where, np.int64)
    became = ENCODED_AGAIN if retold else kind
    evidence = f"{counted(len(affected), 'sample')}, first step {where[0][0]}, sample {where[0][1]}"
    explained_keys = [*keys((Kind.PROMPT, *ROLLOUT), side.name), *scored_otherwise(e, side.name)]
    native = side.native_prompts.kinds.get(kind, ())
    if native:
        evidence += f"; {counted(len(set(native)), 'sample')} of the native stage too"
        explained_keys += keys((Kind.NATIVE_PROMPT, *NATIVE), side.name)
    if retold:
        evidence += f"; in {retold} of them the recorded text of the prompt's ends is the same"
    limited = cut_earlier(e, side)
    return Explanation(
        Cause.of(
            prompt_key(became),
            side.name,
            f"the engine saw other prompt ids than it was sent {when(e, affected[:, 0])}: {became}",
            evidence,
            {"samples": [list(pair) for pair in where[:50]], "kind": kind},
            _proofs(e, side, kind, affected),
        ),
        tuple(explained_keys),
        and_native(affected) if native else among(affected),
        not_explained={Kind.LENGTH.of(): among(limited)} if limited else {},
    )


def is_of_one_sample(kind: str, samples: int) -> bool:
    """Whether a change is no more than one wrong number may be: ids without a pattern, in one sample."""
    return kind == OTHER_IDS and samples < FEWEST


# A prompt that lost one end, by chance exactly the generation prompt or the BOS, counts as cut if all were cut to one
# length.
CUT = {"no generation prompt": "truncated right", "no BOS": "truncated left"}


def _kinds(e: Evidence, side: Side) -> dict[str, list[tuple[int, int]]]:
    """Return kind of change -> (step, sample). Among prompts cut to one length, one may lack the generation prompt by
    chance.
    """
    kinds = {kind: [*where] for kind, where in side.prompts.kinds.items()}
    lengths = side.prompts.lengths
    for kind, cut in CUT.items():
        if kind in kinds and len({*lengths[kind], *lengths.get(cut, [-1])}) == 1:
            kinds[cut] = sorted([*kinds[cut], *kinds.pop(kind)])
    return kinds


def _proofs(e: Evidence, side: Side, kind: str, affected: np.ndarray) -> list[Proof]:
    proofs = [Proof(UNDONE[kind], len(affected), 0, "prompts")] if kind in UNDONE else []
    rollouts = tuple(key for key in keys(ROLLOUT, side.name) if key in e.first)
    return proofs + restricted(e, rollouts, affected, "leave out the samples whose prompt the engine saw changed")


def _same_text(e: Evidence, side: Side, where: list[tuple[int, int]]) -> int:
    """Return for how many samples both ends of the prompt have the same text, though the ids there differ.

    The recordings hold the text of the first eight ids, and that of the last eight together with the output's first
    eight. The other side's boundaries stand for what was sent. Tokens of another encoding cover more or less text, so
    one text must begin (or, at the end, end) with the other.
    """
    other_side = e.other_side(side)
    trusted = {tuple(pair) for kind in other_side.prompts.kinds.values() for pair in kind}
    wanted = {pair for pair in where if pair not in trusted}
    side_boundaries, other_boundaries = by_sample(side, wanted), by_sample(other_side, wanted)
    return sum(
        _retold(side_boundaries[key], other_boundaries[key]) for key in side_boundaries.keys() & other_boundaries.keys()
    )


def _retold(seen_boundary: dict[str, Any], sent_boundary: dict[str, Any]) -> bool:
    """Whether one sample's prompt reads the same at both ends, and has other ids at one of them."""
    fronts = [str(boundary.get("text_first") or "") for boundary in (seen_boundary, sent_boundary)]
    seams = [str(boundary.get("text_seam") or "") for boundary in (seen_boundary, sent_boundary)]
    if not _nested(fronts, str.startswith):
        return False
    differs = {key: seen_boundary.get(key) != sent_boundary.get(key) for key in _ENDS}
    if differs["output_first"]:  # the text of the seam is also that of the response
        return differs["prompt_first"]
    return _nested(seams, str.endswith) and (differs["prompt_first"] or differs["prompt_last"])


def _nested(pair: list[str], holds: Callable[[str, str], bool]) -> bool:
    """Whether neither text is empty, and one begins or ends with the other."""
    first, second = pair
    return bool(first and second) and (holds(first, second) or holds(second, first))


_ENDS = ("prompt_first", "prompt_last", "output_first")


_ALSO = ", in continuations too"


def _changed_prompts(
    s: Situation, prompts: Mapping[int, tuple[int, ...]]
) -> dict[CauseKey, dict[int, tuple[int, ...]]]:
    """Return by cause the prompts of samples that differ from every prompt that was sent.

    The prompt of another sample of the same call is a matter of ORDER: the ids themselves did not change.
    """
    sent = _sent(s)
    sent_prompts = set(sent.values())
    changed: dict[CauseKey, dict[int, tuple[int, ...]]] = {}
    for number, ids in prompts.items():
        if ids not in sent_prompts:
            changed.setdefault(_prompt_cause(s, number, sent[number], ids), {})[number] = ids
    return changed


def prompts_seen(s: Situation) -> Iterator[Trial]:
    """Try the reference with the prompt ids that the engine reports to have seen."""
    if not s.remaining.of("prompts"):
        return
    for cause, inputs in _changed_prompts(s, s.bench.prompts_seen(s.side)).items():
        for everywhere in (False, True):
            yield Trial(
                cause,
                f"the reference is given the ids that the engine saw{_ALSO if everywhere else ''}",
                f"the engine saw other prompt ids than it was sent, in {counted(len(inputs), 'sample')} of the case",
                {"prompts": _joined(s.alteration, inputs), "everywhere": everywhere},
                recorded=True,
            )


def prompts_hidden(s: Situation) -> Iterator[Trial]:
    """Try other prompt ids where the engine reports to have seen what it was sent, but draws otherwise."""
    if s.remaining.of("scores") or not s.remaining.of("logprobs"):
        return
    wrong = sorted(s.remaining.by_sample)
    for cause, inputs in _changed_prompts(s, s.bench.prompts_used(s.side, wrong)).items():
        for everywhere in (False, True):
            yield Trial(
                cause,
                f"the reference is given the ids of the engine's forward pass{_ALSO if everywhere else ''}",
                f"the engine drew {counted(len(inputs), 'sample')} of the case from other prompt ids than it was sent, "
                "and says that it saw what was sent; it scores the whole prompt",
                {"prompts": _joined(s.alteration, inputs), "everywhere": everywhere},
            )
    # The engine does not show which ids it used: common mistakes of tokenization are tried.
    ways = (
        ("text", TOKENIZATION.key("double BOS"), "the prompt was sent as text and tokenized again, specials added"),
        ("again", prompt_key(ENCODED_AGAIN), "the prompt was turned into text and tokenized again"),
        ("no BOS", prompt_key("no BOS"), "the prompt lacks its BOS"),
        (
            "no generation prompt",
            TEMPLATE.key("no generation prompt"),
            "the prompt lacks the template's generation prompt",
        ),
    )
    for way, cause, summary in ways:
        ids = s.bench.reprompted(s.side, wrong, way)
        if not ids:
            continue
        for everywhere in (False, True):
            change = {"prompts": _joined(s.alteration, ids), "everywhere": everywhere}
            yield Trial(cause, f"prompts of the reference: {way}", summary, change)


def _sent(s: Situation) -> dict[int, tuple[int, ...]]:
    return {sample.number: sample.prompt for sample in s.samples}


def _joined(alteration: Alteration, ids: dict[int, tuple[int, ...]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(sorted({**dict(alteration.prompts), **ids}.items()))


def _prompt_cause(s: Situation, number: int, sent_ids: tuple[int, ...], seen_ids: tuple[int, ...]) -> CauseKey:
    if s.bench.reprompted(s.side, [number], "no BOS").get(number) == seen_ids:
        return prompt_key("no BOS")
    kind = how(np.array(sent_ids), np.array(seen_ids), tokenizer(s.evidence))
    if kind == OTHER_IDS and s.bench.reprompted(s.side, [number], "again").get(number) == seen_ids:
        return prompt_key(ENCODED_AGAIN)
    return prompt_key(kind)


TOKENIZATION = CauseFamily(
    "TOKENIZATION",
    meaning="the engine saw other prompt ids than it was sent: some were added, left out or changed",
    fix="send token ids, and let one place alone add special tokens",
    details={
        "double BOS": "the prompt began with two BOS tokens: text that had one was tokenized with special tokens",
        "no BOS": "the prompt lost its BOS token",
        "ids added in front": "the engine saw more ids in front of the prompt",
        "ids added at the end": "the engine saw more ids after the prompt",
        OTHER_IDS: "the engine saw other ids within the prompt",
    },
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
    proof=either("with the ids that the engine saw, every sample is drawn again"),
)
TRUNCATION = CauseFamily(
    "TRUNCATION",
    meaning="the engine cut prompts",
    fix="raise the engine's limit on prompts, or refuse longer ones before they are sent",
    details={
        "left": "the beginning of the prompt was cut off",
        "right": "the end of the prompt was cut off",
        "middle": "ids in the middle of the prompt were left out",
    },
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
    prompts={"truncated left": ("left",), "truncated right": ("right",), "truncated in the middle": ("middle",)},
    proof=either("with the cut prompts, every sample is drawn again"),
)
TEMPLATE = CauseFamily(
    "TEMPLATE",
    meaning="the chat template was applied without its generation prompt, or twice",
    fix="apply the chat template once, with add_generation_prompt=True",
    details={
        "no generation prompt": "the tokens that begin the answer are missing at the end of the prompt",
        "generation prompt twice": "the tokens that begin the answer are there twice",
    },
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
    prompts={kind: (kind,) for kind in ("no generation prompt", "generation prompt twice")},
    proof=either("with the prompts of the other template, every sample is drawn again"),
)

FAMILIES = (TOKENIZATION, TRUNCATION, TEMPLATE)
