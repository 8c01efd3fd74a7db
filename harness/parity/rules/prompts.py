"""Prompts: the engine saw other ids than it was sent. What became of them says which of its causes it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.parity.causes.prompts import TEMPLATE, TOKENIZATION, TRUNCATION
from harness.parity.causes.retokenization import RETOKENIZATION
from harness.parity.facts.boundaries import by_sample
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
from harness.parity.facts.prompts_seen import PERMUTED
from harness.parity.rules.ends import cut_earlier
from reports.model import Cause, CauseKey, Proof
from reports.text import counted

KEYS = {
    "double BOS": TOKENIZATION.key("double BOS"),
    "no BOS": TOKENIZATION.key("no BOS"),
    "truncated left": TRUNCATION.key("left"),
    "truncated right": TRUNCATION.key("right"),
    "truncated in the middle": TRUNCATION.key("middle"),
    "no generation prompt": TEMPLATE.key("no generation prompt"),
    "generation prompt twice": TEMPLATE.key("generation prompt twice"),
}
# What makes the prompt that was seen the one that was sent again.
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
    """The cause of a prompt that became this (`prompts_seen.how`)."""
    return KEYS.get(kind) or TOKENIZATION.key(kind)


def prompts(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """One cause for each thing that became of prompts."""
    for side in e.sides:
        for kind, where in _kinds(e, side).items():
            if kind == PERMUTED:
                continue  # a matter of order
            affected = np.array(where, np.int64)
            retold = _same_text(e, side, where) if kind == "other ids" else 0
            key = RETOKENIZATION.key() if retold else prompt_key(kind)
            evidence = f"{counted(len(affected), 'sample')}, first step {where[0][0]}, sample {where[0][1]}"
            native = side.native_prompts.kinds.get(kind, [])
            limited = cut_earlier(e, side)
            evidence += f"; {counted(len(set(native)), 'sample')} of the native stage too" if native else ""
            if retold:
                evidence += f"; in {retold} of them the recorded text of the prompt's ends is the same"
            yield Explanation(
                Cause.of(
                    key,
                    side.name,
                    f"the engine saw other prompt ids than it was sent {when(e, affected[:, 0])}: "
                    + ("other ids of the same text" if retold else kind),
                    evidence,
                    {"samples": [list(one) for one in where[:50]], "kind": kind},
                    _proofs(e, side, kind, affected),
                ),
                (
                    *keys((Kind.PROMPT, *ROLLOUT), side.name),
                    *scored_otherwise(e, side.name),
                    *(keys((Kind.NATIVE_PROMPT, *NATIVE), side.name) if native else ()),
                ),
                and_native(affected) if native else among(affected),
                beyond={Kind.LENGTH.of(): among(limited)} if limited else {},
            )


# What one token more or less makes of a prompt, and what it is beside prompts that were cut to the same length.
CUT = {"no generation prompt": "truncated right", "no BOS": "truncated left"}


def _kinds(e: Evidence, side: Side) -> dict[str, list[tuple[int, int]]]:
    """What became of prompts -> (step, sample). Cut to one length, one may lack the generation prompt by chance."""
    kinds = dict(side.prompts.kinds)
    lengths = side.prompts.lengths
    for one, cut in CUT.items():
        if one in kinds and len({*lengths[one], *lengths.get(cut, [-1])}) == 1:
            kinds[cut] = sorted([*kinds[cut], *kinds.pop(one)])
    return kinds


def _proofs(e: Evidence, side: Side, kind: str, affected: np.ndarray) -> list[Proof]:
    found = [Proof(UNDONE[kind], len(affected), 0, "prompts")] if kind in UNDONE else []
    rollouts = tuple(one for one in keys(ROLLOUT, side.name) if one in e.first)
    return found + restricted(e, rollouts, affected, "leave out the samples whose prompt the engine saw otherwise")


def _same_text(e: Evidence, side: Side, where: list[tuple[int, int]]) -> int:
    """Of how many samples do both ends of the prompt have the same text, though the ids there differ?

    The recordings hold the text of the first eight ids and of the last eight together with the output's first eight.
    The other side's boundaries stand for what was sent. Tokens of another cut cover more or less text, so one text must
    begin (or, at the end, end) with the other.
    """
    other = e.candidate if side is e.baseline else e.baseline
    trusted = {tuple(one) for kind in other.prompts.kinds.values() for one in kind}
    wanted = {one for one in where if one not in trusted}
    own, theirs = by_sample(side, wanted), by_sample(other, wanted)
    return sum(_retold(own[key], theirs[key]) for key in own.keys() & theirs.keys())


def _retold(seen: dict[str, Any], sent: dict[str, Any]) -> bool:
    fronts = [str(one.get("text_first") or "") for one in (seen, sent)]
    seams = [str(one.get("text_seam") or "") for one in (seen, sent)]
    front = bool(min(fronts)) and _nested(fronts, str.startswith)
    differs = seen.get("prompt_first") != sent.get("prompt_first")
    if seen.get("output_first") == sent.get("output_first"):
        seam = bool(min(seams)) and _nested(seams, str.endswith)
        return front and seam and (differs or seen.get("prompt_last") != sent.get("prompt_last"))
    return front and differs


def _nested(pair: list[str], holds: Any) -> bool:
    return bool(holds(*pair) or holds(*pair[::-1]))
