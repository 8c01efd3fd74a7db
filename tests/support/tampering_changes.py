"""Changes that no single operation is: what a fault, a careless edit or another sound writer would leave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from recordings import Jagged, Recording, digest
from tampering_operations import Change, events, manifest, set_fields, together, without

from probes import weights


def learners_bits(but: int) -> Change:
    """The learner's own log-probabilities as the engine's, but for so many tokens of the run."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        left = but
        for frame in run.frames("rollout"):
            truth = run.frame("experience", frame.step).arrays["actor_logprob"]
            assert isinstance(truth, Jagged)
            found = truth.copy()
            if left:
                found.values[0], left = found.values[0] + 3e-7, left - 1
            frame.arrays["logprob"] = found

    return change


def every_second(by: float) -> Change:
    """So many nats more in every second token."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames("rollout"):
            found = frame.arrays["logprob"]
            assert isinstance(found, Jagged)
            found.values = found.values + np.float32(by) * (np.arange(len(found.values)) % 2)

    return change


def unreached(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Every step says that its engine did not reach 20 positions of the guide, and has them."""
    for frame in run.frames("rollout"):
        frame.fields["uncompared"] = 20


def learners_bits_in(share: float) -> Change:
    """The learner's own log-probabilities in this share of the tokens, drawn at random."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames("rollout"):
            found, truth = frame.arrays["logprob"], run.frame("experience", frame.step).arrays["actor_logprob"]
            assert isinstance(found, Jagged) and isinstance(truth, Jagged)
            copied = rng.random(len(found.values)) < share
            found.values = np.where(copied, truth.values, found.values)

    return change


def of_engine(name: str) -> Change:
    """An engine of this name draws."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        run.manifest["backend"] = name
        for info in run.events("engine_info"):
            info["engine"] = name

    return change


