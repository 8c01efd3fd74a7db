"""Faults that half precision's rounding hides and that the lifted stage shows in float32, and controls.

A fault is planted both in the run and in its lifted stage.
"""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

HALF = ("model.dtype=bfloat16", "steps=2")
NORM = "model.layers.2.post_attention_layernorm"

FAULTS = (
    Fault(
        "lifted-logits-scaled",
        "in bfloat16 the last norm returns 1.002 times what it should, and with it every logit",
        scenario=HALF,
        engine={"bent": {"modules": ["model.norm"], "by": 1.002}},
        stage="lifted",
        causes=("COMPUTATION(layer 3)",),
        party="candidate",
    ),
    Fault(
        "lifted-temperature",
        "in bfloat16 the engine draws at temperature 0.98 for 1.0, and says nothing of it",
        scenario=HALF,
        engine={"sampling": {"temperature": 0.98}},
        stage="lifted",
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
    ),
    Fault(
        "lifted-rotary-base",
        "in bfloat16 rotary embeddings turn with a base that is 0.5 % off",
        scenario=HALF,
        engine={"rebased": {"by": 1.005}},
        stage="lifted",
        causes=("BUFFER",),
        party="candidate",
    ),
    Fault(
        "lifted-row",
        "in bfloat16 one weight of a norm is 2 % too large after each sync; the digests are right",
        scenario=HALF,
        engine={"row_altered": {"module": NORM, "row": 3, "by": 1.02}},
        stage="lifted",
        causes=(f"WEIGHTS({NORM}.weight)",),
        party="candidate",
    ),
    Fault(
        "lifted-coarse-kernel",
        "each MLP rounds what it returns to three bits in bfloat16, and to none in float32",
        scenario=HALF,
        engine={"coarse": {"modules": [f"model.layers.{layer}.mlp" for layer in range(4)], "bits": 2}},
        stage="lifted",
        causes=("ARITHMETIC(bfloat16)",),
        party="candidate",
    ),
    Fault(
        "lifted-sound",
        "in bfloat16 the same engine twice: nothing is wrong",
        scenario=HALF,
        stage="lifted",
        expected="EQUIVALENT",
    ),
)
