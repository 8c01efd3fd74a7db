"""A model's tensors under the names of its saved checkpoint: what is sent in a sync, and what an engine takes."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scenarios.models import saved

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

SIZE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "head_dim": 16}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4}
KINDS = {
    "qwen2": {},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 40},
}


def made(kind: str, seed: int, **changes: object) -> object:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZE, **KINDS[kind], **changes})).float()


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_values_are_those_of_the_checkpoint_on_disk(kind: str, tmp_path: Path) -> None:
    model = made(kind, 0)
    model.save_pretrained(tmp_path)
    written = safetensors.torch.load_file(tmp_path / "model.safetensors")
    named = saved.tensors(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert named.keys() == written.keys()
    assert all(torch.equal(named[name], written[name]) and named[name].is_contiguous() for name in written)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_takes_all_of_another_is_that_one(kind: str) -> None:
    one, other = made(kind, 0), made(kind, 1)
    saved.restore(one, saved.tensors(other))
    held = other.state_dict()
    assert all(torch.equal(tensor, held[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_one_tensor_changes_itself_alone(kind: str) -> None:
    model = made(kind, 0)
    before = {name: tensor.clone() for name, tensor in saved.tensors(model).items()}
    name = next(name for name in before if "gate_proj" in name or ".w1." in name)
    saved.restore(model, {name: before[name] + 1})
    after = saved.tensors(model)
    assert [one for one in before if not torch.equal(before[one], after[one])] == [name]


def test_a_tied_tensor_is_named_once_and_taken_by_either_name() -> None:
    model = made("qwen2", 0, tie_word_embeddings=True)
    named = saved.tensors(model)
    assert "lm_head.weight" not in named
    saved.restore(model, {"lm_head.weight": named["model.embed_tokens.weight"] + 1})
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_a_name_that_no_checkpoint_has_is_refused() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        saved.restore(made("mixtral", 0), {"nonsense": torch.zeros(1)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_wider_copy_says_the_same(kind: str) -> None:
    model, twin = made(kind, 0).eval(), made(kind, 0).eval()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        narrow, wide = model(input_ids=ids).logits, saved.widen(twin, torch.float64)(input_ids=ids).logits
    assert wide.dtype == torch.float64
    assert (narrow - wide).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "qwen2"])
def test_a_wider_model_is_the_one_that_is_loaded_so(kind: str, tmp_path: Path) -> None:
    """The embeddings of Gemma have a factor that half precision rounds."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZE, "hidden_size": 48}))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    half, single = (
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        wide, loaded = (each(input_ids=ids).logits for each in (saved.widen(half, torch.float32), single))
    assert torch.equal(wide, loaded)
