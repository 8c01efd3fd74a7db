"""Two synthetic recordings of any size in the public format, written step by step: what a diff is measured on.

Every step repeats the tokens and the learner's numbers of the first with other sample numbers; each engine has noise
of its own. So a pair of 100 million tokens is written within a step's memory.
"""

from __future__ import annotations

import dataclasses
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import recordings

from probes import weights
from probes.format import encode_line, seal, write_manifest


@dataclasses.dataclass(frozen=True)
class Size:
    """`prompts` times `group` samples a step, each of at most `longest` tokens, a third of them cut there."""

    tokens: int
    events: int
    prompts: int = 125
    group: int = 8
    longest: int = 256

    @property
    def plan(self) -> Any:
        return recordings.scenario(steps=1, prompts=self.prompts, group=self.group, max_tokens=self.longest)


def write(folder: Path, size: Size) -> dict[str, int]:
    """Write `folder/baseline` and `folder/candidate`; returns tokens, events, steps and bytes of one of them."""
    first = recordings.Step.of(size.plan, 0)
    steps = max(1, round(size.tokens / len(first.logprob)))
    counts = {"tokens": 0, "events": 0, "steps": steps}
    for side in ("baseline", "candidate"):
        counts |= _write_side(folder / side, side, size, steps)
    files = [file for file in (folder / "baseline").rglob("*") if file.is_file()]
    return {**counts, "bytes": sum(file.stat().st_size for file in files)}


def _write_side(folder: Path, side: str, size: Size, steps: int) -> dict[str, int]:
    truth = recordings.Step.of(size.plan, 0)
    learner = truth.rng.bit_generator.state  # both sides' learners draw the same numbers
    tokens, streams = 0, _Streams(folder)
    original = recordings.Step.of
    whole = dataclasses.replace(size.plan, steps=steps)
    try:
        for step in range(steps):
            recordings.Step.of = staticmethod(_repeated(truth, learner, step))  # type: ignore[method-assign]
            made = recordings.make(side, dataclasses.replace(size.plan, steps=1), native=False, floor=step == 0)
            tokens += len(truth.logprob)
            last = step == steps - 1
            for name, log in made.logs.items():
                if step:
                    log.events = [one for one in log.events if one[0] not in _ONCE and one[1].get("version") != 0]
                for event in log.events:
                    _number(event[0], event[1], step)
                sent = [one for kind, one in log.events if kind == "weights" and one.get("source") == "learner"]
                for told in (one for kind, one in log.events if kind == "learner"):
                    told["actor"] = weights.combine(sent[-1]["digests"])
                for frame in log.frames:
                    frame.step = step
                    frame.fields["weight_version"] = steps if frame.kind == "floor" else step
                spans = (size.events - streams.events) // (steps - step) - len(log.events) if name == "actor" else 0
                filler = [(_span if i % 2 else _shapes)(step, i) for i in range(max(0, spans))]
                streams.append(log, [*log.events, *filler], last=last)
    finally:
        recordings.Step.of = original  # type: ignore[method-assign]
        streams.close()
    write_manifest(folder, {**made.manifest, "scenario": whole.to_json()})
    seal(folder)
    return {"tokens": tokens, "events": streams.events}


_ONCE = ("open", "environment", "engine_info", "sampling", "group", "tokenizer")


def _repeated(truth: Any, learner: Any, step: int) -> Any:
    def of(plan: Any, index: int, *, other: bool = False) -> Any:
        rng = np.random.default_rng()
        rng.bit_generator.state = learner
        return dataclasses.replace(truth, step=0, sample=truth.sample + step * len(truth.sample), rng=rng)

    return of


def _number(kind: str, fields: dict[str, Any], step: int) -> None:
    """An event of a run of one step as that of `step` of a longer run."""
    if "step" in fields:
        fields["step"] = step
    if kind in ("weights", "sync") and fields["version"]:
        fields["version"] += step
        if "proof_mean_delta" in fields:  # no two proofs round alike
            fields["proof_mean_delta"] *= 1 + 1e-6 * step
        if "digests" in fields:
            fields["digests"] = {name: f"{step:08x}{value[8:]}" for name, value in fields["digests"].items()}


def _span(step: int, index: int) -> tuple[str, dict[str, Any]]:
    return "span", {"name": "actor_forward", "start_ns": index * 1000, "dur_ns": 1_234_567, "ok": True, "step": step}


def _shapes(step: int, index: int) -> tuple[str, dict[str, Any]]:
    tensors = {"input_ids": [[8, 96 + index % 64], "int64", "cpu"], "logits": [[1024, 2048], "float32", "cpu"]}
    sizes = {"padded_tokens": 1024, "real_tokens": 700 + index % 64, "longest": 128, "samples": 8}
    return "shapes", {"phase": "actor_minibatch", "tensors": tensors, "step": step, **sizes}


class _Streams:
    """The files of one recording, open from the first step to the last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("events", "tokens"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}
        self._counts: dict[str, list[int]] = {}
        self._checksums: dict[str, int] = {}
        self.events = 0

    def append(self, log: Any, events: list[tuple[str, dict[str, Any]]], *, last: bool) -> None:
        stem = f"{log.role}-{log.rank}-{log.pid}"
        count = self._counts.setdefault(stem, [0, 0])
        count[1] += len(log.frames)
        if last:
            events = [*events, ("close", {"ok": True, "reason": "", "frames": count[1]})]
        stream = self._file(f"events/{stem}.jsonl")
        for seq, (kind, fields) in enumerate(events, count[0]):
            line = encode_line(seq, 1000 * seq, kind, fields, before=self._checksums.get(stem, 0))
            self._checksums[stem] = zlib.crc32(line, self._checksums.get(stem, 0))
            stream.write(line)
        count[0] += len(events)
        self.events += len(events)
        for frame in log.frames:
            self._file(f"tokens/{stem}.bin").write(recordings.encoded(frame, log))

    def _file(self, name: str) -> Any:
        if name not in self._files:
            self._files[name] = open(self._folder / name, "wb")  # noqa: SIM115
        return self._files[name]

    def close(self) -> None:
        for file in self._files.values():
            file.close()


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), Size(int(sys.argv[2]), int(sys.argv[3]))))
