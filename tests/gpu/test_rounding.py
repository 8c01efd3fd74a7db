"""What rounding costs on the device: the bounds of half precision are measured on CPUs, and must hold on a GPU."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from harness.parity.subjects.precision.observed_floor import CAPS
from harness.parity.subjects.precision.observed_rounding import BULK
from scenarios import models


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(0, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_hundredth_of_the_tokens_at_most_round_beyond_the_cap(
    name: str, policy: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    half = transformers.AutoModelForCausalLM.from_pretrained(policy, dtype=getattr(torch, name)).to(device).eval()
    exact = copy.deepcopy(half).float()
    torch.manual_seed(2)
    prompts = torch.randint(3, 200, (64, 8)).to(device)
    with torch.no_grad():
        # tokens that the model draws: the bounds are of those, and odd ones round further
        ids = exact.generate(prompts, do_sample=True, max_new_tokens=40, min_new_tokens=40, pad_token_id=0)
        both = [model(input_ids=ids).logits[:, :-1].float().log_softmax(-1) for model in (half, exact)]
    rounds = (both[0] - both[1]).gather(-1, ids[:, 1:, None])[:, 8:].abs().flatten().cpu().double()
    with capsys.disabled():
        figures = ", ".join(f"{float(rounds.quantile(share)):.2g} at {share}" for share in (0.5, 0.9, BULK, 1.0))
        print(f"\n{name} on {device}: |rounding| {figures}")
    assert float(rounds.quantile(BULK)) <= CAPS[name] and float(rounds.max()) > 0
