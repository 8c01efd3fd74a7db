"""Synthetic recordings in the public format: what two engines and a learner would have written, with realistic numbers.

`make` builds one side in memory; a test plants its fault there, and `write` puts it on disk. Both sides of a seed
share the truth (prompts, tokens, the learner's numbers); the engine's own noise differs by side. Float32 noise is
what real engines showed on a CPU (1e-6 at most against Transformers), bfloat16 noise what is published for GPUs
(about 0.01).
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.parity import judge
from probes import weights
from probes.format import Flat, Ragged, encode_frame, encode_lines, identity_of, seal, write_manifest
from reports.model import Cause, Check, Verdict
from scenarios.lifted import FOLDER, lifted, steps
from scenarios.ppo import advantages
from scenarios.settings import PPO, Model, Native, Rollout, Sampling, Scenario

BOS, EOS, VOCABULARY = 1, 2, 2048
GENERATE = [5, 6]  # with which the chat template ends a prompt
TENSORS = [f"model.layers.{i}.{part}.weight" for i in range(4) for part in ("self_attn.q_proj", "mlp.down_proj")]
TYPES = {
    "sample": "i8",
    "prompt": "i4",
    "prompt_seen": "i4",
    "output": "i4",
    "logprob": "f4",
    "cached": "i4",
    "seed": "i8",
    "tokens": "i4",
    "runner_up": "i4",
    **dict.fromkeys(("own", "size", "summed", "norm", "weights"), "f8"),
}


@dataclass
class Jagged:
    """Rows of unequal length, flat."""

    values: np.ndarray
    lengths: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def rows(self) -> list[np.ndarray]:
        offsets = self.offsets.tolist()
        return [self.values[start:end] for start, end in pairwise(offsets)]

    def take(self, order: Any) -> Jagged:
        order = np.asarray(order, np.int64)
        lengths = self.lengths[order]
        first = np.repeat(self.offsets[order] - np.cumsum(lengths) + lengths, lengths)  # of a row, less where it goes
        return Jagged(self.values[first + np.arange(len(first))], lengths)

    def copy(self) -> Jagged:
        return Jagged(self.values.copy(), self.lengths.copy())


def jagged(rows: list[Any]) -> Jagged:
    arrays = [np.asarray(row) for row in rows]
    return Jagged(np.concatenate(arrays) if arrays else np.zeros(0), np.array([len(row) for row in arrays], np.int64))


@dataclass
class FrameRecord:
    kind: str
    step: int
    fields: dict[str, Any]
    arrays: dict[str, np.ndarray | Jagged]

    def take(self, order: list[int]) -> None:
        """Keep these rows, in this order."""
        self.arrays = {
            name: value.take(order) if isinstance(value, Jagged) else value[order]
            for name, value in self.arrays.items()
        }
        if "finish" in self.fields:
            self.fields["finish"] = [self.fields["finish"][i] for i in order]


@dataclass
class Log:
    """What one process wrote."""

    role: str
    pid: int
    rank: int = 0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    frames: list[FrameRecord] = field(default_factory=list)
    closed: bool = True
    late: bool = False  # begun when the run had ended, for the native stage

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))


@dataclass
class Recording:
    manifest: dict[str, Any]
    logs: dict[str, Log]
    made: dict[Any, Any] = field(default_factory=dict)  # what its witnesses were made of; {}: they are left as they are
    stage: Recording | None = None  # of a run in half precision: its lifted stage

    def events(self, kind: str, **where: Any) -> Iterator[dict[str, Any]]:
        for log in self.logs.values():
            for name, fields in log.events:
                if name == kind and all(fields.get(key) == value for key, value in where.items()):
                    yield fields

    def frames(self, kind: str, **where: Any) -> Iterator[FrameRecord]:
        for log in self.logs.values():
            for frame in log.frames:
                if frame.kind == kind and all(frame.fields.get(key) == value for key, value in where.items()):
                    yield frame

    def frame(self, kind: str, step: int) -> FrameRecord:
        return next(frame for frame in self.frames(kind) if frame.step == step)

    def drop(self, *kinds: str) -> None:
        """Forget every event and frame of these kinds."""
        for log in self.logs.values():
            log.events = [event for event in log.events if event[0] not in kinds]
            log.frames = [frame for frame in log.frames if frame.kind not in kinds]

    def write(self, path: Path) -> Path:
        if self.made:
            _tell_again(self)
        write_manifest(path, self.manifest)
        run, checksum = identity_of(path)
        if self.stage is not None:
            self.stage.write(path / FOLDER)
        begun = {"run": run, "manifest": checksum}
        for folder in ("events", "tokens"):
            (path / folder).mkdir(exist_ok=True)
        for stem, log, beside in self._by_file():
            with open(path / "events" / f"{stem}.jsonl", "wb") as stream:
                events = [(kind, {**fields, **begun} if kind == "open" else fields) for kind, fields in log.events]
                if log.closed:
                    counts = {
                        "frames": len(log.frames),
                        "frame_kinds": Counter(frame.kind for frame in log.frames),
                        "events": Counter(kind for kind, _ in log.events),
                        "beside": beside,
                    }
                    events.append(("close", {"ok": True, "reason": "", **counts}))
                stream.write(encode_lines((1000 * seq, kind, fields) for seq, (kind, fields) in enumerate(events)))
            if log.frames:
                with open(path / "tokens" / f"{stem}.bin", "wb") as stream:
                    for number, frame in enumerate(log.frames):
                        stream.write(encoded(frame, log, number, run))
        if self.manifest.get("index"):
            seal(path)
        return path

    def _by_file(self) -> Iterator[tuple[str, Log, list[str]]]:
        """Each log with the stem of its files, and the journals that lay beside its own when it was closed.

        As the harness runs: the processes of the run close together, those of the native stage come after them.
        """
        stems: list[str] = []
        for log in self.logs.values():
            stem = f"{log.role}-{log.rank}-{log.pid}"
            stems.append(stem if stem not in stems else f"{stem}-2")
        early = [stem for stem, log in zip(stems, self.logs.values(), strict=True) if not log.late]
        for stem, log in zip(stems, self.logs.values(), strict=True):
            there = stems[: stems.index(stem) + 1] if log.late else early
            yield stem, log, sorted(f"{name}.jsonl" for name in there if name != stem)


def encoded(frame: FrameRecord, log: Log, number: int | None = None, run: str = "") -> bytes:
    arrays: dict[str, Flat | Ragged] = {}
    for name, value in frame.arrays.items():
        dtype = TYPES.get(name, "f4")
        if isinstance(value, Jagged):
            arrays[name] = Ragged.joined(np.ascontiguousarray(value.values, f"<{dtype}"), value.offsets, dtype)
        else:
            arrays[name] = Flat.of(np.ascontiguousarray(value, f"<{dtype}"), dtype)
    return encode_frame(frame.kind, frame.step, log.role, log.rank, frame.fields, arrays, seq=number, run=run)


def text(ids: Any) -> str:
    """What these ids decode to: a word each."""
    return "".join(f" w{int(one)}" for one in ids)


def other_prompts(recording: Recording, step: int) -> None:
    """Every prompt of a step begins with another id, as it was sent and as the engine saw it."""
    arrays = recording.frame("rollout", step).arrays
    for name in ("prompt", "prompt_seen"):
        column = _jagged(arrays[name])
        column.values[column.offsets[:-1]] += 1


def digest(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def prompts_digest(prompt: Jagged) -> str:
    """As `scenarios.ppo.trainer` makes it."""
    parts = {"tokens": prompt.values.astype(np.int32), "lengths": prompt.lengths.astype(np.int32)}
    return weights.combine(weights.digests(parts))


def batch_digest(prompt: Jagged, arrays: dict[str, np.ndarray | Jagged]) -> str:
    """As `scenarios.ppo.experience` makes it, of an `experience` frame."""
    rows = zip(prompt.rows(), _jagged(arrays["tokens"]).rows(), strict=True)
    parts = {"tokens": np.concatenate([np.concatenate(pair) for pair in rows]).astype(np.int32)}
    parts["reward"] = np.asarray(arrays["reward"], np.float32)
    for name in ("advantage", "return", "value"):
        parts[name] = _jagged(arrays[name]).values.astype(np.float32)
    parts["logprob"] = _jagged(arrays["actor_logprob"]).values.astype(np.float32)
    return weights.combine(weights.digests(parts))


def _jagged(column: np.ndarray | Jagged) -> Jagged:
    assert isinstance(column, Jagged)
    return column


def held(plan: Scenario, version: int, other: bool = False) -> dict[str, str]:
    """Digests of the actor's tensors in one version."""
    return {name: digest(name, version, plan.seed, other) for name in TENSORS}


