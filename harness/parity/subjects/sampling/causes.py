"""The causes SAMPLING_PARAM and CONFIG: parameters that an engine was not given as they were asked for.

A record shows what was given. Only recordings that show the effect (an end token too early, every sample cut at one
length), or live engines, prove that it made the difference. Otherwise the record merely supports the cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.parity.causes.family import CauseFamily, Rival, Seen, of_each_side
from harness.parity.causes.proof import either, live
from harness.parity.facts.divergence import NATIVE, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, keys_of, when
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial, value_text
from harness.parity.subjects.log_probabilities.observed_outliers import EXTREME_HALF
from harness.parity.subjects.precision.observed_floor import CAPS
from harness.parity.subjects.sampling.observed import (
    Altered,
    altered_sampling,
    engine_given,
    engine_infos,
    follows_from,
    sides_given,
)
from harness.parity.subjects.stop_conditions.causes import CAPACITY, LENGTH, STOP, end_ids
from harness.recordings.records.values import equal_values
from probes.format import SIDES, number
from reports.model import Cause, CauseKey, Proof
from reports.text import counted, figure
from scenarios.engines.canonical import BY_NAME

# Divergences that an engine causes that computes in another data type.
_OF_DATA_TYPE = (
    Kind.FLIP, Kind.LOGPROB, Kind.LENGTH, Kind.FINISH, Kind.ENGINE, Kind.CHOICE, *NATIVE, Kind.SYNC, Kind.FLOOR,
)  # fmt: skip
# Engine parameters whose causes other modules find. Here only the party is set.
_ENGINE_PARAMETER = {LENGTH.key("context"): "max_model_len", CAPACITY.key("kv pool"): "kv_cache_tokens"}


def sampling_parameters(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find sampling parameters that the two engines were given differently: tokens differ, raw log-probabilities of
    equal tokens do not.
    """
    for key, (baseline_value, candidate_value) in sides_given(e).items():
        if not (key in BY_NAME and BY_NAME[key].draws):
            continue
        asked_value = e.baseline.recording.records.settings.sampling.get(key)
        # The side whose value is not the one that was asked for is at fault.
        faulty_side = "baseline" if asked_value == candidate_value and asked_value != baseline_value else "candidate"
        beyond = e.beyond(Kind.LOGPROB.of()) if Kind.LOGPROB.of() in e.first else 0
        evidence = f"{key} is {baseline_value!r} in the baseline and {candidate_value!r} in the candidate; "
        if beyond:
            evidence += f"{beyond} raw log-probabilities of equal tokens differ as well"
        else:
            evidence += "raw log-probabilities of equal tokens agree"
        by_mapping = _altered(e, faulty_side).get(key)
        named = altered_key(by_mapping) if by_mapping is not None else sampling_key(key)
        summary = f"the {faulty_side} samples with another {key}"
        if named == GENERATION_CONFIG:
            value = baseline_value if faulty_side == "baseline" else candidate_value
            summary = f"the {faulty_side}'s engine takes {key} {value!r} from the model's generation_config.json"
        yield Explanation(
            Cause.of(
                named,
                faulty_side,
                summary,
                evidence,
                {"baseline": baseline_value, "candidate": candidate_value},
                observed=(Seen.GIVEN,),
            ),
            keys((Kind.FLIP, Kind.LENGTH, Kind.FINISH, Kind.CHOICE, *NATIVE), faulty_side),
        )


