"""The embedded engine's seed, where a mapping leaves it out: a number that a recording can hold."""

from __future__ import annotations

import secrets

import pytest
from ppo_support import random_models, scenario

from probes import limits
from scenarios.engines.hf.engine import HFEngine
from scenarios.engines.mapping import ParameterMap

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_models(tmp_path_factory.mktemp("models"))["policy"]


@pytest.mark.parametrize("all_bits", [0, 1])
def test_the_largest_seed_that_is_drawn_can_be_recorded(
    policy: str, all_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: all_bits * (2**bits - 1))
    engine = HFEngine(policy, scenario(), mode="native", device="cpu", mapping=ParameterMap({"engine": {"seed": None}}))
    try:
        seed = engine.info().resolved["seed"]
    finally:
        engine.close()
    assert seed == all_bits * limits.WHOLE
    limits.check_whole(seed)