def scenario(
    *,
    steps: int = 6,
    prompts: int = 4,
    group: int = 4,
    max_tokens: int = 24,
    dtype: str = "float32",
    seed: int = 0,
    train: bool = True,
    mode: Any = "coupled",
    temperature: float = 1.0,
    train_batch_size: int = 16,
) -> Scenario:
    return Scenario(
        name="synthetic",
        steps=steps,
        seed=seed,
        train=train,
        model=Model(path="tiny", dtype=dtype),  # type: ignore[arg-type]
        rollout=Rollout(prompts, group, mode),
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        ppo=PPO(train_batch_size=train_batch_size),
        native=Native(samples=256, margin=0.4),
    )


_drawn: dict[str, bytes] = {}  # recordings by what they were drawn with


def make(
    side: str,
    plan: Scenario | None = None,
    *,
    noise: float | None = None,
    native: bool = True,
    floor: bool = True,
    environment: int = 1,
    parted: int | None = None,
) -> Recording:
    """One side of a run. `noise`: standard deviation of the engine's log-probabilities about the learner's, in nats.

    `parted`: the step from which on this side's learner, and so everything it draws, is another one.
    Each is drawn once a process: a copy takes a tenth of the time.
    """
    plan = plan or scenario()
    options = {"noise": noise, "native": native, "floor": floor, "environment": environment, "parted": parted}
    drawn_with = repr((side, plan, options))
    if drawn_with not in _drawn:
        _drawn[drawn_with] = pickle.dumps(_draw(side, plan, **options))
    recording: Recording = pickle.loads(_drawn[drawn_with])
    return recording