def most_tokens(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find another max_tokens: the samples of one engine end exactly at its own limit."""
    limits = sides_given(e).get("max_tokens")
    if limits is None:
        return
    # Samples of the side with the lower limit end there; the other side goes on.
    short = 0 if number(limits[0]) < number(limits[1]) else 1
    limit = number(limits[short])
    at_limit = [
        ending for ending in e.stop_conditions.endings if ending.lengths[short] == limit < ending.lengths[1 - short]
    ]
    samples_at_limit = so_far.open_samples(Kind.LENGTH.of()) & {(ending.step, ending.sample) for ending in at_limit}
    if not samples_at_limit:
        return
    side = e.sides[short].name
    # The side whose mapping changed the limit is at fault, whether its limit is the lower one or not.
    altered = [name for name in SIDES if "max_tokens" in _altered(e, name)]
    party = altered[0] if len(altered) == 1 else side
    yield Explanation(
        Cause.of(
            key=SAMPLING_PARAM.key("max_tokens"),
            party=party,
            summary=f"the {side} ends samples at {limit:g} tokens, the other run at {number(limits[1 - short]):g}",
            evidence=f"{counted(len(samples_at_limit), 'sample')} of exactly {limit:g} tokens",
            details={
                "baseline": limits[0],
                "candidate": limits[1],
                "samples": len(samples_at_limit),
            },
            proofs=[Proof(f"cut the other run's responses at {limit:g} tokens", len(samples_at_limit), 0, "samples")],
            observed=(Seen.AT_THE_LIMIT,),
        ),
        (Kind.LENGTH.of(), Kind.FINISH.of()),
        among(samples_at_limit),
    )


@of_each_side
def data_type(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine that computes in another data type than was asked for, and is further from its learner than the
    tolerance.

    One run has no second engine to show that nothing else is wrong. There the distance must be one that rounding in the
    coarser of the two types makes.
    """
    dtype, resolved = _types(side, e.mode)
    moved = side.to_learner.largest[0] if side.to_learner.tokens else float("nan")
    if not dtype or not resolved or dtype == resolved or not moved > e.tolerance.value:
        return
    caps = [CAPS[name] for name in (dtype, resolved) if name in CAPS]
    if e.alone and not (caps and moved <= EXTREME_HALF * max(caps)):
        return
    yield Explanation(
        Cause.of(
            CONFIG.key("dtype"),
            side.name,
            f"the {side.name}'s engine computes in {resolved} where {dtype} was asked",
            f"the live engine reports {resolved}; it is up to {figure(moved)} nats from its learner in {dtype}",
            {"side": side.name, "asked": dtype, "resolved": resolved},
        ),
        keys(_OF_DATA_TYPE, side.name),
    )


def _types(side: Side, mode: str) -> tuple[str, str]:
    """Return (asked, resolved) of the first engine whose data type is not as asked, else of the last engine."""
    asked_type = resolved_type = ""
    of_model = side.recording.records.settings.model.dtype
    for info in engine_infos(side, mode):
        asked_type = str(info.requested.get("dtype") or of_model or "")
        resolved_type = info.resolved.dtype or ""
        if asked_type and resolved_type and asked_type != resolved_type:
            break
    return asked_type, resolved_type


def _altered(e: Evidence, side: str) -> dict[str, Altered]:
    return {altered.name: altered for altered in altered_sampling(e.side(side), e.mode)}


def party(e: Evidence, cause: Cause) -> Cause:
    """Return the cause with the mapping as its party, where the recording shows that the engine was not given what was
    asked.
    """
    if cause.party not in SIDES:
        return cause
    side = e.side(cause.party)
    for altered in _altered(e, side.name).values():
        if altered_key(altered) == cause.key:
            return dataclasses.replace(cause, party="mapping", details={**cause.details, **altered.details})
    # Engine parameters: those that cut samples short count only where less than asked was given.
    parts = cause.key.parts if CONFIG.has(cause.key) else ()
    key = _ENGINE_PARAMETER.get(cause.key) or next(iter(parts), "")
    for info in engine_infos(side, e.mode):
        asked_value, given_value = info.requested.get(key), engine_given(info).get(key)
        if asked_value is None or given_value is None:
            continue
        is_limit = cause.key in _ENGINE_PARAMETER
        if _is_less(given_value, asked_value) if is_limit else given_value != asked_value:
            details = {"side": side.name, "asked": asked_value, "given": given_value}
            return dataclasses.replace(cause, party="mapping", details={**cause.details, **details})
    return cause


def _is_less(given_value: Any, asked_value: Any) -> bool:
    """Whether both are numbers, and less was given than asked."""
    are_numbers = isinstance(given_value, int | float) and isinstance(asked_value, int | float)
    return are_numbers and bool(given_value < asked_value)


def min_tokens(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find end tokens before min_tokens, where the other run and the learner may not draw one."""
    asked_minimum = e.baseline.recording.records.settings.sampling.min_tokens
    flips = e.flips.table
    if not asked_minimum > 0 or not len(flips):
        return
    for column, side in ((3, e.baseline), (4, e.candidate)):
        ids = end_ids(e, side) or set(side.stops.at)
        early = (flips[:, 2] < asked_minimum) & np.isin(flips[:, column], sorted(ids))
        if not early.any():
            continue
        # A sample that also has other flips has another fault as well, and is left out.
        early_samples, other_samples = flips[early, :2], keys_of(flips[~early, :2])
        affected = np.unique(early_samples[~np.isin(keys_of(early_samples), other_samples)], axis=0)
        if not len(affected):
            continue
        before = int(np.isin(keys_of(flips[:, :2]), keys_of(affected)).sum())
        yield Explanation(
            Cause.of(
                key=SAMPLING_PARAM.key("min_tokens"),
                party=side.name,
                summary=f"the {side.name} ends samples before min_tokens = {asked_minimum:g} {when(e, affected[:, 0])}",
                evidence=f"{int(early.sum())} end tokens at positions {int(flips[early, 2].min())} to "
                f"{int(flips[early, 2].max())}, "
                "where the other run draws on",
                details={"samples": len(affected), "asked": asked_minimum},
                proofs=[Proof(f"forbid end tokens before position {asked_minimum:g}", before, 0)],
                observed=(Seen.AT_THE_LIMIT,),
            ),
            keys((Kind.FLIP, Kind.LENGTH, Kind.FINISH, Kind.CHOICE), side.name),
            among(affected),
        )


def parameters(s: Situation) -> Iterator[Trial]:
    """Try the reference with each sampling parameter that the engine was not given as asked, then with all of them."""
    asked_sampling, side_sampling, given_sampling = s.run_sampling, s.request.requested, s.given_sampling
    differing = {
        name: value
        for name, value in given_sampling.items()
        if name in asked_sampling and not equal_values(value, asked_sampling[name])
    }
    undone = follows_from(s.request)
    for name, value in differing.items():
        if undone.get(name) in differing:
            continue  # tried together with the parameter that causes it
        ours = name in side_sampling and not equal_values(side_sampling[name], asked_sampling[name])
        party = s.side if ours else "mapping"
        cause = sampling_key(name)
        yield Trial(
            cause,
            f"{name} {value_text(value)} in the reference",
            f"the {s.side} samples with {name} {value_text(value)} where {value_text(asked_sampling[name])} was asked",
            {
                "sampling": (
                    (name, value),
                    *((undone_name, given_sampling[undone_name]) for undone_name, by in undone.items() if by == name),
                )
            },
            party,
            recorded=True,
            details={"asked": asked_sampling[name], "given": value, "side": s.side},
            seen=(Seen.GIVEN,),
        )
    if len(differing) > 1:
        # Filters may show only together. Putting one back at a time then finds those that matter.
        yield Trial(
            SAMPLING_PARAM.key(*sorted(differing)),
            "every given parameter in the reference",
            f"the {s.side} samples with other parameters than were asked",
            {"sampling": tuple(differing.items())},
            "mapping",
            recorded=True,
            details={"given": differing, "side": s.side},
            seen=(Seen.GIVEN,),
        )


def sampling_key(name: str) -> CauseKey:
    """Return the cause for a sampling parameter that was not given as asked."""
    return _STOPS.get(name) or SAMPLING_PARAM.key(name)


def altered_key(altered: Altered) -> CauseKey:
    return GENERATION_CONFIG if altered.leaked else sampling_key(altered.by)


SAMPLING_PARAM = CauseFamily(
    "SAMPLING_PARAM",
    meaning="the engine samples with another value of the named parameter than was asked for",
    fix="pass the named parameter explicitly to both engines, with the same value",
    named="a sampling parameter",
    rivals=(Rival("another sampling parameter", (Seen.GIVEN, Seen.ALONE_EXPLAINS, Seen.LIKELIER, Seen.AT_THE_LIMIT)),),
    suspicion=7,
    drawn=True,
    proof=either("with the other value, each choice or each end comes out as the engine's"),
)
CONFIG = CauseFamily(
    "CONFIG",
    meaning="the engine runs with another value of the named setting than was asked for",
    covers=lambda live, recorded: recorded == GENERATION_CONFIG and SAMPLING_PARAM.has(live),
    fix="set the named parameter to one value in every engine, and check that each resolves it",
    details={"generation_config": "the engine takes sampling parameters from the model's generation_config.json"},
    named="a setting of the engine",
    alone="its proof puts the parameter back, and takes it away again where others were put back beside it",
    suspicion=6,
    proof=live("with the parameter as asked for, the engine agrees; with the other value, it differs again"),
)

GENERATION_CONFIG: CauseKey = CONFIG.key("generation_config")
_STOPS = {"stop_token_ids": STOP.key("other end set"), "ignore_eos": STOP.key("ignore_eos")}

FAMILIES = (SAMPLING_PARAM, CONFIG)
