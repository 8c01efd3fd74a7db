"""The suspicions about what surrounds the engines: collective backends, parameters, cache, environment.

Most of these find differences that are no divergence by themselves: a parameter that was not honoured and moved nothing
is a finding, and the finding says that it moved nothing.
"""

from __future__ import annotations

import re
from typing import Any

from harness.parity.confounders import differences, learner_devices, learner_packages, show
from harness.parity.evidence import Evidence, Side
from harness.parity.native import NativeResult
from harness.parity.registry import Outcome, check, outcome
from harness.tables import mapping, number
from reports.model import SUSPICIONS, CheckState, Finding
from reports.text import figure
from scenarios.settings import Engine

# A canonical parameter is honoured when the engine resolved exactly it; of these, more than was asked for takes
# nothing away.
_MORE_IS_FINE = {"max_model_len", "kv_cache_tokens", "max_num_seqs"}
_NOT_REPORTED = {"memory_fraction", "engines"}  # shares and counts that no engine reports back
_ALTERS = {
    "dtype",
    "seed",
    "enforce_eager",
    "prefix_caching",
    "chunked_prefill",
    "tensor_parallel",
    "max_model_len",
    "max_num_seqs",
}


_SPEED_ONLY = {"prefix_caching", "chunked_prefill"}
_NAMED = 6  # differing variables that a finding names; all of them with their values stand in its details


def effect(e: Evidence) -> str:
    """What all differences together moved, in numbers."""
    if not e.engines.tokens:
        return "not measured"
    beyond = e.counts.get("flips_beyond_margin", 0)
    moved = f"max |Δ logprob| {figure(e.engines.largest[0])} nats, {beyond} flips beyond the margin"
    alone = not {"logprob", "flip"} & set(e.first)
    return f"none beyond the floor: {moved}" if alone else f"together with everything else: {moved}"


@check(SUSPICIONS[5], 5)
def collective_backend(e: Evidence) -> Outcome:
    """gloo against nccl, per group; group names lose their digits, because runs number them."""
    name, number = SUSPICIONS[5], 5
    one, two = (_groups(side) for side in e.sides)
    both = sorted(set(one) & set(two))
    if not both:
        return outcome(name, "not tested", "no process group that both runs recorded", number=number)
    wrong = [key for key in both if one[key] != two[key]]
    if wrong:
        role, group = wrong[0]
        text = f"{len(wrong)} of {len(both)} groups differ, first {group} of {role}: "
        text += f"{_group(one[wrong[0]])} against {_group(two[wrong[0]])}"
        return outcome(
            name,
            "confirmed",
            text,
            number=number,
            decides=False,
            findings=[Finding("collective backend", text, effect(e))],
        )
    backends = sorted({backend for key in both for backend, _ in one[key]})
    return outcome(
        name, "ruled out", f"{', '.join(backends)} in both runs, {len(both)} groups of equal size", number=number
    )


def _groups(side: Side) -> dict[tuple[str, str], set[tuple[str, int]]]:
    found: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for event in side.recording.all("group"):
        if event.get("backend") is None:
            continue
        key = (str(event.get("role")), re.sub(r"[0-9a-f]{8,}|\d+", "#", str(event.get("name"))))
        found.setdefault(key, set()).add((str(event.get("backend")), int(number(event.get("world_size"), 0))))
    return found


def _group(group: set[tuple[str, int]]) -> str:
    return ", ".join(f"{backend} of {size}" for backend, size in sorted(group))


@check(SUSPICIONS[6], 6)
def engine_parameter_map(e: Evidence) -> Outcome:
    """Asked against resolved: what each live engine reports of every canonical parameter."""
    name, number = SUSPICIONS[6], 6
    altered: list[Finding] = []
    checked, silent = 0, []
    for side in e.sides:
        model = side.recording.scenario.get("model") or {}
        asked = {**mapping(side.recording.scenario.get("engine")), "dtype": model.get("dtype")}
        asked = {key: value for key, value in asked.items() if value is not None}
        infos = [event for event in engine_infos(side, e.mode) if mapping(event.get("resolved"))]
        if not infos or not asked:
            text = f"the {side.name} recorded no {'resolved' if not infos else 'asked'} engine parameters"
            return outcome(name, "not tested", text, number=number, findings=altered)
        engine, resolved = infos[0].get("engine", "the engine"), infos[0]["resolved"]
        silent += [f"{side.name}: {key}" for key in asked if resolved.get(key) is None and key not in _NOT_REPORTED]
        for key, value in asked.items():
            got = resolved.get(key)
            checked += got is not None
            if got is None or got == value or (key in _MORE_IS_FINE and got >= value):
                continue
            text = f"{key}: asked {value!r}, {engine} resolved {got!r}"
            own = key in _SPEED_ONLY and value == getattr(Engine(), key)  # our default, and it changes no result
            severity: Any = "warning" if key in _ALTERS and not own else "info"
            details = {"asked": value, "resolved": got}
            altered.append(Finding(key, text, effect(e), severity, side.name, details))
    one, two = (side.recording.scenario.get("engine") or {} for side in e.sides)
    findings = altered + [
        Finding(f"engine.{key}", f"{key} was asked as {a!r} of the baseline and {b!r} of the candidate", effect(e))
        for key, (a, b) in differences(one, two).items()
    ]
    missing = [f"{name}: not reported by the engine: {', '.join(silent)}"] if silent else []
    if altered:
        text = f"{len(altered)} of {checked} parameters are not what was asked: {altered[0].summary}"
        text += f"; effect {effect(e)}"
        return outcome(name, "confirmed", text, number=number, decides=False, findings=findings, missing=missing)
    text = f"{checked} parameters resolved as asked on both sides"
    return outcome(name, "ruled out", text, number=number, findings=findings, missing=missing)