def _draw(
    side: str,
    plan: Scenario,
    *,
    noise: float | None,
    native: bool,
    floor: bool,
    environment: int,
    parted: int | None,
) -> Recording:
    own = np.random.default_rng([7, plan.seed, int(side == "candidate")])
    noise = noise if noise is not None else {"float32": 3e-7, "bfloat16": 0.008, "float16": 0.003}[plan.model.dtype]
    pid = 4000 if side == "baseline" else 5000
    backend = "vllm" if side == "baseline" else "sglang"
    trainer, actor, rollout = Log("trainer", pid), Log("actor", pid + 1), Log("rollout", pid + 2)
    logs = {"trainer": trainer, "actor": actor, "rollout": rollout}
    others = ("critic", "reference", "reward") if plan.train else ()
    logs |= {role: Log(role, pid + 10 + at) for at, role in enumerate(others)}
    for rank in range(1, plan.ppo.world_size if plan.train else 1):
        logs |= {
            f"{role} {rank}": Log(role, pid + 10 * rank + 10 + at, rank) for at, role in enumerate(("actor", *others))
        }
    for log in logs.values():
        _opened(log, side, engine=log is rollout, environment=environment)
    _described(rollout, plan, backend, plan.rollout.mode)
    trainer.event(
        "tokenizer", size=VOCABULARY, bos=BOS, eos=EOS, pad=0, specials=[0, BOS, EOS], generation_prompt=GENERATE
    )
    actor.event("model", tensors=list(TENSORS))
    actor.event("group", name="default", backend="gloo", rank=0, world_size=1, members=[0])
    _synced(trainer, rollout, plan, 0, 0, own)
    if floor:
        _floor(rollout, plan, noise, own)
    for step in range(plan.steps):
        truth = Step.of(plan, step, other=parted is not None and step >= parted)
        _rolled_out(rollout, plan, truth, noise, own, guided=plan.guided and side == "candidate")
        _experience(trainer, plan, truth)
        if plan.train:
            other = parted is not None and step + 1 >= parted
            _trained(trainer, plan, truth, other)
            if plan.ppo.world_size > 1:
                _by_ranks(logs, plan, truth)
            _synced(trainer, rollout, plan, step, step + 1, own, other)
        trainer.event("span", name="step", start_ns=0, dur_ns=int(2e9 + own.integers(1e8)), ok=True, step=step)
        trainer.event("probe_cost", step=step, self_ns=2_000_000 * (step + 1))
    if native:
        logs["native"], logs["scores"] = Log("rollout", pid + 2, late=True), Log("trainer", pid, 1, late=True)
        for log in (logs["native"], logs["scores"]):
            _opened(log, side, engine=log is logs["native"], environment=environment)
        _described(logs["native"], plan, backend, "native")
        _native(logs["native"], logs["scores"], plan, own, noise, backend)
    manifest = {
        "scenario": plan.to_json(),
        "backend": backend,
        "side": side,
        "seeds": {"scenario": plan.seed, "engine": plan.engine.seed},
        "command": f"harness parity --{side}",
        "sampling_mode": plan.rollout.mode,
        "guided": plan.guided and side == "candidate",
        "hardware": {"cpu": "fast", "gpus": []},
        "index": True,
    }
    recording = Recording(manifest, logs)
    recording.made = dict(_told_of(recording))
    return recording


