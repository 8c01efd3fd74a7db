"""How the engines of a framework are told their draws, and how their samples say so: names that plugins write and
adapters read. The draws themselves: `scenarios.engines.coupling`."""

COUPLED = "RLHF_HARNESS_COUPLED"  # the seed of coupled sampling, for every process of a job
DRAW = "rlhf_harness_draw"  # among a request's parameters, and in what answers it: its draw
DRAWN = "rlhf_harness_drawn"  # on an engine: was every sample since the adapter last asked drawn as it was told
SEEN = "rlhf_harness_seen"  # on an engine, or in a response: the prompts as the engine's answers give them back
SEEDED = "rlhf_harness_seed"  # on a loader: the seed of ours by which it shuffles
