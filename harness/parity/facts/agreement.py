"""Does a recording agree with itself? What it says twice must be the same twice.

A recording holds several witnesses of one fact: a digest and what it was made of, a mean and its terms, the ends of a
sample and the sample. Where two of them disagree, one is wrong, nobody knows which, and the run never passes. What a
framework's job records once is compared with nothing: its digests and means may be of other things than ours.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.parity.facts.evidence import Evidence, Side, weight_version
from harness.parity.facts.experience import ROUNDINGS, SPACING
from harness.parity.facts.replayed import replayed
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from probes import weights
from probes.format import mapping, names, number

SAME_MEAN = 1e-5  # relative, and absolute below one: float32 sums over a batch in another order
MOST_BOUNDARIES = 4096  # of a run; more are sampled evenly, for each line has to be parsed


def contradictions(e: Evidence) -> list[str]:
    """Every kind of disagreement within either run, with the first place of each."""
    return [
        f"the {side.name}'s recording contradicts itself: {what}"
        for side in e.sides
        for what in dict.fromkeys(first for first in (*_first_of_each(side.recording), _unreached(e, side)) if first)
    ]


def _unreached(e: Evidence, side: Side) -> str:
    """More positions of a guide that were not reached than the samples lack."""
    if side.name not in e.rollouts.odd_unreached:
        return ""
    step, told, lacking = e.rollouts.odd_unreached[side.name]
    return f"step {step} says that {told} positions of a guide were not reached, and its samples lack {lacking}"


def _first_of_each(recording: Recording) -> Iterator[str]:
    for found in (
        _prompts,
        _weights,
        _counts,
        _arrivals,
        _settings,
        _ends,
        *((_estimate,) if _foreign(recording) else _OURS),
    ):
        yield next(found(recording), "")


def _foreign(recording: Recording) -> bool:
    return bool(recording.manifest.get("framework"))


# --- what every recording says twice ------------------------------------------------------------------


def _prompts(recording: Recording) -> Iterator[str]:
    """Digests of the data against the prompts that were rolled out."""
    if recording.hashed_by != weights.HASH:
        return
    for event in recording.all("data"):
        step, told = event.get("step"), event.get("prompts")
        if not isinstance(step, int) or not isinstance(told, str) or not isinstance(event.get("samples"), list):
            continue
        table = recording.table("rollout", step) if step in recording.steps("rollout") else None
        rows = table.rows("prompt") if table is not None else None
        if table is None or rows is None:
            continue
        place = {int(sample): row for row, sample in enumerate(table.sample)}
        wanted = [place.get(sample) for sample in event["samples"] if isinstance(sample, int)]
        if not all(row is not None for row in wanted):
            yield f"the prompts of step {step} are not of the samples that its data names"
            continue
        prompts = [rows.row(row) for row in wanted if row is not None]
        if told not in prompt_digests(prompts):
            yield f"the prompts of step {step} are not those of which its data has the digest"


def prompt_digests(prompts: list[np.ndarray]) -> tuple[str, str]:
    """The digest as our trainer makes it, and as the adapters of other frameworks do (docs/reference/format.md)."""
    parts = {
        "tokens": np.concatenate([np.zeros(0, np.int32), *prompts]).astype(np.int32),
        "lengths": np.array([len(row) for row in prompts], np.int32),
    }
    plain = repr([row.tolist() for row in prompts]).encode()
    return weights.combine(weights.digests(parts)), hashlib.blake2b(plain, digest_size=16).hexdigest()


def _weights(recording: Recording) -> Iterator[str]:
    """The digest of the learner's weights after an update against those of the tensors that it then sent."""
    if recording.hashed_by != weights.HASH:
        return
    sent: dict[tuple[Any, Any], dict[str, str]] = {}
    for event in recording.all("weights"):
        if event.get("source") == "learner" and isinstance(event.get("version"), int):
            known = sent.setdefault((event["file"], event["version"]), {})
            known.update({str(name): str(one) for name, one in mapping(event.get("digests")).items()})
    for event in recording.all("learner"):
        step = event.get("step")
        if not isinstance(step, int):
            continue
        found = sent.get((event["file"], step + 1))
        if found and event.get("actor") is not None and weights.combine(found) != event["actor"]:
            yield (
                f"the {len(found)} tensors of weight version {step + 1} are not those of which the learner has the "
                f"digest after step {step}"
            )