def promise(recording: Recording) -> Recording:
    """Add what each process of the harness' own runs records besides, and let run.json promise all kinds."""
    for log in recording.logs.values():
        if log.role == "rollout":
            log.event("call", name="generate", step=-1, ok=True, message="", seconds=0.1)
        elif log.role != "trainer":
            log.event("group", name=log.role, backend="gloo", rank=log.rank, world_size=1, members=[log.rank])
            log.event("span", name=f"{log.role}_forward", start_ns=0, dur_ns=1, ok=True, step=0)
    drawn = recording.logs["rollout"]
    recording.logs["trainer"].events += [event for event in drawn.events if event[0] == "boundaries"]
    drawn.events = [event for event in drawn.events if event[0] != "boundaries"]
    recording.manifest["records"] = sorted({kind for log in recording.logs.values() for kind, _ in log.events})
    return recording


def stage(side: str, plan: Scenario, **options: Any) -> Recording:
    """The lifted stage of one side of `plan`, sound: its first step at the initial weights, its last at the run's."""
    made, window = make(side, lifted(plan), native=False, **options), steps(plan)
    first = window.start
    for log in made.logs.values():
        synced = [one for one in log.events if one[0] in ("weights", "sync")]
        for _, event in synced:
            event["version"] += first
        for kind, event in copy.deepcopy(synced) if plan.train else ():
            event |= {"step": first, "version": first + 1}
            if kind == "sync":
                event |= {name: event[name] * 1.01 for name in ("proof_max_delta", "proof_mean_delta")}
            else:
                event["digests"] = held(plan, plan.steps)
            log.events.append((kind, event))
        for frame in log.frames:
            last = first + 1 if plan.train else first
            frame.fields["weight_version"] = last if frame.kind == "floor" else max(first, frame.step)
    made.manifest["lifted"] = {"held": plan.model.dtype, "first_step": first, "stop": window.stop}
    made.made = {}
    return made


def _told_of(run: Recording) -> Iterator[tuple[Any, Any]]:
    """What a recorder tells twice: (event kind, step or version, sample) -> fields that its events then have."""
    frames = list(run.frames("rollout"))
    once = {step for step, number in Counter(frame.step for frame in frames).items() if number == 1}
    for frame in frames:
        output, prompt, finish = frame.arrays.get("output"), frame.arrays.get("prompt"), frame.fields.get("finish")
        samples = frame.arrays.get("sample")
        if isinstance(prompt, Jagged) and isinstance(samples, np.ndarray) and frame.step in once:
            prompt = prompt.take(np.argsort(samples, kind="stable"))
            yield ("data", frame.step, -1), {"prompts": prompts_digest(prompt)}
            made = next((copy.copy(one) for one in run.frames("experience") if one.step == frame.step), None)
            wanted = {"tokens", "reward", "advantage", "return", "value", "actor_logprob"}
            if made is not None and wanted <= set(made.arrays) and len(made.arrays["reward"]) == len(prompt.lengths):
                order = np.argsort(made.arrays["sample"], kind="stable").tolist()
                made.fields = {}
                made.take(order)
                yield ("learner", frame.step, -1), {"batch": batch_digest(prompt, made.arrays)}
        if isinstance(output, Jagged) and isinstance(samples, np.ndarray) and finish:
            for sample, row, reason in zip(samples, output.rows(), finish, strict=True):
                ends = {"output_first": row[:8].tolist(), "output_last": row[-8:].tolist(), "output_len": len(row)}
                yield ("boundaries", frame.step, int(sample)), {**ends, "finish": reason}
    for event in run.events("weights", source="learner"):
        digests = event.get("digests")
        if isinstance(digests, dict) and all(one and isinstance(one, str) for one in digests.values()):
            yield ("learner", event["version"] - 1, -2 - len(digests)), {"actor": weights.combine(digests)}


def _tell_again(run: Recording) -> None:
    """Events that tell again what a test has changed say it as their recorder would."""
    changed = {key: told for key, told in _told_of(run) if key in run.made and run.made[key] != told}
    for kind, step, sample in changed:
        for event in run.events(kind, step=step):
            if sample < 0 or event.get("sample") == sample:
                before = dict(event)
                event.update({name: one for name, one in changed[kind, step, sample].items() if name in event})
                if event.get("text_seam") and event["output_first"] != before["output_first"]:
                    event["text_seam"] = text([*event["prompt_last"], *event["output_first"]])
                    event["text_last"] = text(event["output_last"])


