"""Transformers as an engine, embedded in our own process."""

from scenarios.engines.hf import parameters
from scenarios.engines.spec import EngineSpec

SPEC = EngineSpec(
    name="hf",
    title="the embedded engine",
    factory="scenarios.engines.hf.engine:HFEngine",
    embedded=True,
    distributions=("transformers",),
    maps=lambda requested, longest_context: parameters.engine(requested),
    engine_arguments=parameters.ENGINE,
    sampling_arguments=parameters.SAMPLING,
    refusal=parameters.refusal,
    learners_code=True,
)