def _counts(recording: Recording) -> Iterator[str]:
    """How many tensors a sync says that it sent, against those that the learner has a digest of. A sync that says more
    than there are digests is not proven (`weightsync`)."""
    sent: dict[int, set[str]] = {}
    for event in recording.all("weights"):
        if event.get("source") == "learner" and isinstance(event.get("version"), int):
            sent.setdefault(event["version"], set()).update(mapping(event.get("digests")))
    for event in recording.all("sync"):
        version, told = event.get("version"), event.get("tensors")
        if told is None or not isinstance(version, int):
            continue
        digested = len(sent.get(version, set()).difference(names(event.get("absent"))))
        if not number(told) >= digested:
            yield f"the sync of weight version {version} says that it sent {told} tensors, and {digested} have digests"


def _arrivals(recording: Recording) -> Iterator[str]:
    """What arrived, by one engine, of each version: a tensor once, and none that the sync did not send or has no
    digest of."""
    arrived: dict[int, dict[tuple[str, str], str]] = {}
    for event in recording.all("weights"):
        version = event.get("version")
        if event.get("source") != "received" or not isinstance(version, int):
            continue
        known = arrived.setdefault(version, {})
        for name, digest in mapping(event.get("digests")).items():
            if digest and known.setdefault((str(event.get("file")), name), digest) != digest:
                yield f"{name} of weight version {version} arrived twice, and otherwise the second time"
    for event in recording.all("sync"):
        version = event.get("version")
        there = {name for _, name in arrived.get(version, {})} if isinstance(version, int) else set()
        for field, said in (("absent", "was not sent"), ("unreported", "has no digest of the engine")):
            for name in sorted(there.intersection(names(event.get(field))))[:1]:
                yield f"{name} of weight version {version} {said} by its sync, and arrived"


def _settings(recording: Recording) -> Iterator[str]:
    """What the engine says that it was asked against run.json."""
    asked = mapping(recording.scenario.get("sampling"))
    for event in recording.all("sampling"):
        for name, value in mapping(event.get("canonical")).items():
            if name in asked and _plain(value) != _plain(asked[name]):
                yield f"{name} was asked as {asked[name]!r} by run.json and as {value!r} by the engine"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def _ends(recording: Recording) -> Iterator[str]:
    """The recorded ends of samples against the samples."""
    total = recording.count("boundaries")
    every = max(1, math.ceil(total / MOST_BOUNDARIES))
    tables: dict[int, tuple[Table, dict[int, int]]] = {}
    for at, (journal, line) in enumerate(recording.lines("boundaries")):
        event = recording.parsed(journal, line) if at % every == 0 else None
        step = event.get("step") if event is not None else None
        if event is None or not isinstance(step, int) or not isinstance(event.get("sample"), int):
            continue
        if step not in tables:
            table = recording.table("rollout", step) if step in recording.steps("rollout") else None
            if table is None:
                continue
            tables[step] = table, {int(sample): row for row, sample in enumerate(table.sample)}
        table, rows = tables[step]
        row = rows.get(event["sample"])
        wrong = _end_of(event, table, row) if row is not None else ""
        if wrong:
            yield f"{wrong} of sample {event['sample']} in step {step} is not that of its boundaries"


def _end_of(event: dict[str, Any], table: Table, row: int) -> str:
    """Which end of a sample its `boundaries` event tells otherwise; empty where none."""
    output, prompts = table.rows("output"), [table.rows("prompt"), table.rows("prompt_seen")]
    if output is not None and not _is_end(event, "output", output.row(row)):
        return "the output"
    known = [rows.row(row) for rows in prompts if rows is not None]
    if known and not any(_is_end(event, "prompt", ids) for ids in known):
        return "the prompt"
    told = event.get("finish")
    if table.finish is not None and told and table.finish[row] and told != table.finish[row]:
        return "the finish reason"
    return ""


def _is_end(event: dict[str, Any], what: str, ids: np.ndarray) -> bool:
    first, last, length = (event.get(f"{what}_{part}") for part in ("first", "last", "len"))
    if isinstance(first, list) and first != ids[: len(first)].tolist():
        return False
    if isinstance(last, list) and last != ids[len(ids) - len(last) :].tolist():
        return False
    return not isinstance(length, int) or length == len(ids)


