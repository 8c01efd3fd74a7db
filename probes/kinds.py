"""What a recording of this format has: the kinds of its events, and the keys of its run.json.

docs/reference/format.md describes them; a test holds both together. Anything else in a recording is read by nobody, and
a verdict says so: it may be a name that was damaged or misspelt.
"""

EVENT_KINDS = frozenset(
    [
        "answered",
        "boundaries",
        "call",
        "checkpoint",
        "close",
        "collective",
        "configuration",
        "data",
        "engine_died",
        "engine_info",
        "engine_stats",
        "environment",
        "floor_plan",
        "group",
        "hook_off",
        "hooks",
        "learner",
        "model",
        "note",
        "open",
        "probe_cost",
        "resume",
        "sampling",
        "shapes",
        "share",
        "span",
        "step",
        "sync",
        "tokenizer",
        "weights",
    ]
)

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
