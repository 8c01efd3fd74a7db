"""Both runs' samples for the browser in the page, read from the recordings when the page is made.

Everything is packed into one array of bytes, compressed, in base64. Token texts are not recorded, so ids are shown,
and a prompt that was hashed stays hashed.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.format import PREFIX, FormatError, Frame, Ragged, decode_header, frame_of, number, read_extents
from reports import displayed_paths
from reports.text import clean, part_of

if TYPE_CHECKING:
    import numpy

    from reports.model import Parity, Place

MOST_BYTES = 9_000_000  # of packed samples: at most 12 MB of the page, which a browser opens within a second
MOST_RECORDED = 2 << 30  # bytes of token logs; reading more would delay the verdict
SCALE = 1024  # with this factor, a half-precision difference keeps three digits from 6e-8 to 60 nats
OTHER_STAGES = {"native", "lifted"}  # phases whose samples are not those of the run
COLUMNS = 11  # integers of a sample
SAMPLE_BYTES, TOKEN_BYTES = 4 * COLUMNS, 6  # packed sizes: the integers; an id and a number per token


@dataclass(frozen=True)
class Samples:
    """`payload`: base64 of the compressed arrays. `head`: JSON with their lengths. `note`: what is left out."""

    payload: str
    head: str
    note: str


@dataclass(frozen=True)
class _Sample:
    """`prompt`: the ids that the engine saw; those that it was sent where it does not say."""

    prompt: bytes
    ids: numpy.ndarray
    logprobs: numpy.ndarray
    finish: str

    @property
    def nbytes(self) -> int:
        return TOKEN_BYTES * len(self.ids)


def of(parity: Parity, most_bytes: int = MOST_BYTES) -> Samples | str:
    """Return the samples of both runs, or a sentence that says why there are none."""
    if len(parity.runs) != 2 or not all(run.path for run in parity.runs):
        return "no sample browser: the verdict names no two recordings"
    folders = [Path(displayed_paths.of(run.path)) / "tokens" for run in parity.runs]
    if missing := [folder for folder in folders if not os.path.isdir(folder)]:  # false for an invalid path too
        return f"no sample browser: {clean(displayed_paths.displayed(str(missing[0])))} is not there"
    if importlib.util.find_spec("numpy") is None:
        return "no sample browser: it needs NumPy; pip install numpy, and make the page again"
    try:
        size = sum(map(_recorded_bytes, folders))
        if size > MOST_RECORDED:
            return f"no sample browser: the token logs have {size:,} bytes, more than {MOST_RECORDED:,}"
        baseline, candidate = map(_read, folders)
    except (OSError, FormatError, ValueError, KeyError) as error:
        return f"no sample browser: {clean(error)}"
    keys = sorted({*baseline, *candidate})
    if not keys:
        return "no sample browser: neither run has recorded a sample"
    place = parity.first_divergence
    if place and place.phase in OTHER_STAGES:
        place = None
    kept = _kept(keys, baseline, candidate, place, most_bytes)
    note = ""
    if len(kept) < len(keys):
        note = f"{part_of(len(kept), len(keys), 'sample')}: those that differ most; more would take over "
        note += f"{most_bytes:,} bytes"
    return _packed(kept, baseline, candidate, _head(parity, place), note)


def _head(parity: Parity, place: Place | None) -> dict[str, Any]:
    """Return what the page must know before it unpacks the samples: names of the sides, tolerance, first divergence."""
    tolerance = number(parity.floor.get("tolerance between engines", parity.floor.get("tolerance")))
    return {
        "sides": [f"{clean(run.side)} {clean(run.backend)}".strip() for run in parity.runs],
        "tolerance": tolerance if 0 < tolerance < 1 else 1e-4,
        "first": _first(place) if place else None,
        "scale": SCALE,
    }


def _first(place: Place) -> dict[str, Any]:
    return {
        "step": place.step,
        "sample": place.sample,
        "position": place.position,
        "field": clean(place.field),
        "part": "prompt" if place.phase == "prompt" else "response",
    }


def _logs(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.bin") if os.path.isfile(file))  # reading a pipe would never end


def _recorded_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _logs(folder))


def _frames(folder: Path) -> Iterator[Frame]:
    """Yield every rollout frame of the run. A torn or damaged file is read up to the damage."""
    for file in _logs(folder):
        with open(file, "rb") as stream:
            extents = []
            with contextlib.suppress(FormatError):  # Torn is one
                for extent in read_extents(stream):
                    extents.append(extent)
            for at in extents:
                if at.kind == "rollout":
                    stream.seek(at.start + PREFIX.size)
                    body = memoryview(stream.read(at.header + at.payload))
                    yield frame_of(decode_header(bytes(body[: at.header])), body[at.header :])


def _read(folder: Path) -> dict[tuple[int, int], _Sample]:
    """Return samples by (step, sample number). The first record of a sample counts."""
    import numpy as np

    samples: dict[tuple[int, int], _Sample] = {}
    for frame in _frames(folder):
        numbers, finish = frame.arrays.get("sample"), frame.fields.get("finish")
        if numbers is None or not isinstance(frame.arrays.get("output"), Ragged):
            continue
        for index, sample in enumerate(numbers.tolist()):
            ids = _row(frame, "output", index).astype(np.int32)
            drawn = np.full(len(ids), np.nan, np.float32)
            logprobs = _row(frame, "logprob", index).astype(np.float32)
            drawn[: len(logprobs)] = logprobs[: len(ids)]
            prompts = [_row(frame, name, index).astype("<i4").tobytes() for name in ("prompt_seen", "prompt")]
            reason = str(finish[index]) if isinstance(finish, list) and index < len(finish) else ""
            samples.setdefault((frame.step, int(sample)), _Sample(prompts[0] or prompts[1], ids, drawn, reason))
    return samples


def _row(frame: Frame, name: str, index: int) -> numpy.ndarray:
    """Return the numbers of one sample in an array of a frame; none where the frame has no such rows."""
    import numpy as np

    array = frame.arrays.get(name)
    return np.frombuffer(array.row(index), f"<{array.dtype}") if isinstance(array, Ragged) else np.zeros(0)


def _kept(
    keys: list[tuple[int, int]],
    baseline: dict[tuple[int, int], _Sample],
    candidate: dict[tuple[int, int], _Sample],
    place: Place | None,
    most_bytes: int,
) -> list[tuple[int, int]]:
    """Return the samples that fit into this many bytes: the first divergence, then those that differ most; in order."""
    costs = {}
    for key in keys:
        sides = [side[key] for side in (baseline, candidate) if key in side]
        prompt_bytes = sum(map(len, {side.prompt for side in sides}))
        costs[key] = SAMPLE_BYTES + sum(side.nbytes for side in sides) + prompt_bytes
    if sum(costs.values()) <= most_bytes:
        return keys
    first = (place.step, place.sample) if place else None
    ranked = sorted(keys, key=lambda key: (key != first, -_difference(baseline.get(key), candidate.get(key)), key))
    kept, used = [], 0
    for key in ranked:
        if used + costs[key] <= most_bytes:
            kept.append(key)
            used += costs[key]
    return sorted(kept)


def _difference(baseline: _Sample | None, candidate: _Sample | None) -> float:
    import numpy as np

    if baseline is None or candidate is None or _prompts_part(baseline, candidate) >= 0:
        return float("inf")
    if not np.array_equal(baseline.ids, candidate.ids):
        return float("inf")
    delta = np.abs(candidate.logprobs - baseline.logprobs)
    return float(np.nanmax(delta)) if len(delta) and not np.all(np.isnan(delta)) else 0.0


def _prompts_part(baseline: _Sample, candidate: _Sample) -> int:
    """Return the first position at which both prompts differ; -1 where they are equal or one was not recorded. The end
    of one prompt alone counts as another id.
    """
    import numpy as np

    if baseline.prompt == candidate.prompt or not (baseline.prompt and candidate.prompt):
        return -1
    first, second = (np.frombuffer(side.prompt, "<i4") for side in (baseline, candidate))
    shared = min(len(first), len(second))
    differing = np.flatnonzero(first[:shared] != second[:shared])
    return int(differing[0]) if len(differing) else shared


def _first_places(baseline: _Sample, candidate: _Sample, tolerance: float) -> tuple[int, int]:
    """Return the first position with another token, and the first one before it whose log-probabilities differ by more
    than `tolerance`; -1 where there is none. The end of one side alone counts as another token.
    """
    import numpy as np

    shared = min(len(baseline.ids), len(candidate.ids))
    differing = np.flatnonzero(baseline.ids[:shared] != candidate.ids[:shared])
    end = -1 if len(baseline.ids) == len(candidate.ids) else shared
    differs_at = int(differing[0]) if len(differing) else end
    before = slice(differs_at if differs_at >= 0 else shared)
    beyond = np.flatnonzero(np.abs(candidate.logprobs[before] - baseline.logprobs[before]) > tolerance)
    return differs_at, int(beyond[0]) if len(beyond) else -1


def _packed(
    keys: list[tuple[int, int]],
    baseline: dict[tuple[int, int], _Sample],
    candidate: dict[tuple[int, int], _Sample],
    head: dict[str, Any],
    note: str,
) -> Samples:
    import numpy as np

    nothing = _Sample(b"", np.zeros(0, np.int32), np.zeros(0, np.float32), "")
    prompts: dict[bytes, int] = {}
    reasons: dict[str, int] = {}
    table, ids, numbers = [], [], []
    for key in keys:
        baseline_sample, candidate_sample = baseline.get(key, nothing), candidate.get(key, nothing)
        pair = (baseline_sample.prompt, candidate_sample.prompt)
        its_prompts = [prompts.setdefault(prompt or pair[0] or pair[1], len(prompts)) for prompt in pair]
        ends = [reasons.setdefault(clean(side.finish), len(reasons)) for side in (baseline_sample, candidate_sample)]
        lengths = [
            len(baseline_sample.ids) if key in baseline else -1,
            len(candidate_sample.ids) if key in candidate else -1,
        ]
        shared_length = min(len(baseline_sample.ids), len(candidate_sample.ids))
        equal_ids = baseline_sample.ids[:shared_length] == candidate_sample.ids[:shared_length]
        # The candidate is kept as differences: zeros where the sides agree take no room once compressed.
        drawn = candidate_sample.ids.copy()
        drawn[:shared_length] -= baseline_sample.ids[:shared_length]
        values = candidate_sample.logprobs.copy()
        equal = np.flatnonzero(equal_ids)
        values[equal] = (values[equal] - baseline_sample.logprobs[equal]) * SCALE
        ids += [baseline_sample.ids, drawn]
        numbers += [baseline_sample.logprobs, values]
        in_both = key in baseline and key in candidate
        first = _first_places(baseline_sample, candidate_sample, head["tolerance"]) if in_both else (0, -1)
        table.append([*key, *its_prompts, *lengths, *ends, *first, _prompts_part(baseline_sample, candidate_sample)])
    lengths = [len(prompt) // 4 for prompt in prompts]
    parts = [
        np.array(table, "<i4").T.tobytes(),
        np.array(lengths, "<i4").tobytes(),
        b"".join(prompts),
        np.concatenate(ids).astype("<i4").tobytes(),
        np.clip(np.concatenate(numbers), -60000, 60000).astype("<f2").tobytes(),
    ]
    head |= {"samples": len(keys), "prompts": len(prompts), "prompt_tokens": sum(lengths)}
    head |= {"tokens": sum(map(len, ids)), "finish": list(reasons)}
    payload = base64.b64encode(zlib.compress(b"".join(parts))).decode()
    return Samples(payload, json.dumps(head), note)
