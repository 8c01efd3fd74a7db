"""The form of each plant's setting, so that a wrong one is refused before an engine starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from scenarios.settings import Sampling

# A shape is one of: a type; a tuple of alternatives; [shape]: a list; {name: shape}: a mapping with these names, of
# which those in OPTIONAL may be missing; {type or tuple: shape}: a mapping with any such keys; any other value:
# exactly that value.
NUMBER = (int, float)
PARAMETERS = tuple(parameter.name for parameter in dataclasses.fields(Sampling))
Shape = Any
PLANTS: dict[str, Shape] = {
    "first_sample": int,
    "only": int,
    "text_samples": ("all", [int]),
    "truncate": {"side": ("left", "right"), "keep": int, "unsaid": bool},
    "no_generation_prompt": True,
    "bos_lost": True,
    "padded_right": True,
    "shift": int,
    "noise": NUMBER,
    "drop_end": True,
    "limit_first": True,
    "short_context": int,
    "limit": int,
    "permute": ("responses", "answers", "pairs"),
    "foreign_id": int,
    "nan_stop": {"every": int, "position": int},
    "encoded_again": True,
    "seed_offset": int,
    "sampling": {PARAMETERS: object},
    "clones": int,
    "stream": int,
    "seeds_ignored": True,
    "draw": {
        "reported": ("tempered", "tempered:0.8", "filtered", "penalised", "top", "raw"),
        "joint": bool,
        "exclusive": bool,
        "jitter": NUMBER,
        "second": int,
        "repetition": NUMBER,
        "presence": NUMBER,
        "frequency": NUMBER,
    },
    "reorder": True,
    "names_exchanged": {"names": [str], "from": int},
    "digests_repeated": True,
    "keep_cache": (True, "always"),
    "put_back": int,
    "drawn_before_sync": {"tokens": int, "from": int},
    "kept_copy": {"modules": [str], "from": int},
    "bent": {"modules": [str], "by": NUMBER},
    "misloaded": {
        "names": [str],
        "how": ("permuted", "scaled", "refused", "shard", "late"),
        "from": int,
        "until": int,
        "rank": int,
    },
    "rotary": {"by": NUMBER, "from": int},
    "moved": {"by": NUMBER, "position": int, "spared": int},
    "coarse": {"modules": [str], "bits": int},
    "rebased": {"by": NUMBER},
    "row_altered": {"module": str, "row": int, "by": NUMBER},
    "leak": {"mib": NUMBER, "until": int},
    "first_engine_only": True,
    "asked_again": True,
}
TRAINER: dict[str, Shape] = {
    "omit_tensors": {int: [str]},
    "awake_in": [int],
    "wakes": {int: [str]},
    "omit_from": int,
    "omit_names": [str],
    "alter": {str: ("revision", "halves")},
    "alter_from": int,
    "behind_from": int,
    "scale": NUMBER,
    "shift": int,
    "pads": NUMBER,
    "unrewarded": ("stop", "length"),
    "first_share": NUMBER,
    "first_step": int,
    "rank": int,
    "dealing": ("another's", "twice", "in turn"),
    "divisor": ("times ranks", "own", "unsaid", "mean of means", "mean of micro-batches"),
    "advantages": ("per rank",),
    "exchanged": ("reward", "reference", "critic"),
    "cut_prompts": int,
    "reference": ("follows",),
    "old_logprobs": ("present",),
    "joined_engines": int,
    "leak": {"mib": NUMBER, "until": int},
    "update": {"skipped": int, "own": str, "lost": str},
    "revision": {("reward", "reference"): str},
}
RECORDING: dict[str, Shape] = {"keep": NUMBER, "packages": {str: str}}
# Keys of a setting that may be left out.
OPTIONAL = {"from", "until", "rank", "skipped", "own", "lost", "position", "spared", "unsaid", *PLANTS["draw"]}


def misfit(value: Any, shape: Shape) -> str:
    """Return in words what a setting should have been; empty where it fits."""
    return "" if _fits(value, shape) else in_words(shape)


def in_words(shape: Shape) -> str:
    """Return a shape in words."""
    if isinstance(shape, tuple):
        return "a number" if shape == NUMBER else " or ".join(in_words(part) for part in shape)
    if isinstance(shape, list):
        return f"a list of which each is {in_words(shape[0])}"
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{_key(key)}: {in_words(part)}" for key, part in shape.items()) + "}"
    names = {int: "a whole number", str: "a string", bool: "true or false", object: "a value"}
    if isinstance(shape, type):
        return names[shape]
    return "true" if shape is True else repr(shape)


def _key(key: Any) -> str:
    return f"<{in_words(key)}>" if isinstance(key, (type, tuple)) else repr(key)


def _fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, tuple):
        return any(_fits(value, part) for part in shape)
    if isinstance(shape, list):
        return isinstance(value, (list, tuple)) and all(_fits(part, shape[0]) for part in value)
    if isinstance(shape, dict):
        return isinstance(value, Mapping) and _mapped(value, shape)
    if isinstance(shape, type):
        return isinstance(value, shape) and (shape in (bool, object) or not isinstance(value, bool))
    return type(value) is type(shape) and value == shape


def _mapped(value: Mapping[Any, Any], shape: dict[Any, Shape]) -> bool:
    kinds = [key for key in shape if isinstance(key, (type, tuple))]
    if kinds:
        return all(_fits(key, kinds[0]) and _fits(entry, shape[kinds[0]]) for key, entry in value.items())
    needed = set(shape) - OPTIONAL
    return needed <= set(value) <= set(shape) and all(_fits(entry, shape[key]) for key, entry in value.items())
