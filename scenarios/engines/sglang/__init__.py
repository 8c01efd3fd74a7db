"""SGLang: its engine, its coupled draw, its plugin."""

from scenarios.engines.sglang import parameters
from scenarios.engines.spec import EngineSpec

SPEC = EngineSpec(
    name="sglang",
    title="SGLang",
    factory="scenarios.engines.sglang.engine:SGLangEngine",
    distributions=("sglang",),
    beside_the_learner=("sglang", "sgl-kernel", "sglang-kernel", "sgl-kernel-cpu"),
    entry_points={"sglang.srt.plugins": "scenarios.engines.sglang.plugin:register"},
    engine_arguments=parameters.ENGINE,
    sampling_arguments=parameters.SAMPLING,
    always=parameters.ALWAYS,
    without_argument=parameters.WITHOUT_ARGUMENT,
    refusal=parameters.refusal,
    unlike=parameters.unlike,
    most_scored=parameters.most_scored,
    # SGLang 0.5.23: layers/sampler.py, log-softmax of logits that penalties and temperature went over
    logprobs="tempered",
    defaults_at_endpoint_only=True,
    process_title="sglang",
)