@dataclass
class Step:
    """What is true of one step whatever the engine: tokens and the learner's numbers."""

    step: int
    sample: np.ndarray
    prompt: Jagged
    output: Jagged
    finish: list[str]
    logprob: np.ndarray
    margin: np.ndarray
    runner_up: np.ndarray
    reward: np.ndarray
    rng: np.random.Generator

    @staticmethod
    def of(plan: Scenario, step: int, *, other: bool = False) -> Step:
        data, rng = np.random.default_rng([plan.seed, step, 0]), np.random.default_rng([plan.seed, step, 1 + other])
        prompts, group, longest = (
            plan.rollout.prompts_per_step,
            plan.rollout.samples_per_prompt,
            plan.sampling.max_tokens,
        )
        n = prompts * group
        prompt_lengths = np.repeat(data.integers(8, 15, prompts), group)
        prompt = jagged(
            [
                np.concatenate([[BOS], data.integers(7, VOCABULARY, length), GENERATE])
                for length in prompt_lengths[::group]
            ]
        )
        lengths = np.minimum(rng.geometric(1.5 / longest, n), longest)
        total = int(lengths.sum())
        tokens = rng.integers(3, VOCABULARY, total)
        stopped = lengths < longest
        tokens[(np.cumsum(lengths) - 1)[stopped]] = EOS
        logprob = -rng.exponential(1.2, total).astype(np.float32)
        margin = (rng.exponential(1.0, total) + 1e-3).astype(np.float32)
        if plan.rollout.mode == "greedy":  # a token takes what the others have not: no gap is smaller than that says
            margin += np.maximum(0.0, logprob - np.log(-np.expm1(logprob)))
        return Step(
            step,
            step * n + np.arange(n),
            prompt.take(np.repeat(np.arange(prompts), group)),
            Jagged(tokens, lengths),
            ["stop" if one else "length" for one in stopped],
            logprob,
            margin,
            (tokens + 1 + rng.integers(0, 50, total)) % VOCABULARY,
            rng.normal(0.1 * step, 1.0, n).astype(np.float32),
            rng,
        )

    def like(self, values: np.ndarray) -> Jagged:
        return Jagged(values, self.output.lengths.copy())


def _opened(log: Log, side: str, *, engine: bool, environment: int) -> None:
    packages = {"torch": "2.13.0", "numpy": "2.4.6", "transformers": "5.19.0", "ray": "2.60.0"}
    if engine:
        packages |= {"vllm": "0.32.0"} if side == "baseline" else {"sglang": "0.5.23", "transformers": "5.17.1"}
    log.event(
        "open",
        wall_ns=(log.pid + 500 * log.late) * 10**9,
        host="node-1",
        pid=log.pid,
        ppid=1,
        role=log.role,
        rank=log.rank,
        world_size=1,
        python="3.11.9",
        packages=packages,
        env={"OMP_NUM_THREADS": str(environment)},
    )
    log.event(
        "environment",
        packages=packages,
        env={"OMP_NUM_THREADS": str(environment)},
        libraries=[],
        withheld=[],
        device={"torch": "2.13.0", "threads": 1},
        machine={"cpu": "fast", "cpus": 2, "gpus": []},
    )


def _described(log: Log, plan: Scenario, backend: str, mode: str) -> None:
    resolved = {
        "dtype": plan.model.dtype,
        "seed": plan.engine.seed,
        "max_model_len": plan.engine.max_model_len,
        "enforce_eager": True,
        "prefix_caching": True,
        "max_num_seqs": plan.engine.max_num_seqs,
        "kv_cache_tokens": plan.engine.kv_cache_tokens,
        "end_ids": [EOS],
    }
    log.event(
        "engine_info",
        engine=backend,
        version="0.32.0" if backend == "vllm" else "0.5.23",
        asked={},
        resolved=resolved,
        replaced=["sampler"] if mode == "coupled" else [],
        pids=[log.pid],
    )
    log.event("sampling", canonical=plan.to_json()["sampling"], native={"temperature": 0.0}, mode=mode)


def _synced(
    trainer: Log,
    rollout: Log,
    plan: Scenario,
    step: int,
    version: int,
    own: np.random.Generator,
    other: bool = False,
) -> None:
    digests = held(plan, version, other)
    trainer.event("weights", step=step, version=version, source="learner", digests=dict(digests))
    rollout.event("weights", step=step, version=version, source="received", digests=dict(digests))
    trainer.event(
        "sync",
        step=step,
        version=version,
        ok=True,
        message="",
        seconds=0.05,
        tensors=len(TENSORS),
        bytes=1 << 20,
        mismatched=[],
        absent=[],
        proof_max_delta=float(own.uniform(5e-7, 9.5e-7)),
        proof_mean_delta=float(own.uniform(1e-7, 2e-7)),
        **({"proof_behind": 0.08} if version else {}),
    )


