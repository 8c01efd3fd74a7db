"""The kinds of events in a recording of this format with their keys, and the keys of run.json.

docs/reference/format.md describes them, and a test compares both. Other kinds and keys in a recording are not read,
and a verdict says so: they may be damaged or misspelt names.
"""


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
    "learner": _keys("step actor critic batch norms"),
    "model": _keys("tensors"),
    "note": None,
    "open": _keys("role rank pid wall_ns host ppid start_ticks world_size python packages env run"),
    "probe_cost": _keys("step self_ns"),
    "resume": _keys("step path"),
    "sampling": _keys("canonical native mode given unlike mapping moves"),
    "shapes": _keys("step phase tensors padded_tokens real_tokens longest samples"),
    "share": _keys("step phase samples digest"),
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

MANIFEST_KEYS = frozenset(
    [
        "backend",
        "command",
        "environment",
        "exit_code",
        "format_version",
        "framework",
        "framework_version",
        "guided",
        "hardware",
        "hooks",
        "id",
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
