"""The catalogue of tamperings, by what is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from tampered_runs import FILTERED, FOREIGN, GREEDY, HALF, KEPT, ONE, OWN, PAIRS, STEPS, SWAPPED, TOLD
from tampering_changes import (
    all_tensors,
    canonical,
    ended_badly,
    every_second,
    floor_copied,
    floor_of_few,
    half_the_samples,
    in_stage,
    learners_bits,
    learners_bits_in,
    metrics,
    native_copied,
    no_role,
    nothing_of_the_environment,
    of_engine,
    off,
    one_tensor,
    one_tensor_under_its_digest,
    other_processes,
    other_prompts,
    other_times,
    other_versions,
    received_twice,
    reordered_events,
    reordered_frames,
    reordered_samples,
    resolved,
    stage_in_half,
    temperature,
    tensors_renamed,
    the_others_stage,
    token_file,
    unclosed,
    unknown_things,
    unreached,
    variant_lost,
    without_a_stage,
)
from tampering_operations import (
    Column,
    Tampering,
    column,
    events,
    exchanging,
    first_for_all,
    flat,
    frames,
    from_other,
    in_turn,
    manifest,
    together,
    without,
)

from reports.model import SUSPICIONS

OURS, THEIRS = (OWN, HALF), (FOREIGN,)


def _rollouts() -> Iterator[Tampering]:
    """What the engine drew."""
    numbers = ("zero", "constant", "NaN", "infinite", "permuted", "dropped")
    yield from column("rollout", "logprob", *numbers, "samples rotated", "shifted by one", "rows cut", "copied")
    symmetric = column("rollout", "logprob", "exchanged", ends=KEPT)  # both are the learner's to within the tolerance
    yield from symmetric
    biased = Column("rollout", "logprob").each(flat(lambda values, rng: values + np.float32(2e-5)))
    yield Tampering("logprob of rollout: 2e-5 nats more", biased, pairs=PAIRS)
    yield Tampering("logprob of rollout: 2e-5 nats more in every second token", every_second(2e-5), pairs=PAIRS)
    yield Tampering("logprob of rollout: the learner's bits", learners_bits(0))
    yield Tampering("logprob of rollout: the learner's bits but one", learners_bits(1))
    yield Tampering("logprob of rollout: the learner's bits in three of four tokens", learners_bits_in(0.75))
    unknown = together(of_engine("trtllm"), learners_bits(0))
    yield Tampering("logprob of rollout: the learner's bits, of an unknown engine", unknown)
    yield from column("rollout", "output", "zero", "permuted", "samples rotated", "rows cut", "dropped")
    yield from column("rollout", "prompt", "zero", "samples rotated", "rows cut")
    yield from column("rollout", "prompt", "dropped")
    yield Tampering("prompt of rollout: others under the old digest", other_prompts)
    yield from column("rollout", "sample", "zero", "constant")
    yield from column("rollout", "cached", "dropped", ends=TOLD, check=SUSPICIONS[8])
    yield Tampering("rollout: the token file of the other run", token_file, places=ONE)
    yield Tampering("rollout: dropped", without("rollout"))
    yield Tampering("rollout: dropped from half of the steps on", without("rollout", later=True))
    yield Tampering("rollout and experience: half of the samples", half_the_samples)
    flip = {"stop": "length", "length": "stop"}
    yield Tampering("finish of rollout: dropped", frames("rollout", finish=None))
    yield Tampering("finish of rollout: empty", frames("rollout", finish=lambda old, rng: [""] * len(old)))
    yield Tampering("finish of rollout: constant", frames("rollout", finish=lambda old, rng: ["stop"] * len(old)))
    yield Tampering(
        "finish of rollout: inverted", frames("rollout", finish=lambda old, rng: [flip[one] for one in old])
    )
    yield Tampering(
        "finish of rollout: permuted",
        frames("rollout", finish=lambda old, rng: [old[i] for i in rng.permutation(len(old))]),
    )
    yield Tampering("finish of rollout: given up", frames("rollout", finish=lambda old, rng: ["abort"] * len(old)))
    yield Tampering("weight_version of rollout: dropped", frames("rollout", weight_version=None))
    yield Tampering("weight_version of rollout: constant", frames("rollout", weight_version=0))
    yield Tampering("weight_version of rollout: one later", frames("rollout", weight_version=lambda old, rng: old + 1))
    yield Tampering("weight_version of rollout and experience: one earlier", other_versions(-1), alike=THEIRS)
    yield Tampering("mode of rollout: another", frames("rollout", mode="greedy"))
    yield Tampering("uncompared of rollout: 20 positions that are there", unreached, pairs=OURS)
    yield Tampering("guided of rollout: not", frames("rollout", guided=False), pairs=OURS, places=("candidate",))
    yield Tampering("mode of rollout: unknown", frames("rollout", mode="magic"))


def _experience() -> Iterator[Tampering]:
    """What the learner made of it."""
    for name in ("actor_logprob", "value", "advantage", "return"):
        yield from column(
            "experience", name, "zero", "constant", "permuted", alike=THEIRS if name != "actor_logprob" else ()
        )
        yield from column("experience", name, "NaN", "infinite", "rows cut")
        yield from column("experience", name, "dropped", alike=THEIRS if name != "actor_logprob" else ())
    for name in ("reference_logprob", "kl"):  # a framework whose loss has the KL has a penalty of zero
        yield from column("experience", name, "zero", alike=THEIRS if name == "kl" else ())
        yield from column("experience", name, "constant", "permuted")
        yield from column("experience", name, "dropped", alike=THEIRS)
        yield from column("experience", name, "NaN")
    yield from column("experience", "reward", "zero", "constant", "permuted", alike=THEIRS)
    yield from column("experience", "reward", "NaN")
    yield from column("experience", "reward", "infinite")
    yield from column("experience", "reward", "dropped")
    yield from column("experience", "tokens", "zero", "permuted", "rows cut", "samples rotated", "dropped")
    margins = (*OURS, GREEDY, FILTERED)
    yield from column(
        "experience", "margin", "zero", "constant", "NaN", "infinite", "rows cut", "dropped", pairs=margins
    )
    yield from column("experience", "margin", "permuted", pairs=margins, places=ONE)
    yield from column("experience", "runner_up", "zero", "constant", pairs=margins)
    yield Tampering("experience: dropped", without("experience"))
    yield Tampering("experience: dropped from half of the steps on", without("experience", later=True))
    yield Tampering("weight_version of experience: dropped", frames("experience", weight_version=None), alike=THEIRS)


def _prompts_seen() -> Iterator[Tampering]:
    """The prompts that the engine saw."""
    yield from column("rollout", "prompt_seen", "zero", "samples rotated", "rows cut", "dropped")


def _floors() -> Iterator[Tampering]:
    """The floor."""
    yield Tampering("floor: dropped", without("floor"), pairs=OURS)
    yield Tampering("floor: copied from the other run", floor_copied, pairs=OURS, places=ONE)
    yield Tampering(
        "floor: exchanged", floor_copied, KEPT, pairs=OURS, places=(SWAPPED,), exchange=exchanging(floor_copied)
    )
    yield Tampering("floor: of two samples", floor_of_few, pairs=OURS)
    for variant in ("base", "batch", "order", "prefill"):
        # What neither engine can do is no fault of one of them, and is told.
        alike = OURS if variant == "prefill" else ()
        yield Tampering(f"floor: without {variant}", variant_lost(variant), pairs=OURS, alike=alike)
    yield from column("floor", "logprob", "zero", "constant", "NaN", "infinite", "permuted", "dropped", pairs=OURS)
    yield from column("floor", "logprob", "permuted", where={"variant": "prefill"}, pairs=OURS)


def _native_stages() -> Iterator[Tampering]:
    """The native stage."""
    yield Tampering("native: copied from the other run", native_copied, pairs=OURS, places=ONE)
    yield Tampering(
        "native: dropped", without("native", "repeat", "native_score"), pairs=OURS, ends=TOLD, check="native"
    )
    yield Tampering("native_score: dropped", without("native_score"), pairs=OURS, ends=TOLD, check="native")
    yield Tampering("repeat: dropped", without("repeat"), pairs=OURS, ends=TOLD, check="native")
    yield from column("native", "logprob", "constant", "permuted", "shifted by one", pairs=OURS)
    yield from column("native", "logprob", "NaN", "dropped", pairs=OURS, ends=TOLD, check="native")
    yield from column("native", "prompt_seen", "rows cut", "samples rotated", pairs=OURS)
    for name in ("entropy", "mass_before", "processed_logprob"):
        yield from column("native_score", name, "NaN", "dropped", pairs=OURS, ends=TOLD, check="native")


def _weights() -> Iterator[Tampering]:
    """Weights and their proofs."""
    yield Tampering("weights, sent: one tensor of eight", one_tensor("learner"))
    yield Tampering("weights, received: one tensor of eight", one_tensor("received"))
    yield Tampering("weights: one tensor of eight, sent and received", one_tensor("learner", "received"))
    yield Tampering("weights: one tensor of eight, and the actor's digest of it", one_tensor_under_its_digest)
    yield Tampering("model: dropped", without("model"), pairs=OURS)
    yield Tampering("model: one tensor of eight", events("model", tensors=lambda old, rng: old[:1]), pairs=OURS)
    yield Tampering(
        "model: a tensor more", events("model", tensors=lambda old, rng: [*old, "lm_head.weight"]), pairs=OURS
    )
    yield Tampering("weights, received: under each other's names", tensors_renamed)
    yield Tampering("weights, received: of the next version", in_turn("weights", "digests", source="received"))
    yield Tampering(
        "weights: always the first",
        together(
            first_for_all("weights", "digests", source="learner"),
            first_for_all("weights", "digests", source="received"),
        ),
    )
    yield Tampering("weights, received: always the first", first_for_all("weights", "digests", source="received"))
    yield Tampering(
        "weights, received: empty",
        events("weights", {"source": "received"}, digests=lambda old, rng: dict.fromkeys(old, "")),
    )
    yield Tampering("weights: dropped", without("weights"))
    yield Tampering("sync: dropped", without("sync"))
    yield Tampering("sync: does not say that it went well", events("sync", ok=None))
    yield Tampering("sync: failed", events("sync", ok=False))
    yield Tampering("tensors of sync: 3", events("sync", tensors=3))
    yield Tampering("sync: says of every tensor that it was not sent", all_tensors("absent"))
    yield Tampering("sync: says of every tensor that it has no digest of it", all_tensors("unreported"))
    yield Tampering("weights, received: twice, and otherwise at first", received_twice)
    yield Tampering("floor: at the first weights", frames("floor", weight_version=0), pairs=(OWN, HALF))
    yield Tampering("floor: at weights that there never were", frames("floor", weight_version=9), pairs=(OWN, HALF))
    yield Tampering("proof of sync: dropped", events("sync", proof_max_delta=None, proof_mean_delta=None), pairs=OURS)
    yield Tampering("proof of sync: zero", events("sync", proof_max_delta=0.0, proof_mean_delta=0.0), pairs=OURS)
    yield Tampering(
        "proof of sync: NaN", events("sync", proof_max_delta=float("nan"), proof_mean_delta=float("nan")), pairs=OURS
    )
    yield Tampering(
        "proof of sync: always the first", first_for_all("sync", "proof_max_delta", "proof_mean_delta"), pairs=OURS
    )
    proofs = from_other("sync", "proof_max_delta", "proof_mean_delta")
    yield Tampering("proof of sync: the other run's", proofs, pairs=OURS, places=ONE)
    yield Tampering(
        "proof of sync: of few tokens",
        lambda run, other, rng: [one.update(proof_tokens=3) for one in run.events("sync")] and None,
        pairs=OURS,
    )
    yield Tampering("proof of sync: silent on the version before", events("sync", proof_behind=None), pairs=(OWN,))
    yield Tampering("proof of sync: as near to the version before", events("sync", proof_behind=2e-7), pairs=(OWN,))
    left_out = events("sync", absent=["lm_head.weight"], proof_behind=2e-7)
    yield Tampering("proof of sync: as near to the version before, a tensor left out", left_out, pairs=(OWN,))
    for name in ("exact_logprob", "behind_logprob", "behind_exact_logprob"):
        yield from column(
            "experience", name, "zero", "constant", "permuted", "NaN", "rows cut", "dropped", pairs=(HALF,)
        )


def _lifted_stages() -> Iterator[Tampering]:
    """The lifted stage: whatever half precision hides is seen there, and damage must not hide it again."""
    half = (HALF,)
    yield Tampering("lifted stage: off by 0.02 nats", in_stage(off), pairs=half)
    yield Tampering("lifted stage: none in one run", without_a_stage, pairs=half, places=ONE)
    yield Tampering("lifted stage: the other run's", the_others_stage, pairs=half, places=ONE)
    yield Tampering("lifted stage: in bfloat16 by its run.json", stage_in_half, pairs=half)
    for what, damage in (
        ("a journal that does not end", unclosed),
        ("no rollouts", without("rollout")),
        ("no log-probabilities", Column("rollout", "logprob").drop()),
        ("no floor", without("floor")),
        ("no weights", without("weights")),
        ("an engine in bfloat16", resolved(dtype="bfloat16")),
        ("an engine without a dtype", resolved(dtype=None)),
        ("with a step that was not run", manifest("lifted.stop", STEPS + 3)),
        ("said to be skipped", manifest("lifted.skipped", "no room")),
    ):
        yield Tampering(f"lifted stage: {what}", in_stage(damage), pairs=half)
        yield Tampering(f"lifted stage: off by 0.02 nats, {what}", in_stage(off, damage), pairs=half)
    yield Tampering(
        "control: frames of the lifted stage in another order", in_stage(reordered_frames), KEPT, pairs=half
    )


def _updates() -> Iterator[Tampering]:
    """The updates."""
    yield Tampering("learner: dropped", without("learner"))
    yield Tampering("learner: of the next step", in_turn("learner", "actor", "critic", "batch"))
    yield Tampering("learner: always the first", first_for_all("learner", "actor", "critic", "batch"))
    yield Tampering("actor of learner: constant", events("learner", actor="0" * 32))
    yield Tampering("critic of learner: constant", events("learner", critic="0" * 32), places=ONE)
    yield Tampering("batch of learner: constant", events("learner", batch="0" * 32), alike=THEIRS)
    yield Tampering("batch of learner: dropped", events("learner", batch=None), alike=THEIRS)
    yield Tampering("losses of step: NaN", metrics(policy_loss=float("nan"), value_loss=float("nan")))
    yield Tampering("losses of step: others", metrics(policy_loss=-0.5), places=ONE)
    yield Tampering("metrics of step: dropped", events("step", metrics=None), pairs=OURS)
    yield Tampering("means of step: others", metrics(reward_mean=9.0, length_mean=9.0), pairs=OURS)


def _configurations() -> Iterator[Tampering]:
    """Data and configuration."""
    yield Tampering("data: dropped", without("data"))
    yield Tampering("prompts of data: constant", events("data", prompts="0" * 32))
    yield Tampering("prompts of data: of the next step", in_turn("data", "prompts"))
    yield Tampering("scenario: dropped", manifest("scenario", None))
    yield Tampering("scenario: no dtype", together(manifest("scenario.model.dtype", None), resolved(dtype=None)))
    yield Tampering("scenario: another dtype", manifest("scenario.model.dtype", "bfloat16"), alike=THEIRS)
    yield Tampering("scenario: temperature 0 though coupled", temperature(0.0))
    yield Tampering("scenario: temperature NaN", temperature("nan"))
    yield Tampering("scenario: no temperature", temperature(None))
    yield Tampering("scenario: steps that were not run", manifest("scenario.steps", STEPS + 2))
    yield Tampering("scenario: another mode", manifest("scenario.rollout.mode", "greedy"))
    yield Tampering("run.json: another mode", manifest("sampling_mode", "native"))
    yield Tampering("run.json: a failed job", manifest("exit_code", 1))
    yield Tampering("run.json: another framework", manifest("framework", "other"), places=ONE)
    yield Tampering("run.json: another engine", manifest("backend", "hf"))
    yield Tampering("run.json: another seed", manifest("scenario.seed", 77), places=ONE)
    yield Tampering("run.json: other seeds than its scenario's", manifest("seeds.engine", 77), pairs=OURS)
    yield Tampering("sampling: another temperature than run.json's", canonical(temperature=0.5))
    yield Tampering("sampling: dropped", without("sampling"), ends=TOLD, check=SUSPICIONS[7])


def _engines() -> Iterator[Tampering]:
    """Engines and environments."""
    yield Tampering("engine_info: dropped", without("engine_info"))
    yield Tampering("engine_info: no version", events("engine_info", version=None))
    yield Tampering("engine_info: no engine", events("engine_info", engine=None))
    info = from_other("engine_info", "engine", "version")
    yield Tampering("engine_info: the other run's", info, places=ONE)
    yield Tampering("engine_info: exchanged", info, places=(SWAPPED,), exchange=exchanging(info))
    yield Tampering("engine_info: no dtype", resolved(dtype=None))
    yield Tampering("engine_info: another dtype", resolved(dtype="bfloat16"), TOLD, SUSPICIONS[6])
    yield Tampering("environment: nothing of it", nothing_of_the_environment)
    yield Tampering(
        "environment: another torch", events("open", packages=lambda old, rng: {**old, "torch": "1.0"}), places=ONE
    )
    yield Tampering("tokenizer: dropped", without("tokenizer"), ends=KEPT)
    for role in ("actor", "critic", "reference", "reward"):
        yield Tampering(f"{role}: no journal", no_role(role), pairs=OURS)
    yield Tampering("rollout: a journal that does not end", unclosed)
    yield Tampering("rollout: a process that ended badly", ended_badly)


def _suspicions() -> Iterator[Tampering]:
    """What only suspicions look at."""
    yield Tampering("boundaries: dropped", without("boundaries"), ends=TOLD, check=SUSPICIONS[2])
    yield Tampering("boundaries: of the next sample", in_turn("boundaries", "output_first", "output_last"))
    yield Tampering("boundaries: constant ends", events("boundaries", output_last=[7], finish="stop"))
    yield Tampering("shapes: dropped", without("shapes"), ends=TOLD, check=SUSPICIONS[3])
    yield Tampering("shapes: others", events("shapes", real_tokens=5, longest=5, samples=1), pairs=OURS)
    yield Tampering("group: dropped", without("group"), ends=TOLD, check=SUSPICIONS[5])


def _controls() -> Iterator[Tampering]:
    """Controls."""
    yield Tampering(
        "control: nothing is done to it", lambda run, other, rng: manifest("command", "again")(run, other, rng), KEPT
    )
    yield Tampering("control: samples in another order", reordered_samples, KEPT)
    yield Tampering("control: frames in another order", reordered_frames, KEPT)
    yield Tampering("control: independent events in another order", reordered_events, KEPT)
    yield Tampering("control: other process ids", other_processes, KEPT)
    yield Tampering("control: other times", other_times, KEPT)
    yield Tampering("control: events, fields and arrays that nobody knows", unknown_things, KEPT)


SUBJECTS: tuple[Callable[[], Iterator[Tampering]], ...] = (
    _rollouts, _experience, _prompts_seen, _floors, _native_stages, _weights, _lifted_stages, _updates,
    _configurations, _engines, _suspicions, _controls,
)  # fmt: skip
CATALOGUE: dict[str, Tampering] = {made.name: made for subject in SUBJECTS for made in subject()}
CASES = [(kind, name, place) for name, made in CATALOGUE.items() for kind in made.pairs for place in made.places]