def _floor(rollout: Log, plan: Scenario, noise: float, own: np.random.Generator) -> None:
    truth = Step.of(plan, 0)
    for variant in ("base", "batch", "order", "prefill"):
        logprob = truth.logprob + own.normal(0, noise / 3, len(truth.logprob))
        rollout.frames.append(
            FrameRecord(
                "floor",
                0,
                {"variant": variant, "weight_version": plan.steps if plan.train else 0},
                {"sample": truth.sample.copy(), "output": truth.output.copy(), "logprob": truth.like(logprob)},
            )
        )


def _rolled_out(
    rollout: Log, plan: Scenario, truth: Step, noise: float, own: np.random.Generator, *, guided: bool
) -> None:
    logprob = truth.logprob + own.normal(0, noise, len(truth.logprob))
    output = truth.output.copy()
    if guided and noise > 1e-4:  # coarse numbers flip where the two best are close
        flips = truth.margin < np.abs(own.normal(0, noise * 2, len(truth.margin)))
        output.values[flips] = truth.runner_up[flips]
        logprob[flips] -= truth.margin[flips]
    version = truth.step if plan.train else 0
    n = len(truth.sample)
    cached = np.where(np.arange(n) % plan.rollout.samples_per_prompt > 0, truth.prompt.lengths - 1, 0)
    rollout.frames.append(
        FrameRecord(
            "rollout",
            truth.step,
            {"weight_version": version, "mode": plan.rollout.mode, "guided": guided, "finish": list(truth.finish)},
            {
                "sample": truth.sample.copy(),
                "prompt": truth.prompt.copy(),
                "prompt_seen": truth.prompt.copy(),
                "output": output,
                "logprob": truth.like(logprob),
                "cached": cached,
            },
        )
    )
    for i, (sample, prompt, row) in enumerate(zip(truth.sample, truth.prompt.rows(), output.rows(), strict=True)):
        rollout.event(
            "boundaries",
            step=truth.step,
            sample=int(sample),
            finish=truth.finish[i],
            prompt_first=prompt[:8].tolist(),
            prompt_last=prompt[-8:].tolist(),
            output_first=row[:8].tolist(),
            output_last=row[-8:].tolist(),
            prompt_len=len(prompt),
            output_len=len(row),
            specials=sorted({BOS, EOS} & {*prompt.tolist(), *row.tolist()}),
            text_first=text(prompt[:8]),
            text_seam=text([*prompt[-8:], *row[:8]]),
            text_last=text(row[-8:]),
        )
    rollout.event(
        "engine_stats",
        step=truth.step,
        prompt_tokens=float(truth.prompt.lengths.sum()),
        cached_tokens=float(cached.sum()),
        cache_hit_rate=float(cached.sum() / truth.prompt.lengths.sum()),
        kv_usage=0.1,
        running=0.0,
        waiting=0.0,
    )
    rollout.event("span", name="rollout", start_ns=0, dur_ns=int(9e8), ok=True, step=truth.step)


def learned_from(
    plan: Scenario, kl: Jagged, value: Jagged, reward: np.ndarray, *, penalty: float | None = None
) -> tuple[Jagged, Jagged]:
    """Return the advantages and returns that a learner makes of its numbers; `penalty`: in place of `ppo.kl_coef`."""
    ppo, rows = plan.ppo, value.rows()
    per_token = advantages.token_rewards(kl.rows(), reward, ppo.kl_coef if penalty is None else penalty)
    advantage, returns = advantages.gae(per_token, rows, gamma=ppo.gamma, lam=ppo.gae_lambda)
    return jagged(advantages.whiten(advantage)), jagged(returns)


def learn_again(plan: Scenario, experience: FrameRecord) -> None:
    """Make the advantages and returns of a changed experience anew, as its trainer would have."""
    arrays = experience.arrays
    kl, value, reward = _jagged(arrays["kl"]), _jagged(arrays["value"]), np.asarray(arrays["reward"])
    arrays["advantage"], arrays["return"] = learned_from(plan, kl, value, reward)


