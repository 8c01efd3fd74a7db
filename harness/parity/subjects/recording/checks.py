"""Checks 5, 8 and 9, on what surrounds the engines: collective backends, cache, environment.

Most of these find differences that are no divergence by themselves. They are findings, reported with their effect.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained
from harness.parity.subjects.prefix_cache.causes import only_cached
from harness.parity.subjects.recording.observed_confounders import differences, learner_devices, learner_packages, show
from reports.model import SUSPICIONS, CheckState, Finding
from reports.text import agreeing, counted, figure, part_of
from scenarios.engines import registry

_LEARNERS = {"trainer", "actor", "critic", "reference", "reward"}
_NAMED = 6  # differing variables that a finding names; its details hold all of them with their values


def effect(e: Evidence) -> str:
    """Return in numbers what all differences together changed; "" for one run alone, where nothing is known."""
    if e.alone:
        return ""
    if not e.between_engines.tokens:
        return "not measured"
    beyond = e.counts.flips_beyond_margin
    # Log-probabilities and flips come first with numbers of their own; the loop adds whatever else differs.
    moved = [
        f"max |Δ logprob| {figure(e.between_engines.largest[0])} nats",
        f"{counted(beyond, 'flip')} beyond the margin",
    ]
    for key in e.first:
        if key.kind in (Kind.LOGPROB, Kind.FLIP):
            continue
        items = e.found(key)
        of_samples = len(items) and (items[:, 1] >= 0).all()
        samples = f" ({counted(len(np.unique(items, axis=0)), 'sample')})" if of_samples else ""
        moved.append(key.words + samples)
    return f"{'together with everything else' if e.first else 'none beyond the floor'}: {', '.join(moved)}"


@check(SUSPICIONS[5], 5)
def collective_backend(e: Evidence) -> Outcome:
    """gloo against nccl, per group; group names lose their digits, because runs number them. Sizes are compared only
    where both runs were asked for the same number of processes.
    """
    conclude = partial(outcome, SUSPICIONS[5], number=5)
    as_many = _processes(e.baseline) == _processes(e.candidate)
    baseline_groups, candidate_groups = (_groups(side, sizes=as_many) for side in e.sides)
    shared_keys = sorted(set(baseline_groups) & set(candidate_groups))
    if not shared_keys:
        return conclude("not tested", "no process group that both runs recorded")
    wrong = [key for key in shared_keys if baseline_groups[key] != candidate_groups[key]]
    if wrong:
        role, group = wrong[0]
        text = f"{part_of(len(wrong), len(shared_keys), 'group')} differ, first {group} of {role}: "
        text += f"{_group(baseline_groups[wrong[0]])} against {_group(candidate_groups[wrong[0]])}"
        findings = [Finding("collective backend", text, effect(e))]
        return conclude("confirmed", text, decides=False, findings=findings)
    # Engines may have groups of their own. Learners must have the same groups in both runs.
    alone = sorted(key for key in baseline_groups.keys() ^ candidate_groups.keys() if key[0] not in _ENGINES)
    if alone and as_many:
        role, group = alone[0]
        text = f"{len(alone):,} of the learners' groups were recorded in one run only, first {group} of {role}, in the "
        text += "baseline" if alone[0] in baseline_groups else "candidate"
        return conclude("not tested", text)
    backends = sorted({backend for key in shared_keys for backend, _ in baseline_groups[key]})
    text = f"{', '.join(backends)} in both runs, {len(shared_keys):,} groups"
    if as_many:
        text += " of equal size"
    return conclude("ruled out", text)


# Processes that run an engine: their groups belong to the engine and differ between engines.
_ENGINES = {"rollout", "process"}


def _processes(side: Side) -> tuple[int | None, ...]:
    """Return how many processes a run was asked for: workers of an engine, engines, ranks of a learner."""
    settings = side.recording.records.settings
    return settings.engine.tensor_parallel, settings.engine.engines, settings.learner.world_size


def _groups(side: Side, *, sizes: bool) -> dict[tuple[str, str], set[tuple[str, int]]]:
    backends_by_group: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for group in side.recording.records.groups:
        if group.backend is None:
            continue
        key = (group.role or "", re.sub(r"[0-9a-f]{8,}|\d+", "#", group.name or ""))
        backends_by_group.setdefault(key, set()).add((group.backend, group.world_size if sizes else 0))
    return backends_by_group


def _group(group: set[tuple[str, int]]) -> str:
    return ", ".join(f"{backend} of {size}" if size else backend for backend, size in sorted(group))


@check(SUSPICIONS[8], 8, draws=True)
def cache_hit_rate(e: Evidence) -> Outcome:
    """Is a difference on samples with cached tokens only (stale KV), and how much was cached?"""
    conclude = partial(outcome, SUSPICIONS[8], number=8)
    rates = {side.name: hit_rate(side) for side in e.sides}
    rates_text = ", ".join(f"{side} {_percent(rate)}" for side, rate in rates.items())
    buckets: dict[str, Any] = {side.name: side.to_learner.by_bucket()["cached"] for side in e.sides}
    findings = []
    if abs(rates["baseline"] - rates["candidate"]) > 0.05:
        findings.append(Finding("cache hit rate", f"hit rates differ: {rates_text}", effect(e)))
    stale_side = next((side.name for side in e.sides if only_cached(e, side, Explained(e)) is not None), None)
    if stale_side is not None:
        text = f"the {stale_side} differs from its learner on samples with cached tokens only; hit rates {rates_text}"
        return conclude("confirmed", text, decides=False, findings=findings, **buckets)
    cached = {side: bucket for side, bucket in buckets.items() if "cached" in bucket}
    if not cached and all(_caches_nothing(side) for side in e.sides):
        text = "every engine of these runs reports its prefix cache off, and none counted a cached token"
        return conclude("ruled out", text, findings=findings)
    if not cached:
        text = f"no tokens after a cached prompt were compared; hit rates {rates_text}"
        return conclude("not tested", text, findings=findings)
    uncompared = _caching_uncompared(buckets, rates)
    if uncompared:
        sides = " and the ".join(uncompared)
        text = f"no tokens after a cached prompt were compared in the {sides}; hit rates {rates_text}"
        return conclude("not tested", text, findings=findings, **buckets)
    effects = "; ".join(_cached_effect(side, bucket) for side, bucket in cached.items())
    state, text = _cached_tokens(e, cached, f"{effects}; hit rates {rates_text}")
    return conclude(state, text, findings=findings, **buckets)


def _caching_uncompared(buckets: dict[str, Any], rates: dict[str, float]) -> list[str]:
    """Return the sides that may have tokens after a cached prompt, none of which was compared."""
    sides = []
    for side, bucket in buckets.items():
        # A side that cached nothing has no such tokens. A side of which nothing was compared may have some.
        if not bucket or ("cached" not in bucket and rates[side] > 0):
            sides.append(side)
    return sides


def _percent(rate: float) -> str:
    return "not recorded" if math.isnan(rate) else f"{rate:.1%}"


def _caches_nothing(side: Side) -> bool:
    """Whether each engine of a side reports that its prefix cache is off, and no sample had a cached token."""
    recording = side.recording
    infos = recording.records.engines
    reports_off = bool(infos) and all(info.resolved.prefix_caching is False for info in infos)
    if not reports_off or hit_rate(side) > 0:
        return False
    # The engine's word is not enough: a sample's own count says whether its prompt came from a cache after all.
    tables = [recording.table("rollout", step) for step in recording.steps("rollout")]
    counts = [None if rollout is None else rollout.flat("cached") for rollout in tables]
    return bool(counts) and all(count is not None and not np.any(count) for count in counts)


def _cached_tokens(e: Evidence, cached: dict[str, Any], text: str) -> tuple[CheckState, str]:
    """Whether tokens after a cached prompt are as near to the learner as the others, where each side has some."""
    uncontrolled = [side for side, bucket in cached.items() if "not cached" not in bucket]
    if not uncontrolled:
        return "ruled out", text
    text = f"every compared token came after a cached prompt in the {' and the '.join(uncontrolled)}: {text}"
    # A learner caches nothing. Tokens that agree with it need no uncached tokens to compare with.
    if any(Kind.ENGINE.of(side) in e.first for side in uncontrolled):
        return "not tested", text
    return "ruled out", f"{text}; their learners, which cache nothing, agree"


def _cached_effect(side: str, bucket: dict[str, dict[str, float]]) -> str:
    """Return in words how far tokens after a cached prompt are from the learner, and how far the others are."""
    return f"{side} {' and '.join(_bucket(bucket, label) for label in ('cached', 'not cached') if label in bucket)}"


def _bucket(bucket: dict[str, dict[str, float]], label: str) -> str:
    deltas = bucket[label]
    return f"mean |Δ| {figure(deltas['mean'])}, max {figure(deltas['max'])} over {deltas['tokens']:,} tokens {label}"


def hit_rate(side: Side) -> float:
    """Return cached over prompt tokens of the whole run, from the engine's counts in each step; NaN where it has
    none.
    """
    counted_steps = []
    for stats in side.recording.records.engine_stats:
        tokens = 1.0 if np.isnan(stats.prompt_tokens) else stats.prompt_tokens  # not counted: all steps weigh the same
        if not np.isnan(stats.cache_hit_rate) and tokens > 0:
            counted_steps.append((stats.cache_hit_rate, tokens))
    if not counted_steps:
        return float("nan")
    return sum(rate * tokens for rate, tokens in counted_steps) / sum(tokens for _, tokens in counted_steps)


@check(SUSPICIONS[9], 9)
def environment(e: Evidence) -> Outcome:
    """Packages, libraries, variables, device and node. Two engines never share an environment, so that alone is not
    suspicious.
    """
    conclude = partial(outcome, SUSPICIONS[9], number=9)
    if unrecorded := _unrecorded_environment(e):
        return conclude("not tested", unrecorded)
    learners = differences(*(learner_packages(side.recording) for side in e.sides))
    learners |= differences(*(learner_devices(side.recording) for side in e.sides))
    engine = differences(*(_engine_packages(side) for side in e.sides))
    variables = differences(*(_variables(side) for side in e.sides))
    differing = (_of_engines(e, engine), _of_variables(e, variables), _of_nodes(e))
    findings = [finding for finding in differing if finding is not None]
    summary = f"{len(learners):,} differences of the learners, {len(engine):,} of the engines' packages, "
    summary += f"{len(variables):,} of variables"
    state: CheckState = "ruled out"
    if learners:
        state, text = "confirmed", f"the learners' environments differ: {', '.join(learners)}; {summary}"
    elif e.first and findings:
        state = "not tested"
        text = f"{summary}; whether they caused the divergence only a run in the other environment can tell"
    elif findings:
        text = f"the learners' environments are equal; {summary}, effect {effect(e)}"
    else:
        text = "equal in every process"
    return conclude(state, text, decides=False, findings=findings)


def _unrecorded_environment(e: Evidence) -> str:
    """Return what of both runs' environments was not recorded; "" where they can be compared."""
    if not all(side.recording.records.starts and learner_packages(side.recording) for side in e.sides):
        return "no packages were recorded"
    if not all(set(_engine_packages(side)) - {"python"} for side in e.sides):
        return "the packages of an engine were not recorded"
    silent = _described(e.baseline) ^ _described(e.candidate)
    return f"the environment of the {min(silent)} was recorded in one run only" if silent else ""


