"""The user's suspicions that `checks` leaves open: ids, boundaries, shapes, backends, parameters, cache, environment.

Source: "NCCL Hang 的猜想", eleven guesses why engines differ. Most of these find differences that are no
divergence by themselves: a parameter that was not honoured and moved nothing is a finding, and the finding says that
it moved nothing.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from harness.parity.checks import CHECKS, Outcome, check, outcome, trains
from harness.parity.confounders import differences, learner_devices, learner_packages, show
from harness.parity.evidence import Evidence, Side
from harness.parity.native import NativeResult
from reports.model import SUSPICIONS, CheckState, Finding

__all__ = [
    "CHECKS",
    "effect",
    "engine_infos",
    "hit_rate",
    "only_cached",
]  # CHECKS: complete once this module is imported

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


def effect(e: Evidence) -> str:
    """What all differences together moved, in numbers."""
    if not e.engines.tokens:
        return "not measured"
    beyond = e.counts.get("logprobs_beyond_tolerance", 0) + e.counts.get("flips_beyond_margin", 0)
    moved = f"max |Δ logprob| {e.engines.largest[0]:.3g} nats, "
    moved += f"{e.counts.get('flips_beyond_margin', 0)} flips beyond the margin"
    return moved if beyond else f"none beyond the floor: {moved}"


@check(SUSPICIONS[1], 1)
def token_ids_not_text(e: Evidence) -> Outcome:
    return _prompts(e, 1, "went in as ids and were seen as they were sent", "the engine saw")


@check(SUSPICIONS[10], 10)
def prompt_ids(e: Evidence) -> Outcome:
    return _prompts(e, 10, "prompt_seen equals prompt", "prompt_seen is not prompt:")


def _prompts(e: Evidence, number: int, good: str, bad: str) -> Outcome:
    name = SUSPICIONS[number]
    kinds = tuple(f"prompt:{side.name}" for side in e.sides if f"prompt:{side.name}" in e.first)
    if kinds:
        found: dict[str, Any] = {
            side.name: {kind: len(where) for kind, where in e.notes.get(f"prompt kinds:{side.name}", {}).items()}
            for side in e.sides
        }
        text = "; ".join(
            f"{side}: {', '.join(f'{kind} in {count} samples' for kind, count in counts.items())}"
            for side, counts in found.items()
            if counts
        )
        return outcome(name, "confirmed", f"{bad} {text}", number=number, kinds=kinds, **found)
    silent = [side for side in e.sides if side.seen_samples < side.samples or not side.samples]
    if silent:
        counts = f"{silent[0].seen_samples} of {silent[0].samples}"
        text = f"the {silent[0].name}'s engine said of {counts} samples which prompt it saw"
        return outcome(name, "not tested", text, number=number)
    counts = " and ".join(f"{side.seen_samples} of {side.samples}" for side in e.sides)
    return outcome(name, "ruled out", f"{good} in {counts} samples", number=number)


@check(SUSPICIONS[2], 2)
def token_boundaries(e: Evidence) -> Outcome:
    """First and last ids, lengths and specials. Lines are compared as bytes; only those that differ are parsed."""
    name, number = SUSPICIONS[2], 2
    counts = [side.recording.count("boundaries") for side in e.sides]
    if not all(counts):
        return outcome(name, "not tested", "no token boundaries were recorded", number=number)
    if e.confounded("everything", "prompts") is not None or e.mode == "native":
        return outcome(name, "not tested", "the runs do not share their samples", number=number)
    one, two = _different_boundaries(e.baseline, e.candidate), _different_boundaries(e.candidate, e.baseline)
    parted = {tuple(item) for kind in ("any flip", "length") for item in e.found(kind).tolist()}
    compared, wrong = counts[0] - len(one), []
    for key in sorted(set(one) & set(two)):
        if key[0] in e.unjudged_steps:
            continue
        compared += 1
        fields: tuple[str, ...] = ("prompt_first", "prompt_last", "prompt_len")
        fields += () if key in parted else ("output_first", "output_last", "output_len", "specials")
        differ = [field for field in fields if one[key].get(field) != two[key].get(field)]
        if differ:
            wrong.append((key, differ[0], one[key].get(differ[0]), two[key].get(differ[0])))
    alone = len(set(one) ^ set(two))
    if wrong:
        (step, sample), field, a, b = wrong[0]
        text = (
            f"{len(wrong)} of {compared} samples differ, first step {step}, sample {sample}, {field}: {a} against {b}"
        )
        finding = Finding(
            "token boundaries", text, effect(e), details={"samples": [list(key) for key, *_ in wrong[:50]]}
        )
        return outcome(name, "confirmed", text, number=number, decides=False, findings=[finding])
    if alone and not e.unjudged_steps:
        return outcome(
            name, "not tested", f"the boundaries of {alone} samples were recorded in one run only", number=number
        )
    return outcome(
        name, "ruled out", f"first and last ids, lengths and specials agree in {compared} samples", number=number
    )


def _different_boundaries(side: Side, against: Side) -> dict[tuple[int, int], dict[str, Any]]:
    """The boundaries of one run that the other run has not, byte for byte, parsed; by (step, sample)."""
    own, theirs = side.recording.content_hashes("boundaries"), against.recording.content_hashes("boundaries")
    alone = ~np.isin(own, theirs)
    found = {}
    if alone.any():
        for (journal, line), wanted in zip(side.recording.lines("boundaries"), alone.tolist(), strict=True):
            event = side.recording.parsed(journal, line) if wanted else None
            if event is not None and isinstance(event.get("step"), int) and isinstance(event.get("sample"), int):
                found[event["step"], event["sample"]] = event
    return found


@check(SUSPICIONS[3], 3)
def experience_matrix_shapes(e: Evidence) -> Outcome:
    """Shapes, padding and longest sample of each experience batch."""
    name, number = SUSPICIONS[3], 3
    one, two = (_shapes(side) for side in e.sides)
    steps = [step for step in sorted(set(one) & set(two)) if step not in e.unjudged_steps]
    steps = [step for step in steps if e.confounded("everything", "prompts", "experience", step=step) is None]
    parted = e.notes.get("trained on other tokens", [])
    if not steps:
        return outcome(name, "not tested", "no shapes of an experience batch that both runs share", number=number)
    wrong = [step for step in steps if one[step]["shape"] != two[step]["shape"]]
    skew: dict[str, Any] = {side.name: _skew(shapes, steps) for side, shapes in zip(e.sides, (one, two), strict=True)}
    shown = "; ".join(f"{side} padding ×{s['padding']:.2f}, longest {s['longest']:g}" for side, s in skew.items())
    if wrong:
        a, b = one[wrong[0]]["shape"], two[wrong[0]]["shape"]
        why = " (the runs trained on other tokens)" if wrong[0] in parted else ""
        text = (
            f"shapes differ in {len(wrong)} of {len(steps)} steps, first step {wrong[0]}{why}: {a} against {b}; {shown}"
        )
        return outcome(
            name,
            "confirmed",
            text,
            number=number,
            decides=False,
            findings=[Finding("experience shapes", text, effect(e))],
            **skew,
        )
    return outcome(name, "ruled out", f"equal in {len(steps)} steps; {shown}", number=number, **skew)


def _shapes(side: Side) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for event in side.recording.all("shapes"):
        if event.get("phase") == "experience" and isinstance(event.get("step"), int):
            tensors = {
                key: value[:2] if value else value for key, value in (event.get("tensors") or {}).items()
            }  # without the device
            sizes = {key: event.get(key) for key in ("padded_tokens", "real_tokens", "longest", "samples")}
            entry = found.setdefault(event["step"], {"shape": [], "sizes": []})
            entry["shape"].append({**tensors, **sizes})
            entry["sizes"].append(sizes)
    return found


def _skew(shapes: dict[int, dict[str, Any]], steps: list[int]) -> dict[str, float]:
    sizes = [size for step in steps for size in shapes[step]["sizes"]]
    padded, real = (sum(size.get(key) or 0 for size in sizes) for key in ("padded_tokens", "real_tokens"))
    return {
        "padding": padded / real if real else float("nan"),
        "longest": max((size.get("longest") or 0 for size in sizes), default=0),
    }


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
        key = (str(event.get("role")), re.sub(r"[0-9a-f]{8,}|\d+", "#", str(event.get("name"))))
        found.setdefault(key, set()).add((str(event.get("backend")), int(event.get("world_size") or 0)))
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
        asked = {**(side.recording.scenario.get("engine") or {}), "dtype": model.get("dtype")}
        asked = {key: value for key, value in asked.items() if value is not None}
        infos = [event for event in engine_infos(side, e.mode) if event.get("resolved")]
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
            severity: Any = "warning" if key in _ALTERS else "info"
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
        {str(event.get("mode")): event.get("canonical") or {} for event in side.recording.all("sampling")}
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
        f"parameters agree; native stage: {len(result.tests)} tests, smallest corrected p {smallest:.2g}",
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
        f"{side} max |Δ| {bucket['max']:.2g} with cached tokens" for side, bucket in cached.items() if bucket["tokens"]
    ]
    return outcome(
        name, "ruled out", f"{'; '.join(parts)}; hit rates {shown}", number=number, findings=findings, **buckets
    )


def hit_rate(side: Side) -> float:
    """Cached over prompt tokens, as the engine counted them up to the end of the run; NaN where it did not."""
    stats = [
        event for event in side.recording.all("engine_stats") if isinstance(event.get("cache_hit_rate"), (int, float))
    ]
    return float(stats[-1]["cache_hit_rate"]) if stats else float("nan")


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
        listed = "; ".join(f"{key} {show(a)} against {show(b)}" for key, (a, b) in list(variables.items())[:8])
        findings.append(
            Finding("environment variables", f"{len(variables)} variables differ: {listed}", effect(e), where="both")
        )
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
            found |= {key: str(value) for key, value in (event.get("packages") or {}).items()}
            found["python"] = str(event.get("python"))
    return found


_OWN_TO_A_PROCESS = re.compile(r"RAY_.*|(LOCAL_)?RANK|MASTER_(ADDR|PORT)|.*_PORT|.*_PID|VIRTUAL_ENV|CONDA_.*")


def _variables(side: Side) -> dict[str, str]:
    """role.NAME -> value, without what differs between any two processes."""
    found: dict[str, str] = {}
    for event in side.recording.all("open"):
        for key, value in (event.get("env") or {}).items():
            if not _OWN_TO_A_PROCESS.fullmatch(key):
                found[f"{event.get('role')}.{key}"] = str(value)
    return found


SLOW = 5.0  # times the median step of the run
SLOW_SECONDS = 5.0


@check(SUSPICIONS[11], 11)
def sizes_and_times(e: Evidence) -> Outcome:
    """Input size and time of every step: does one take far longer than its run's median, and does its size say why?"""
    name, number = SUSPICIONS[11], 11
    from harness.parity.summary import step_seconds

    seconds = {side.name: step_seconds(side) for side in e.sides}
    sizes = {
        side.name: {
            step: sum(s.get("real_tokens") or 0 for s in entry["sizes"]) for step, entry in _shapes(side).items()
        }
        for side in e.sides
    }
    if not all(seconds.values()):
        return outcome(name, "not tested", "no step times were recorded", number=number)
    slow = []
    for side, times in seconds.items():
        later = sorted(times.values())
        median = later[len(later) // 2]
        slow += [
            (side, step, t, median)
            for step, t in times.items()
            if t > SLOW * median and t > median + SLOW_SECONDS and step != min(times)
        ]
    details: dict[str, Any] = {side: {"seconds": seconds[side], "real_tokens": sizes[side]} for side in seconds}
    if slow:
        side, step, t, median = max(slow, key=lambda one: one[2])
        tokens = sizes[side].get(step)
        text = f"the {side}'s step {step} took {t:.1f} s, its median step {median:.1f} s"
        text += (
            f"; its {tokens} tokens are {tokens / max(1, _median(list(sizes[side].values()))):.1f} times the median"
            if tokens
            else ""
        )
        return outcome(
            name,
            "confirmed",
            text,
            number=number,
            decides=False,
            findings=[Finding("slow step", text, where=side)],
            **details,
        )
    shown = ", ".join(
        f"{side} median {_median(list(times.values())):.2f} s, longest {max(times.values()):.2f} s"
        for side, times in seconds.items()
    )
    if trains(e) and not all(sizes.values()):
        return outcome(name, "not tested", f"no input sizes were recorded; {shown}", number=number, **details)
    return outcome(name, "ruled out", f"no step stands out: {shown}", number=number, **details)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")
