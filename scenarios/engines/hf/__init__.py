"""Transformers, embedded in our own process."""

from scenarios.engines.spec import EngineSpec

SPEC = EngineSpec(
    name="hf",
    title="the embedded engine",
    factory="scenarios.engines.hf.engine:HFEngine",
    embedded=True,
    distributions=("transformers",),
    learners_code=True,
)
