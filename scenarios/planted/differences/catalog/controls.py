"""Controls: runs that must raise no alarm, and recordings that are too small for a verdict."""

from __future__ import annotations

from scenarios.planted.differences.catalog.weights import BF16
from scenarios.planted.differences.fault import Fault

BF16_CAP = 0.1  # largest floor of this model: decode against prefill alone moved the embedded engine by 0.0504 nats
FEW = (
    "steps=1",
    "rollout.prompts_per_step=1",
    "ppo.train_batch_size=4",
    "ppo.micro_batch_size=4",
    "sampling.max_tokens=5",
)

FAULTS = (
    Fault("control", "nothing is planted", expected="EQUIVALENT"),
    Fault(
        "control-filters",
        "nothing is planted, under top-k and top-p, whose edges rounding moves tokens over",
        scenario=("sampling.top_k=20", "sampling.top_p=0.8"),
        expected="EQUIVALENT",
    ),
    Fault("engine-seed", "another engine seed", settings=("engine.seed=1234",), expected="EQUIVALENT"),
    Fault("batch-order", "requests reach the engine in reverse order", engine={"reorder": True}, expected="EQUIVALENT"),
    Fault(
        "batch-size",
        "the engine runs eight samples at a time instead of 64",
        settings=("engine.max_num_seqs=8",),
        expected="EQUIVALENT",
    ),
    Fault(
        "bf16-noise",
        "5e-3 nats of noise in a bfloat16 run",
        scenario=BF16,
        engine={"noise": 5e-3},
        cap=BF16_CAP,
        expected="EQUIVALENT",
    ),
    Fault(
        "bf16-near-ties",
        "in a bfloat16 run the draw is moved by 3e-2 nats, which flips near ties",
        scenario=BF16,
        engine={"draw": {"jitter": 3e-2}},
        cap=BF16_CAP,
        expected="EQUIVALENT",
    ),
    Fault(
        "limit-first-ignoring-ends",
        "every sample is cut by the limit, also where its last token is an end token, which was to be ignored",
        scenario=("sampling.ignore_eos=true", "sampling.max_tokens=8"),
        engine={"limit_first": True},
        expected="EQUIVALENT",
    ),
    Fault("no-data", "the candidate's recording is empty", recording={"keep": 0.0}, expected="INCONCLUSIVE"),
    Fault("half-a-recording", "the candidate's tokens are torn", recording={"keep": 0.5}, expected="INCONCLUSIVE"),
    Fault("twenty-tokens", "one step of four samples of five tokens", scenario=FEW, expected="INCONCLUSIVE"),
)
