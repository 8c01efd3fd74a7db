"""Names by which the plug-ins of frameworks pass coupled draws to engines, and by which adapters read them back.

`scenarios.engines.coupling` makes the draws themselves.
"""

COUPLED = "RLHF_HARNESS_COUPLED"  # the seed of coupled sampling, for every process of a job
DRAW = "rlhf_harness_draw"  # in the parameters of a request and in its answer: its draw
DRAWN = "rlhf_harness_drawn"  # on an engine: whether every sample since the adapter last asked was drawn as told
SEEN = "rlhf_harness_seen"  # on an engine or in a response: the prompts as the engine's answers return them
SEEDED = "rlhf_harness_seed"  # on a data loader: our seed, with which it shuffles