def engine_infos(side: Side, mode: str) -> list[dict[str, Any]]:
    """`engine_info` events of the engines that sampled in this mode: the native stage has an engine of its own."""
    modes = {event["file"]: event.get("mode") for event in side.recording.all("sampling")}
    events = side.recording.all("engine_info")
    return [event for event in events if modes.get(event["file"]) == mode] or events


@check(SUSPICIONS[7], 7)
def sampling_parameter_map(e: Evidence) -> Outcome:
    """Canonical sampling parameters against what was asked and against each other, and the engines' own samplers by
    their samples.
    """
    name, number = SUSPICIONS[7], 7
    recorded = [
        {str(event.get("mode")): mapping(event.get("canonical")) for event in side.recording.all("sampling")}
        for side in e.sides
    ]
    findings = []
    for side, modes in zip(e.sides, recorded, strict=True):
        asked = side.recording.scenario.get("sampling") or {}
        for mode, canonical in modes.items():
            for key, (a, b) in differences(asked, canonical).items() if asked else ():
                if a is not None:
                    summary = f"{key}: asked {a!r}, the {side.name}'s engine samples with {b!r} ({mode})"
                    findings.append(
                        Finding(
                            f"sampling.{key}",
                            summary,
                            effect(e),
                            "warning",
                            side.name,
                            {"asked": a, "used": b, "mode": mode},
                        )
                    )
    for mode in recorded[0].keys() & recorded[1].keys():
        for key, (a, b) in differences(recorded[0][mode], recorded[1][mode]).items():
            e.notes.setdefault("sampling differs", {})[key] = (a, b)
            if not any(finding.name == f"sampling.{key}" for finding in findings):
                findings.append(
                    Finding(
                        f"sampling.{key}",
                        f"{key} is {a!r} in the baseline and {b!r} in the candidate ({mode})",
                        effect(e),
                        "warning",
                        "both",
                    )
                )
    result: NativeResult | None = e.notes.get("native")
    if findings:
        text = f"{'; '.join(finding.summary for finding in findings[:3])}; effect {effect(e)}"
        return outcome(name, "confirmed", text, number=number, decides=False, findings=findings)
    if any(kind.split(":")[0] in ("native", "native learner", "collision") for kind in e.first):
        return outcome(
            name,
            "confirmed",
            "parameters agree, but the engines' own samplers do not draw alike (see native)",
            number=number,
            decides=False,
        )
    if not all(recorded):
        return outcome(name, "not tested", "no sampling parameters were recorded", number=number)
    if result is None or result.skipped or not result.adequate:
        text = "parameters agree; the engines' own samplers were not tested: no native stage with enough samples"
        return outcome(name, "not tested", text, number=number)
    smallest = min(test["p_holm"] for test in result.tests.values())
    return outcome(
        name,
        "ruled out",
        f"parameters agree; native stage: {len(result.tests)} tests, smallest corrected p {figure(smallest)}",
        number=number,
    )


@check(SUSPICIONS[8], 8)
def cache_hit_rate(e: Evidence) -> Outcome:
    """Is a difference on samples with cached tokens only (stale KV), and how much was cached?"""
    name, number = SUSPICIONS[8], 8
    rates = {side.name: hit_rate(side) for side in e.sides}
    shown = ", ".join(f"{side} {'not recorded' if rate != rate else f'{rate:.1%}'}" for side, rate in rates.items())
    buckets: dict[str, Any] = {side.name: side.to_learner.by_bucket()["cached"] for side in e.sides}
    findings = []
    if abs(rates["baseline"] - rates["candidate"]) > 0.05:
        findings.append(Finding("cache hit rate", f"hit rates differ: {shown}", effect(e)))
    for side in e.sides:
        if only_cached(e, side):
            text = f"the {side.name} differs from its learner on samples with cached tokens only; hit rates {shown}"
            return outcome(name, "confirmed", text, number=number, decides=False, findings=findings, **buckets)
    cached = {side: bucket.get("cached", {"tokens": 0, "max": 0.0}) for side, bucket in buckets.items()}
    if not any(bucket["tokens"] for bucket in cached.values()):
        return outcome(
            name,
            "not tested",
            f"no tokens after a cached prompt were compared; hit rates {shown}",
            number=number,
            findings=findings,
        )
    parts = [
        f"{side} max |Δ| {figure(bucket['max'])} with cached tokens"
        for side, bucket in cached.items()
        if bucket["tokens"]
    ]
    return outcome(
        name, "ruled out", f"{'; '.join(parts)}; hit rates {shown}", number=number, findings=findings, **buckets
    )