Differences = dict[str, tuple[Any, Any]]  # name -> the baseline's value, the candidate's


def _of_engines(e: Evidence, packages: Differences) -> Finding | None:
    if not packages:
        return None
    listed = "; ".join(f"{key} {show(a)} against {show(b)}" for key, (a, b) in packages.items())
    return Finding("engine environment", f"packages of the engines differ: {listed}", effect(e), where="both")


def _of_variables(e: Evidence, variables: Differences) -> Finding | None:
    """Return a finding that names the variables most likely to change numbers; its details hold all of them."""
    if not variables:
        return None
    names = sorted(dict.fromkeys(key.partition(".")[2] for key in variables), key=_weight)
    # A variable that only one engine's own code reads says nothing about the other engine. It is in the details only.
    telling = [variable for variable in names if not variable.startswith(registry.variables())]
    unlisted_count = len(names) - min(len(telling), _NAMED)
    listed = ", ".join(telling[:_NAMED]) or "only such as one engine alone reads"
    listed += f" and {unlisted_count} more" if telling and unlisted_count else ""
    text = f"{len(names)} {agreeing(len(names), 'variable differs', 'variables differ')}: {listed}"
    details = {key: f"{show(a)} against {show(b)}" for key, (a, b) in variables.items()}
    return Finding("environment variables", text, effect(e), where="both", details=details)