def _experience(trainer: Log, plan: Scenario, truth: Step) -> None:
    total = len(truth.logprob)
    reference = (truth.logprob + truth.rng.normal(0, 0.05, total)).astype(np.float32)
    kl, value = truth.like(truth.logprob - reference), truth.like(truth.rng.normal(0, 1, total).astype(np.float32))
    advantage, returns = learned_from(plan, kl, value, truth.reward)
    half = _half(plan, truth) if plan.model.dtype != "float32" else {}
    trainer.frames.append(
        FrameRecord(
            "experience",
            truth.step,
            {"weight_version": truth.step if plan.train else 0},
            {
                "sample": truth.sample.copy(),
                "tokens": truth.output.copy(),
                "actor_logprob": truth.like(truth.logprob.copy()),
                "reference_logprob": truth.like(reference),
                "kl": kl,
                "value": value,
                "advantage": advantage,
                "return": returns,
                "reward": truth.reward.copy(),
                "margin": truth.like(truth.margin.copy()),
                "runner_up": truth.like(truth.runner_up.copy()),
                **half,
            },
        )
    )
    n, longest, real = (
        len(truth.sample),
        int(truth.output.lengths.max()),
        int((truth.prompt.lengths + truth.output.lengths).sum()),
    )
    width = int(truth.prompt.lengths.max()) + longest
    numbers = truth.sample.tolist()
    trainer.event("data", step=truth.step, prompts=prompts_digest(truth.prompt), samples=numbers)
    trainer.event(
        "shapes",
        step=truth.step,
        phase="experience",
        tensors={"tokens": [[n, width], "int64", "cpu"]},
        padded_tokens=n * width,
        real_tokens=real,
        longest=longest,
        samples=n,
    )
    trainer.event("span", name="experience", start_ns=0, dur_ns=int(3e8), ok=True, step=truth.step)


def _by_ranks(logs: dict[str, Log], plan: Scenario, truth: Step) -> None:
    """What each rank of the learner records of itself: the samples that it was asked about and trained on, in one
    mini-batch an epoch, and its gradients, whose sums are made up."""
    ranks, epochs = range(plan.ppo.world_size), range(plan.ppo.epochs)
    parts = np.array_split(np.arange(len(truth.sample)), len(ranks))
    own = np.random.default_rng([plan.seed, truth.step, 8]).normal(0, 1, (len(ranks), len(epochs), len(TENSORS)))
    experience = next(one for one in logs["trainer"].frames if one.kind == "experience" and one.step == truth.step)
    for role, column in (
        ("actor", "actor_logprob"),
        ("reference", "reference_logprob"),
        ("critic", "value"),
        ("reward", "reward"),
    ):
        for rank, part in zip(ranks, parts, strict=True):
            log, answers = logs[role if not rank else f"{role} {rank}"], experience.arrays[column]
            values = answers.take(part).values if isinstance(answers, Jagged) else answers[part]
            answer = np.ascontiguousarray(values, np.float32)
            log.event(
                "share", step=truth.step, phase=f"{role}_forward", samples=truth.sample[part].tolist(),
                digest=weights.digest(answer), sorted=weights.digest(np.sort(answer)),
            )  # fmt: skip
            if role not in ("actor", "critic"):
                continue
            lengths = truth.output.lengths
            fields = {
                "role": role, "parameters": list(TENSORS), "digest": digest(role, truth.step),
                "samples": [truth.sample[part].tolist()] * len(epochs),
                "tokens": [int(lengths[part].sum())] * len(epochs),
                "divisors": [int(lengths.sum())] * len(epochs),
            }  # fmt: skip
            arrays = {
                "own": own[rank].ravel(), "size": np.full(own[rank].size, 9.0), "summed": own.sum(axis=0).ravel(),
                "norm": np.ones(len(epochs)), "weights": 10.0 * truth.step + np.arange(len(epochs) + 1),
            }  # fmt: skip
            log.frames.append(FrameRecord("updates", truth.step, fields, arrays))


def _half(plan: Scenario, truth: Step) -> dict[str, Jagged]:
    """What a learner in half precision says in float32, and of the weights before the last update."""
    rng, total = np.random.default_rng([plan.seed, truth.step, 7]), len(truth.logprob)
    rounding, moved = {"bfloat16": 0.008, "float16": 0.003}[plan.model.dtype], rng.normal(0, 0.1, total)
    exact = truth.logprob + rng.normal(0, rounding, total)
    found = {"exact_logprob": exact}
    if truth.step:
        found["behind_exact_logprob"] = exact + moved
        found["behind_logprob"] = exact + moved + rng.normal(0, rounding, total)
    return {name: truth.like(values.astype(np.float32)) for name, values in found.items()}