def _estimate(recording: Recording) -> Iterator[str]:
    """A framework's KL penalty is one of `_ESTIMATORS` of two columns beside it in every step; zero, where its loss has
    the KL instead."""
    spacing = SPACING.get(str(mapping(recording.scenario.get("model")).get("dtype")), 0.0)
    fitting = {*_ESTIMATORS}
    for step in recording.steps("experience"):
        table = recording.table("experience", step)
        rows = [table.rows(name) for name in ("kl", "actor_logprob", "reference_logprob")] if table is not None else []
        columns = [one.values.astype(np.float64) for one in rows if one is not None]
        if len(columns) < 3 or len({len(one) for one in columns}) > 1:
            continue  # said by `gaps`
        kl, actor, reference = (one[np.isfinite(columns).all(axis=0)] for one in columns)
        ratio, scale = actor - reference, np.maximum(1.0, np.maximum(np.abs(actor), np.abs(reference)))
        for name in sorted(fitting):
            made = _ESTIMATORS[name](np.clip(ratio, -700, 700))
            off = np.abs(np.clip(kl, -CLAMP, CLAMP) - np.clip(made, -CLAMP, CLAMP))
            allowed = 2.0**-24 * scale * (1 + np.abs(ratio) + np.abs(made)) + spacing * np.abs(made)
            if not (off <= ROUNDINGS * allowed).all():
                fitting -= {name}
        if not fitting:
            yield f"kl of step {step} does not follow from actor_logprob and reference_logprob by k1, k2 or k3"
            return


# Schulman, "Approximating KL divergence" (2020); OpenRLHF's `compute_approx_kl`, which clamps to 10 nats.
_ESTIMATORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": lambda ratio: ratio,
    "k2": lambda ratio: ratio * ratio / 2,
    "k3": lambda ratio: np.exp(-ratio) - 1 + ratio,
    "none": np.zeros_like,
}
CLAMP = 10.0  # to which frameworks clamp a KL estimate (verl core_algos.py, low_var_kl)


# --- what the harness' own runs say twice -------------------------------------------------------------


def _versions(recording: Recording) -> Iterator[str]:
    """The version that a step was trained at against the newest one that the learner had before it. Frameworks may
    train at an older one by right."""
    told_of = [event for event in recording.all("weights") if event.get("source") == "learner"]
    pairs = [(event.get("step"), event.get("version")) for event in told_of]
    made = [(step, version) for step, version in pairs if isinstance(step, int) and isinstance(version, int)]
    for step in recording.steps("experience") if made else ():
        table = recording.table("experience", step)
        told = weight_version(table) if table is not None else None
        before = [version for at, version in made if at < step]
        if told is not None and before and told != max(before):
            yield f"step {step} was trained at weight version {told}, and the learner was at {max(before)}"


def _batches(recording: Recording) -> Iterator[str]:
    """Digests of what was trained on against the experience."""
    for step, agrees in batches(recording):
        if not agrees:
            yield f"the experience of step {step} is not that of which the learner has the digest"


def batches(recording: Recording) -> Iterator[tuple[int, bool]]:
    """(step, whether the learner's digest of what it trained on is that of the recorded prompts and experience)."""
    if recording.hashed_by != weights.HASH:
        return
    order = {event.get("step"): event.get("samples") for event in recording.all("data")}
    for event in recording.all("learner"):
        step, told = event.get("step"), event.get("batch")
        if not isinstance(step, int) or not told:
            continue
        tables = [recording.table(kind, step) for kind in ("rollout", "experience")]
        if tables[0] is None or tables[1] is None:
            continue
        made = batch_digest(tables[0], tables[1], order.get(step))
        if made is not None:
            yield step, made == told


def batch_digest(rollout: Table, experience: Table, order: Any) -> str | None:
    """The digest of a batch as `scenarios.ppo.experience` makes it; None where a part of it was not recorded."""
    prompts, tokens, reward = rollout.rows("prompt"), experience.rows("tokens"), experience.flat("reward")
    names = {"logprob": "actor_logprob", "advantage": "advantage", "return": "return", "value": "value"}
    columns = {ours: experience.rows(theirs) for ours, theirs in names.items()}
    if prompts is None or tokens is None or reward is None or None in columns.values():
        return None
    trained = {int(sample): row for row, sample in enumerate(experience.sample)}
    drawn = {int(sample): row for row, sample in enumerate(rollout.sample)}
    known = isinstance(order, list) and set(order) == set(trained)
    samples = order if known else experience.sample.tolist()
    if not set(samples) <= set(drawn):
        return None
    rows = np.array([trained[sample] for sample in samples], int)
    ids = [part for s in samples for part in (prompts.row(drawn[s]), tokens.row(trained[s]))]
    parts = {"tokens": np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32), "reward": reward[rows]}
    parts |= {name: _taken(column, rows) for name, column in columns.items() if column is not None}
    return weights.combine(weights.digests(parts))


def _taken(column: Rows, rows: np.ndarray) -> np.ndarray:
    if np.array_equal(rows, np.arange(len(column))):
        return column.values
    return np.concatenate([column.values[:0], *(column.row(int(row)) for row in rows)])


