"""What a recording of this format has: the kinds of its events and frames with their keys, and the keys of its
run.json.

docs/reference/format.md describes them, and a test compares both. Other kinds and keys in a recording are not read,
and a verdict says so: they may be damaged or misspelt names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


def _keys(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Event kind -> its keys besides those of every event. None: any keys.
EVENT_KEYS: dict[str, frozenset[str] | None] = {
    "answered": _keys("step sample offset"),
    "boundaries": _keys(
        "step sample finish prompt_first prompt_last output_first output_last prompt_len output_len specials "
        "text_first text_seam text_last"
    ),
    "call": _keys(
        "step name ok message seconds rss shared cuda_allocated cuda_reserved cuda_peak processes dev_shm "
        "level freed part"
    ),
    "checkpoint": _keys("step path"),
    "close": _keys("ok reason ended frames frame_kinds events beside self_ns lost"),
    "collective": _keys("step name group bytes start_ns dur_ns"),
    "configuration": _keys("framework scenario settings backend seeds mode missing"),
    "data": _keys("step samples prompts"),
    "engine_died": _keys("pid message"),
    "engine_info": _keys("engine version asked resolved replaced pids start_seconds canonical given mapping moves"),
    "engine_stats": _keys("step prompt_tokens cached_tokens cache_hit_rate generated_tokens running waiting kv_usage"),
    "environment": _keys("packages env withheld libraries device machine"),
    "floor_plan": None,
    "group": _keys("name backend rank world_size members torch_name timeout_s"),
    "hook_off": _keys("hook error"),
    "hooks": _keys("framework version tested installed moved"),
    "learner": _keys("step actor critic batch norms first"),
    "model": _keys("tensors"),
    "note": None,
    "open": _keys("role rank pid wall_ns host ppid start_ticks world_size python packages env run format manifest"),
    "probe_cost": _keys("step self_ns"),
    "resume": _keys("step path"),
    "sampling": _keys("canonical native mode given unlike mapping moves"),
    "shapes": _keys("step phase tensors padded_tokens real_tokens longest samples"),
    "share": _keys("step phase samples digest sorted"),
    "span": None,
    "step": _keys("step metrics"),
    "sync": _keys(
        "step version ok message seconds engine_seconds tensors bytes mismatched absent unreported loaded "
        "misloaded proof_max_delta proof_mean_delta proof_rounding proof_excess proof_tokens proof_stale "
        "proof_behind proof_engine"
    ),
    "tokenizer": _keys("size bos eos pad specials generation_prompt"),
    "weights": _keys("step version source digests"),
}


class FrameKeys(NamedTuple):
    """The fields of a kind of frame, and the names of its arrays."""

    fields: frozenset[str]
    arrays: frozenset[str]


_DRAWN = _keys("sample prompt prompt_seen output logprob cached request seed")
FRAME_KEYS: dict[str, FrameKeys] = {
    "experience": FrameKeys(
        _keys("weight_version order unmatched"),
        _keys(
            "sample tokens actor_logprob reference_logprob value kl advantage return reward margin runner_up edge "
            "drawn_edge exact_logprob behind_logprob behind_exact_logprob"
        ),
    ),
    "floor": FrameKeys(_keys("variant weight_version"), _keys("sample output logprob rounding sharding")),
    "native": FrameKeys(_keys("weight_version finish engine_seed mode"), _DRAWN),
    "native_score": FrameKeys(
        _keys("weight_version sampling fits"),
        _keys(
            "sample learner_logprob exact_logprob reward tempered_logprob processed_logprob joint_logprob "
            "blind_logprob entropy varentropy mass_before outside outside_joint"
        ),
    ),
    "repeat": FrameKeys(_keys("weight_version finish request_seed engine_seed mode"), _DRAWN),
    "rollout": FrameKeys(
        _keys("weight_version mode guided finish rounds uncompared arrival tempered ratio"),
        _DRAWN | {"processed_logprob"},
    ),
    "seen": FrameKeys(frozenset(), _keys("request prompt_seen")),
    "updates": FrameKeys(
        _keys("role parameters digest samples tokens divisors"), _keys("own size summed norm weights")
    ),
}
_HEADER_KEYS = _keys("kind step role rank fields arrays seq run")
_ARRAY_KEYS = _keys("dtype at count offsets_at offsets_count")


def unread_of_frame(header: Mapping[str, Any]) -> Iterator[str]:
    """Names in a frame's header that no reader knows, as `kind.name`; nothing for a kind that no reader knows."""
    keys = FRAME_KEYS.get(header["kind"])
    if keys is None:
        return
    fields, arrays = header["fields"], header["arrays"]
    names = {*(header.keys() - _HEADER_KEYS), *(fields.keys() - keys.fields), *(arrays.keys() - keys.arrays)}
    for array in arrays.values():
        names |= (array.keys() if isinstance(array, Mapping) else frozenset()) - _ARRAY_KEYS
    yield from (f"{header['kind']}.{name}" for name in sorted(names))


MANIFEST_KEYS = frozenset(
    [
        "backend",
        "command",
        "earlier",
        "environment",
        "exit_code",
        "format_version",
        "framework",
        "framework_version",
        "guided",
        "hardware",
        "hooks",
        "id",
        "index",
        "lifted",
        "mapping",
        "missing",
        "packages",
        "placement",
        "planted",
        "records",
        "replay",
        "resumed",
        "sampling_mode",
        "scenario",
        "seeds",
        "side",
        "started",
        "warm",
        "watch",
    ]
)