def hit_rate(side: Side) -> float:
    """Cached over prompt tokens of the whole run, as the engine counted them in each step; NaN where it did not."""
    events = side.recording.all("engine_stats")
    steps = [(number(event.get("cache_hit_rate")), number(event.get("prompt_tokens"), 1.0)) for event in events]
    known = [(rate, tokens) for rate, tokens in steps if rate == rate and tokens > 0]
    return sum(rate * tokens for rate, tokens in known) / sum(tokens for _, tokens in known) if known else float("nan")


def only_cached(e: Evidence, side: Side) -> bool:
    """Most samples with cached tokens are beyond the tolerance, and of several without none is."""
    found = e.interventions.get(f"learner:{side.name}", {})
    warm, wrong = found.get("cached samples", 0), found.get("cached samples beyond", 0)
    cold, wrong_cold = found.get("uncached samples", 0), found.get("uncached samples beyond", 0)
    return wrong >= 3 and 2 * wrong >= warm and cold >= 3 and wrong_cold == 0


@check(SUSPICIONS[9], 9)
def environment(e: Evidence) -> Outcome:
    """Packages, libraries, variables, device and node. Two engines never share an environment: that alone is no
    suspicion.
    """
    name, number = SUSPICIONS[9], 9
    if not all(side.recording.all("open") and learner_packages(side.recording) for side in e.sides):
        return outcome(name, "not tested", "no packages were recorded", number=number)
    if not all(set(_engine_packages(side)) - {"python"} for side in e.sides):
        return outcome(name, "not tested", "the packages of an engine were not recorded", number=number)
    learners = differences(*(learner_packages(side.recording) for side in e.sides)) | differences(
        *(learner_devices(side.recording) for side in e.sides)
    )
    findings = []
    engine = differences(*(_engine_packages(side) for side in e.sides))
    if engine:
        listed = "; ".join(f"{key} {show(a)} against {show(b)}" for key, (a, b) in engine.items())
        findings.append(
            Finding("engine environment", f"packages of the engines differ: {listed}", effect(e), where="both")
        )
    variables = differences(*(_variables(side) for side in e.sides))
    if variables:
        names = list(dict.fromkeys(key.partition(".")[2] for key in variables))
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        text = f"{len(names)} {'variable differs' if len(names) == 1 else 'variables differ'}: {listed}"
        details = {key: f"{show(a)} against {show(b)}" for key, (a, b) in variables.items()}
        findings.append(Finding("environment variables", text, effect(e), where="both", details=details))
    hosts = [sorted({str(event.get("host")) for event in side.recording.all("open")}) for side in e.sides]
    if hosts[0] != hosts[1]:
        findings.append(
            Finding("node", f"recorded on {show(hosts[0])} and on {show(hosts[1])}", effect(e), where="both")
        )
    summary = f"{len(learners)} differences of the learners, {len(engine)} of the engines' packages, "
    summary += f"{len(variables)} of variables"
    moved = bool(e.first)
    state: CheckState = "ruled out"
    if learners:
        state, text = "confirmed", f"the learners' environments differ: {', '.join(learners)}; {summary}"
    elif moved and findings:
        state, text = (
            "not tested",
            f"{summary}; whether they caused the divergence only a run in the other environment can tell",
        )
    else:
        text = (
            f"the learners' environments are equal; {summary}, effect {effect(e)}"
            if findings
            else "equal in every process"
        )
    return outcome(name, state, text, number=number, decides=False, findings=findings)


def _engine_packages(side: Side) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in side.recording.all("open"):
        if event.get("role") == "rollout":
            found |= {key: str(value) for key, value in mapping(event.get("packages")).items()}
            found["python"] = str(event.get("python"))
    return found


# vLLM draws a random name for its group and for its shared memory, and puts both into the environment of its process.
_OWN_TO_A_PROCESS = re.compile(
    r"RAY_.*|(LOCAL_)?RANK|MASTER_(ADDR|PORT)|.*_PORT|.*_PID|VIRTUAL_ENV|CONDA_.*|VLLM_DIST_IDENT|.*_SHM_BUFFER_NAME"
    r"|RLHF_HARNESS_.*"
)


def _variables(side: Side) -> dict[str, str]:
    """role.NAME -> value, without what differs between any two processes."""
    found: dict[str, str] = {}
    for event in side.recording.all("open"):
        for key, value in mapping(event.get("env")).items():
            if not _OWN_TO_A_PROCESS.fullmatch(key):
                found[f"{event.get('role')}.{key}"] = str(value)
    return found