def other_prompts(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Other prompts of equal lengths, sent and seen, whose digests and boundaries nobody made anew."""
    for frame in run.frames("rollout"):
        for name in ("prompt", "prompt_seen"):
            found = frame.arrays[name]
            assert isinstance(found, Jagged)
            frame.arrays[name] = Jagged(np.where(found.values > 10, found.values + 1, found.values), found.lengths)


def one_tensor(*sources: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event in run.events("weights"):
            if event["source"] in sources:
                event["digests"] = dict(list(event["digests"].items())[:1])
        for sync in run.events("sync"):
            if len(sources) > 1 and "tensors" in sync:
                sync["tensors"] = 1

    return change


def one_tensor_under_its_digest(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """One tensor of eight, and the actor's digest made of it anew: the recording of a model with one tensor."""
    one_tensor("learner", "received")(run, other, rng)
    made = {
        event["version"] - 1: weights.combine(event["digests"]) for event in run.events("weights", source="learner")
    }
    for event in run.events("learner"):
        event["actor"] = made[event["step"]]


def tensors_renamed(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """The digests that arrived, each under the next tensor's name."""
    for event in run.events("weights", source="received"):
        found = event["digests"]
        event["digests"] = dict(zip(found, [*list(found.values())[1:], next(iter(found.values()))], strict=True))


def all_tensors(field: str) -> Change:
    """Every sync lists all of its tensors in `field`, while their digests arrive."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for sync in run.events("sync"):
            sync[field] = [
                name for event in run.events("weights", version=sync["version"]) for name in event["digests"]
            ]

    return change


def received_twice(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Before the digests of each version others arrive under the same names."""
    for log in run.logs.values():
        log.events = [
            one
            for kind, event in log.events
            for one in (
                *(
                    [(kind, event | {"digests": {name: digest("other", name) for name in event["digests"]}})]
                    if kind == "weights" and event["source"] == "received"
                    else []
                ),
                (kind, event),
            )
        ]


def token_file(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """The engine's token file is a copy of the other run's."""
    run.logs["rollout"].frames = copy.deepcopy(other.logs["rollout"].frames)
    if not run.logs["rollout"].frames:
        return
    for mine, theirs in zip(run.frames("rollout"), other.frames("rollout"), strict=True):
        mine.fields["guided"] = theirs.fields["guided"]


def native_copied(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("native", "repeat", "native_score"):
        for mine, theirs in zip(run.frames(kind), other.frames(kind), strict=True):
            mine.arrays = copy.deepcopy(theirs.arrays)
            mine.fields["finish"] = copy.deepcopy(theirs.fields.get("finish"))


def floor_copied(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for mine, theirs in zip(run.frames("floor"), other.frames("floor"), strict=True):
        mine.arrays = copy.deepcopy(theirs.arrays)


def floor_of_few(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for frame in run.frames("floor"):
        frame.take([0, 1])


def variant_lost(name: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for log in run.logs.values():
            log.frames = [frame for frame in log.frames if frame.fields.get("variant") != name]

    return change


def no_role(role: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        run.logs.pop(role, None)

    return change


def unclosed(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.logs["rollout"].closed = False


def ended_badly(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    log = run.logs["rollout"]
    log.closed = False
    log.event("close", ok=False, reason="killed", frames=len(log.frames))


def within(kind: str, field: str) -> Callable[..., Change]:
    """Other values in a field of every event of a kind."""

    def with_(**values: Any) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for event in run.events(kind):
                set_fields(event[field], values, rng)

        return change

    return with_


resolved, metrics = within("engine_info", "resolved"), within("step", "metrics")
canonical = within("sampling", "canonical")  # what the engine says that it was asked; run.json is as it was


def temperature(value: Any) -> Change:
    return together(manifest("scenario.sampling.temperature", value), canonical(temperature=value))


def half_the_samples(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("rollout", "experience"):
        for frame in run.frames(kind):
            frame.take(list(range(len(frame.arrays["sample"]) // 2)))


def nothing_of_the_environment(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    without("environment")(run, other, rng)
    events("open", packages=None, env=None)(run, other, rng)


def other_versions(by: int) -> Change:
    """Every frame says another weight version, rollouts and experience alike."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for kind in ("rollout", "experience"):
            for frame in run.frames(kind):
                frame.fields["weight_version"] = max(0, frame.fields["weight_version"] + by)

    return change


# --- controls ---------------------------------------------------------------------------------------


def reordered_samples(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("rollout", "experience", "floor"):
        for frame in run.frames(kind):
            frame.fields.pop("order", None)
            frame.take(rng.permutation(len(frame.arrays["sample"])).tolist())


def reordered_events(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Events of different kinds that no clock orders: each process writes its kinds one after the other."""
    for log in run.logs.values():
        first, rest = log.events[:1], log.events[1:]
        log.events = first + sorted(rest, key=lambda one: one[0])


def reordered_frames(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for log in run.logs.values():
        log.frames = [log.frames[i] for i in rng.permutation(len(log.frames))]


def other_processes(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for log in run.logs.values():
        log.pid += 700
        for kind, event in log.events:
            if kind == "open":
                event["pid"] = log.pid


def other_times(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind, name in (("span", "start_ns"), ("span", "dur_ns"), ("sync", "seconds"), ("probe_cost", "self_ns")):
        for event in run.events(kind):
            event[name] = event[name] * 2 + 1
    for opened in run.events("open"):
        opened["wall_ns"] += 12345


def unknown_things(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.manifest["tracker"] = "none"
    for log in run.logs.values():
        log.event("note", text="anything")
        log.event("of our own", value=1)
    for frame in run.frames("rollout"):
        frame.fields["unknown"] = 1
        frame.arrays["unknown"] = np.zeros(len(frame.arrays["sample"]), np.float32)


def in_stage(*changes: Change) -> Change:
    """The same of the run's lifted stage."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        if run.stage is not None and other.stage is not None:
            together(*changes)(run.stage, other.stage, rng)

    return change


def off(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """A fault that bfloat16 hides."""
    for frame in run.frames("rollout"):
        logprob = frame.arrays["logprob"]
        assert isinstance(logprob, Jagged)
        logprob.values = logprob.values + np.float32(0.02)


def stage_in_half(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    assert run.stage is not None
    run.stage.manifest["scenario"]["model"]["dtype"] = "bfloat16"


def without_a_stage(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.stage = None


def the_others_stage(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.stage = copy.deepcopy(other.stage)