def _penalty(recording: Recording) -> Iterator[str]:
    """The KL penalty is the difference of two columns beside it."""
    for step in recording.steps("experience"):
        table = recording.table("experience", step)
        found = [table.rows(name) for name in ("kl", "actor_logprob", "reference_logprob")] if table is not None else []
        if not found or any(one is None for one in found):
            continue
        kl, actor, reference = (one.values for one in found if one is not None)
        if len(kl) == len(actor) == len(reference) and not np.allclose(
            kl, actor - reference, atol=1e-6, equal_nan=True
        ):
            yield f"kl of step {step} is not actor_logprob less reference_logprob"


def _means(recording: Recording) -> Iterator[str]:
    """What the trainer says of a step against its samples."""
    for event in recording.all("step"):
        step, told = event.get("step"), mapping(event.get("metrics"))
        made = recording.table("experience", step) if isinstance(step, int) else None
        drawn = recording.table("rollout", step) if isinstance(step, int) else None
        if made is None or drawn is None:
            continue
        for name, value in _terms(made, drawn):
            if name in told and not math.isclose(number(told[name]), value, rel_tol=SAME_MEAN, abs_tol=SAME_MEAN):
                yield f"{name} of step {step} is {number(told[name]):.6g}, and its samples give {value:.6g}"


def _terms(made: Table, drawn: Table) -> Iterator[tuple[str, float]]:
    reward, tokens, kl = made.flat("reward"), made.rows("tokens"), made.rows("kl")
    cached = drawn.flat("cached")
    if reward is not None and np.isfinite(reward).all():
        yield "reward_mean", float(reward.mean(dtype=np.float64))
    if kl is not None and len(kl.values) and np.isfinite(kl.values).all():
        yield "kl_mean", float(kl.values.mean(dtype=np.float64))
    if tokens is not None and len(tokens):
        yield "length_mean", float(tokens.lengths.mean())
        yield "length_max", float(tokens.lengths.max())
        yield "tokens", float(tokens.lengths.sum())
    if drawn.finish is not None and not drawn.fields.get("guided"):  # a guided run ends as its guide did
        yield "truncated_fraction", float((drawn.finish == "length").mean())
    if cached is not None:
        yield "cached_tokens", float(cached.sum())


def _shapes(recording: Recording) -> Iterator[str]:
    """Sizes of the experience batch against the samples."""
    for event in recording.labelled("shapes", "experience"):
        step = event.get("step")
        if event.get("phase") != "experience" or not isinstance(step, int):
            continue
        made, drawn = recording.table("experience", step), recording.table("rollout", step)
        tokens, prompts = (made.rows("tokens") if made else None), (drawn.rows("prompt") if drawn else None)
        if tokens is None or prompts is None:
            continue
        real = int(tokens.lengths.sum() + prompts.lengths.sum())
        for name, value in (("samples", len(tokens)), ("real_tokens", real)):
            if name in event and number(event[name]) != value:
                yield f"{name} of the batch of step {step} is {event[name]!r}, and its samples give {value}"


def _seeds(recording: Recording) -> Iterator[str]:
    """The seeds of run.json against its scenario."""
    told, scenario = mapping(recording.manifest.get("seeds")), recording.scenario
    for name, value in (("scenario", scenario.get("seed")), ("engine", mapping(scenario.get("engine")).get("seed"))):
        if name in told and told[name] != value:
            yield f"the {name}'s seed is {told[name]!r} by its seeds and {value!r} by its scenario"


def _guided(recording: Recording) -> Iterator[str]:
    """Whether a run followed a guide, by run.json against its frames. A replay follows what it replays, and what an
    engine's own sampler draws follows nobody."""
    told = recording.manifest.get("guided")
    for step in recording.steps("rollout") if isinstance(told, bool) and replayed(recording) is None else ():
        table = recording.table("rollout", step)
        if table is None or table.fields.get("mode") == "native":
            continue
        if bool(table.fields.get("guided")) != told:
            by_run, by_frames = ("guided", "not guided") if told else ("not guided", "guided")
            yield f"the run was {by_run} by run.json, and step {step} was {by_frames} by its rollouts"


def _floors(recording: Recording) -> Iterator[str]:
    """A floor is measured at the last weights that were sent; of a run that is looked at in part those are not seen."""
    if recording.window is not None:
        return
    last = max((one["version"] for one in recording.all("sync") if isinstance(one.get("version"), int)), default=None)
    for step in recording.steps("floor") if last is not None else ():
        table = recording.table("floor", step)
        told = table.fields.get("weight_version") if table is not None else None
        if told is not None and told != last:
            yield f"the floor was measured with weight version {told!r}, and the last that was sent is {last}"


_OURS = (_versions, _batches, _penalty, _means, _shapes, _seeds, _guided, _floors)