def _of_nodes(e: Evidence) -> Finding | None:
    baseline_hosts, candidate_hosts = (
        sorted({start.host or "unknown" for start in side.recording.records.starts}) for side in e.sides
    )
    if baseline_hosts == candidate_hosts:
        return None
    text = f"recorded on {show(baseline_hosts)} and on {show(candidate_hosts)}"
    return Finding("node", text, effect(e), where="both")


def _described(side: Side) -> set[str]:
    """Return the roles of the learners whose packages and machine are known."""
    return {
        environment.role
        for environment in side.recording.records.environments
        if environment.role in _LEARNERS and environment.packages and environment.machine
    }


def _engine_packages(side: Side) -> dict[str, str]:
    """Return the packages of the processes that only draw; without any, those of the processes that contain an
    engine.
    """
    records, packages = side.recording.records, dict[str, str]()
    apart = any(start.role == "rollout" for start in records.starts)
    roles = {"rollout"} if apart else {info.role for info in records.engines}
    for start in records.starts:
        if start.role in roles:
            packages |= {**start.packages, "python": start.python or "unknown"}
    return packages


_OWN_TO_A_PROCESS = re.compile("|".join([
    r"RAY_.*|(LOCAL_)?RANK|MASTER_(ADDR|PORT)|.*_PORT|.*_PID|VIRTUAL_ENV|CONDA_.*|RLHF_HARNESS_.*",
    *(spec.process.random_variables for spec in registry.specs().values() if spec.process.random_variables),
]))  # fmt: skip
# Variables that affect libraries, collectives or devices come first. The place of a cache changes no number: last.
_HEAVY = re.compile(r"LD_|NCCL_|GLOO_|CUDA_|OMP_|TORCH_|PYTORCH_")
_LIGHT = re.compile(r".*_CACHE_(DIR|PATH)|.*_WORKSPACE")


def _weight(name: str) -> tuple[int, str]:
    """Return a sort key of a variable: those most likely to change numbers come first."""
    if _HEAVY.match(name):
        return 0, name
    return (2 if _LIGHT.match(name) else 1), name


def _variables(side: Side) -> dict[str, str]:
    """Return "role.NAME" -> value, without variables that differ between any two processes."""
    variables: dict[str, str] = {}
    for start in side.recording.records.starts:
        for key, value in start.variables.items():
            if not _OWN_TO_A_PROCESS.fullmatch(key):
                variables[f"{start.role}.{key}"] = value
    return variables
