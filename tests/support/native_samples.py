"""Native stages of a toy model in the public format: drawn as one `Hypothesis` says, scored by the learner as asked.

The model's logits depend on the prompt and the position alone, so that the whole truth is a table. The learner's part
is the code that scores real stages.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import torch
from recordings import FrameRecord, Recording, jagged

from scenarios.ppo import native_fit, native_scores
from scenarios.ppo.batches import Sample
from scenarios.ppo.native_scores import Drawn, Hypothesis
from scenarios.settings import Sampling

PROMPTS, GROUP, LENGTH, VOCABULARY, END = 64, 6, 12, 32, 2
PLAIN = Sampling()
MARGIN = 0.4  # of the tests: 155 samples a side are enough


@cache
def model() -> np.ndarray:
    """Logits [prompt, position, vocabulary]."""
    logits = np.random.default_rng(3).normal(0, 1.5, (PROMPTS, LENGTH, VOCABULARY)).astype(np.float32)
    logits[:, :, END] += 1.0
    return logits


@dataclasses.dataclass(frozen=True)
class Stage:
    """One side. `shift`: how far off the engine's logits are; `clones`: samples of a prompt are one; `repeats`:
    share of the samples drawn twice that are alike; `exchanged`: each of those answers for the next one;
    `limit`: no sample is longer; `reported`: the learner's column that
    the engine reports, or "drawn": what it drew with.
    """

    did: Hypothesis
    asked: Sampling = PLAIN
    seed: int = 0
    clones: bool = False
    repeats: float = 1.0
    exchanged: bool = False
    limit: int = LENGTH
    request_seed: str = "honoured"
    reported: str = "learner_logprob"


@cache
def probabilities(how: Hypothesis) -> np.ndarray:
    """[prompt, position, vocabulary], where no penalty reads what was drawn."""
    shape = model().shape
    rows = torch.from_numpy(model()).reshape(-1, VOCABULARY).repeat_interleave(VOCABULARY, dim=0)
    early = torch.arange(LENGTH).repeat_interleave(VOCABULARY).repeat(PROMPTS)
    target = torch.arange(VOCABULARY).repeat(PROMPTS * LENGTH)
    return native_scores.read(Drawn(rows, target, early), how, (END,)).processed.exp().numpy().reshape(shape)


def frames(stage: Stage, version: int) -> list[FrameRecord]:
    """The `native`, `repeat` and `native_score` frames of one side."""
    rng = np.random.default_rng([17, stage.seed])
    samples: list[Sample] = []
    finish: list[str] = []
    for prompt in range(PROMPTS):
        ids = (1, 3 + prompt % 20, 3 + prompt // 20)
        cumulated = np.cumsum(probabilities(stage.did)[prompt], axis=1)
        for copy in range(GROUP):
            drawn = [int(np.searchsorted(row, rng.random() * row[-1], side="right")) for row in cumulated]
            response = tuple(drawn[: drawn.index(END) + 1] if END in drawn else drawn)
            if stage.clones and copy:
                response = samples[-1].response
            response = response[: stage.limit]
            finish.append("stop" if response[-1] == END else "length")
            samples.append(Sample(10**6 + len(samples), ids, response))
    held = [(one, torch.from_numpy(model()[i // GROUP][: len(one.response)])) for i, one in enumerate(samples)]
    views: list[dict[str, Any]] = [native_scores.scores(*one, stage.asked, (END,)) for one in held]
    raw = [logits.log_softmax(-1).gather(-1, torch.tensor(one.response)[:, None])[:, 0].numpy() for one, logits in held]
    fits = native_fit.Fitter(held, (END,)).fits(stage.asked) if native_scores.suspect(views) else []
    number, lengths = np.array([one.number for one in samples]), np.array([len(one.response) for one in samples])
    if stage.reported == "drawn":
        tables = [np.log(probabilities(stage.did)[i // GROUP]) for i in range(len(samples))]
        reported = [
            table[np.arange(len(one.response)), list(one.response)] for table, one in zip(tables, samples, strict=True)
        ]
    else:
        reported = raw if stage.reported == "learner_logprob" else [view[stage.reported] for view in views]
    noise = [row + rng.normal(0, 3e-7, len(row)) for row in reported]
    drawn_arrays = {
        "sample": number,
        "prompt": jagged([one.prompt for one in samples]),
        "prompt_seen": jagged([one.prompt for one in samples]),
        "output": jagged([one.response for one in samples]),
        "logprob": jagged(noise),
        "cached": np.zeros(len(samples), np.int64),
    }
    native = FrameRecord("native", -1, {"weight_version": version, "finish": finish, "engine_seed": 0}, drawn_arrays)
    few = list(range(0, len(samples), len(samples) // 16))[:16]
    repeat = FrameRecord(
        "repeat", -1, {"weight_version": version, "finish": list(finish), "request_seed": stage.request_seed},
        dict(drawn_arrays),
    )  # fmt: skip
    repeat.take(few)
    kept = round(stage.repeats * len(few))
    again = [row if i < kept else (row + 1) % VOCABULARY for i, row in enumerate(repeat.arrays["output"].rows())]  # type: ignore[union-attr]
    repeat.arrays["output"] = jagged(again[1:] + again[:1] if stage.exchanged else again)
    fields = {"weight_version": version, "fits": [dataclasses.asdict(fit) for fit in fits]}
    arrays: dict[str, Any] = {"sample": number.copy(), "learner_logprob": jagged(raw)}
    arrays |= {name: jagged([view[name] for view in views]) for name in views[0]}
    arrays["reward"] = (0.1 * lengths + rng.normal(0, 1, len(samples))).astype(np.float32)
    return [native, repeat, FrameRecord("native_score", -1, fields, arrays)]


def give(recording: Recording, *draws: Stage) -> None:
    """Replace the native stage of a recording by these draws."""
    version = next(recording.frames("native")).fields["weight_version"]
    recording.drop("native", "repeat", "native_score")
    for number, stage in enumerate(draws, 1):
        drawn, repeat, score = (dataclasses.replace(frame, step=-number) for frame in frames(stage, version))
        for frame in (drawn, score):
            frame.arrays["sample"] = np.asarray(frame.arrays["sample"]) + 10**6 * (number - 1)
        recording.logs["native"].frames += [drawn, repeat] if number == 1 else [drawn]
        recording.logs["trainer"].frames.append(score)