def _trained(trainer: Log, plan: Scenario, truth: Step, other: bool) -> None:
    made = next(frame.arrays for frame in trainer.frames if (frame.kind, frame.step) == ("experience", truth.step))
    kl = made["kl"]
    assert isinstance(kl, Jagged)
    trainer.event("span", name="train", start_ns=0, dur_ns=int(5e8), ok=True, step=truth.step)
    trainer.event(
        "step",
        step=truth.step,
        metrics={
            "reward_mean": float(truth.reward.mean()),
            "kl_mean": float(kl.values.mean()),
            "policy_loss": -0.01,
            "value_loss": 0.4,
            "length_mean": float(truth.output.lengths.mean()),
            "length_max": int(truth.output.lengths.max()),
            "truncated_fraction": truth.finish.count("length") / len(truth.finish),
            "tokens": int(truth.output.lengths.sum()),
            "seconds": 2.0,
        },
    )
    trainer.event(
        "learner",
        step=truth.step,
        actor=weights.combine(held(plan, truth.step + 1, other)),
        critic=digest("critic", plan.seed, truth.step, other),
        batch=batch_digest(truth.prompt, made),
    )


def _native(log: Log, scores: Log, plan: Scenario, own: np.random.Generator, noise: float, backend: str) -> None:
    engine_seed, request_seed = (0, "honoured") if backend == "vllm" else (1, "ignored")
    shared = np.random.default_rng([plan.seed, 99])
    prompts, group, longest = 64, 4, plan.sampling.max_tokens
    prompt = jagged([np.concatenate([[BOS], shared.integers(3, VOCABULARY, 10)]) for _ in range(prompts)])
    rate = np.repeat(shared.uniform(1.0, 3.0, prompts), group) / longest
    n = prompts * group
    lengths = np.minimum(own.geometric(rate), longest)
    tokens = own.integers(3, VOCABULARY, int(lengths.sum()))
    learner = -own.exponential(np.repeat(shared.uniform(0.8, 1.6, prompts), group).repeat(lengths)).astype(np.float32)
    finish = ["stop" if length < longest else "length" for length in lengths]
    whole = prompt.take(np.repeat(np.arange(prompts), group))
    sample = 10**6 + np.arange(n)
    log.frames.append(
        FrameRecord(
            "native",
            -1,
            {
                "weight_version": plan.steps if plan.train else 0,
                "mode": "native",
                "finish": finish,
                "engine_seed": engine_seed,
            },
            {
                "sample": sample,
                "prompt": whole,
                "prompt_seen": whole.copy(),
                "output": Jagged(tokens, lengths),
                "logprob": Jagged(learner + own.normal(0, noise, len(learner)), lengths.copy()),
                "cached": np.zeros(n, np.int64),
            },
        )
    )
    reward = (0.05 * lengths + own.normal(0, 1, n)).astype(np.float32)
    again = FrameRecord(
        "repeat", -1, {**log.frames[-1].fields, "request_seed": request_seed}, dict(log.frames[-1].arrays)
    )  # fmt: skip
    again.take(list(range(16)))
    log.frames.append(again)
    scores.frames.append(
        FrameRecord(
            "native_score",
            -1,
            {"weight_version": plan.steps if plan.train else 0, "fits": []},
            {
                "sample": sample.copy(),
                "learner_logprob": Jagged(learner, lengths.copy()),
                "reward": reward,
                **_read_by_the_learner(lengths),
            },
        )
    )


def _read_by_the_learner(lengths: np.ndarray) -> dict[str, Jagged]:
    """What a learner says of samples that were drawn as asked: each token one of sixteen that are equally likely."""
    total, choices = int(lengths.sum()), 16
    before = np.random.default_rng(5).integers(0, choices, total) / choices
    columns = {
        "processed_logprob": np.full(total, -np.log(choices)),
        "entropy": np.full(total, np.log(choices)),
        "varentropy": np.zeros(total),
        "mass_before": before,
        "outside": np.zeros(total),
    }
    return {name: Jagged(values.astype(np.float32), lengths.copy()) for name, values in columns.items()}


# --- what a test asks of a verdict ------------------------------------------------------------------


def put(folder: Path, baseline: Recording, candidate: Recording, **options: Any) -> Verdict:
    """Write both and judge them."""
    return judge(baseline.write(folder / "baseline"), candidate.write(folder / "candidate"), **options)


def pair(**options: Any) -> tuple[Recording, Recording]:
    return make("baseline", **options), make("candidate", **options)


def check(verdict: Verdict, name: str) -> Check:
    assert verdict.parity is not None
    return next(one for one in verdict.parity.checks if one.name == name)


def causes(verdict: Verdict) -> list[str]:
    return [cause.name for cause in verdict.causes]


def cause(verdict: Verdict, name: str) -> Cause:
    return next(one for one in verdict.causes if one.name == name)
