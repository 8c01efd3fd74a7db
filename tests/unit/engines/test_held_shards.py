"""What each of several tensor-parallel workers holds: its part of every tensor against that part of the learner's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from scenarios.bench import readback
from scenarios.engines import engine_tensors
from scenarios.remote import Local

HEAD, HIDDEN, HEADS, INNER, VOCABULARY = 2, 6, 4, 8, 10
QKV = ("q_proj", "k_proj", "v_proj")
SHAPES: dict[str, tuple[int, ...]] = {
    "embed.weight": (VOCABULARY, HIDDEN),
    "norm.weight": (HIDDEN,),
    "attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
    "attn.k_proj.weight": (HEAD, HIDDEN),  # one head, which both workers have
    "attn.v_proj.weight": (HEAD, HIDDEN),
    "attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
    "attn.o_proj.bias": (HIDDEN,),
    "mlp.gate_proj.weight": (INNER, HIDDEN),
    "mlp.up_proj.weight": (INNER, HIDDEN),
    "mlp.strange.weight": (INNER, HIDDEN),
}


class Holder(nn.Module):
    """A module that holds these tensors; its subclasses have the names of the engines' own."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor.clone()))


class VocabParallelEmbedding(Holder): ...


class QKVParallelLinear(Holder):
    num_kv_head_replicas = 2


class MergedColumnParallelLinear(Holder): ...


class RowParallelLinear(Holder): ...


class Strange(Holder):
    """A class that cuts its rows in a way that nobody knows."""


def worker(rank: int, tensors: dict[str, torch.Tensor]) -> nn.Module:
    """The model of one of two workers."""

    def half(name: str, dim: int = 0) -> torch.Tensor:
        return tensors[name].chunk(2, dim)[rank]

    embed = VocabParallelEmbedding(weight=torch.cat((half("embed.weight"), torch.zeros(3, HIDDEN))))  # padded
    size = VOCABULARY // 2
    start = rank * size
    embed.shard_indices = SimpleNamespace(org_vocab_start_index=start, org_vocab_end_index=start + size)  # type: ignore[assignment]
    model, attn, mlp = nn.Module(), nn.Module(), nn.Module()
    qkv = [half("attn.q_proj.weight"), tensors["attn.k_proj.weight"], tensors["attn.v_proj.weight"]]
    attn.qkv_proj = QKVParallelLinear(weight=torch.cat(qkv))
    attn.o_proj = RowParallelLinear(weight=half("attn.o_proj.weight", 1), bias=tensors["attn.o_proj.bias"])
    rows = torch.cat((half("mlp.gate_proj.weight"), half("mlp.up_proj.weight")))
    mlp.gate_up_proj = MergedColumnParallelLinear(weight=rows)
    mlp.strange = Strange(weight=half("mlp.strange.weight"))
    model.embed, model.norm, model.attn, model.mlp = embed, Holder(weight=tensors["norm.weight"]), attn, mlp
    return model


class Session:
    """An engine of two workers, as a session shows it."""

    def __init__(self, models: list[nn.Module]) -> None:
        self._models = models

    def held(self, order: bytes) -> list[bytes]:
        return [engine_tensors.answer(one, order, rank=rank, workers=2) for rank, one in enumerate(self._models)]

    def snapshot(self) -> dict[str, Any]:
        return {"resolved": {"dtype": "float32"}}


@pytest.fixture
def learned(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def read(models: list[nn.Module], policy: Path) -> Any:
    return readback.compare(Local(Session, models), str(policy), None)


def test_each_worker_holds_its_part(learned: dict[str, torch.Tensor], tmp_path: Path) -> None:
    found = read([worker(rank, learned) for rank in (0, 1)], tmp_path)
    assert not found.otherwise and found.equal == len(SHAPES) - 1
    assert list(found.unreadable) == ["mlp.strange.weight"] and not found.all_equal


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "mlp.strange.weight"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_worker_holds_an_older_part(name: str, rank: int, learned: dict[str, torch.Tensor], tmp_path: Path) -> None:
    older = learned | {name: learned[name] - 1.0}
    models = [worker(one, older if one == rank else learned) for one in (0, 1)]
    (one,) = read(models, tmp_path).otherwise
    assert (one.name, one.where, one.how) == (name, f"rank {rank} of 2", "")
    held_whole = readback.values(Local(Session, models), str(tmp_path), [name])[name]
    reader = engine_tensors.Reader(models[rank], SHAPES, rank=rank, workers=2)
    expected, cut = learned[name].clone(), reader.cut(name)
    part = slice(None) if cut is None else (slice(None),) * cut[0] + (slice(cut[1], cut[1] + cut[2]),)
    expected[part] -= 1.0
    assert torch.equal(held_whole, expected)


@pytest.mark.parametrize(("name", "dim"), [("mlp.up_proj.weight", 0), ("attn.o_proj.weight", 1)])
def test_a_worker_holds_the_part_of_another(
    name: str, dim: int, learned: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    rolled = learned | {name: learned[name].roll(learned[name].shape[dim] // 2, dims=dim)}
    (one,) = read([worker(0, learned), worker(1, rolled)], tmp_path).otherwise
    assert (one.name, one.where, one.how) == (name, "rank 1 of 2", "rank 1 holds the shard of rank 0")


def test_a_tensor_that_all_workers_hold_otherwise_names_none(learned: dict[str, torch.Tensor], tmp_path: Path) -> None:
    other = learned | {"norm.weight": learned["norm.weight"] + 1.0}
    (one,) = read([worker(rank, other) for rank in (0, 1)], tmp_path).otherwise
    assert (one.name, one.where) == ("norm.weight", "") and set(one.marks) == {0, 1}


def loaded(models: list[nn.Module]) -> list[dict[str, Any]]:
    answers = Session(models).held(engine_tensors.packed({"loaded": True}))
    return [engine_tensors.unpacked(one)["loaded"] for one in answers]


def sync(model: nn.Module, rank: int, tensors: dict[str, torch.Tensor], applied: dict[str, torch.Tensor]) -> None:
    """`tensors` arrive at one of two workers, which loads `applied`."""
    loading = engine_tensors.Loading.of(model, rank=rank, workers=2)
    loading.begin(model, SHAPES)
    for name, tensor in tensors.items():
        loading.arrived(name, tensor)
    with torch.no_grad():
        for own, new in zip(model.parameters(), worker(rank, applied).parameters(), strict=True):
            own.copy_(new)


def test_no_sync_says_nothing_of_a_load(learned: dict[str, torch.Tensor]) -> None:
    assert loaded([worker(rank, learned) for rank in (0, 1)]) == [None, None]


def test_each_worker_loads_its_part(learned: dict[str, torch.Tensor]) -> None:
    models = [worker(rank, learned) for rank in (0, 1)]
    after = {name: tensor + 1.0 for name, tensor in learned.items()}
    for rank, model in enumerate(models):
        sync(model, rank, after, after)
    for one in loaded(models):
        assert one["otherwise"] == {} and set(one["read"]) == {*SHAPES} - {"mlp.strange.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "mlp.strange.weight"])
def test_a_part_that_is_kept_at_one_sync_is_told_at_that_one(name: str, learned: dict[str, torch.Tensor]) -> None:
    models = [worker(rank, learned) for rank in (0, 1)]
    versions = [{key: tensor + by for key, tensor in learned.items()} for by in (1.0, 2.0, 3.0, 4.0)]
    told = []
    for version, tensors in enumerate(versions):
        for rank, model in enumerate(models):
            kept = {name: versions[version - 1][name]} if version == 2 and rank == 1 else {}
            sync(model, rank, tensors, tensors | kept)
        told.append([one["otherwise"] for one in loaded(models)])
    assert told == [[{}, {}], [{}, {}], [{}, {name: True}], [{}, {}]]


def test_a_part_that_never_moves_is_kept(learned: dict[str, torch.Tensor]) -> None:
    model, name = worker(0, learned), "attn.o_proj.weight"
    for version in (1.0, 2.0, 3.0):
        after = {key: tensor + version for key, tensor in learned.items()}
        sync(model, 0, after, after | {name: learned[name] - 1.0})
        (told,) = loaded([model])
        assert told["otherwise"] == {name: version > 1.0}  # at the first sync nobody knows what it held before


def test_a_part_that_is_altered_is_not_kept(learned: dict[str, torch.Tensor]) -> None:
    model, name = worker(1, learned), "mlp.up_proj.weight"
    for version in (1.0, 2.0, 2.0):  # the learner's may stay what it was, and so what is made of it
        after = {key: tensor * version for key, tensor in learned.items()}
        sync(model, 1, after, after | {name: after[name] * 1.02})
        (told,) = loaded([model])
        assert told["otherwise"] == {name: False}


def test_weights_that_an_engine_holds_as_transposes_are_read_as_the_checkpoint_has_them() -> None:
    """GPT-2's Conv1D: another weight of that name shows what a square one does not."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"h.0.attn.c_proj.weight": (4, 4), "h.0.mlp.c_proj.weight": (8, 4), "h.0.out.weight": (4, 4)}
    sent = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    model = nn.Module()
    for name, tensor in sent.items():
        *path, last = name.removesuffix(".weight").split(".")
        parent = model
        for part in path:
            if part not in dict(parent.named_children()):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(last, Holder(weight=tensor.t() if last == "c_proj" else tensor))
    reader = engine_tensors.Reader(model, shapes)
    assert all(torch.equal(reader.read(name), tensor) for name, tensor in sent.items())
    # A square weight that was turned by mistake is told where no other of its name is held so.
    model.h.get_submodule("0").out.weight.data = sent["h.0.out.weight"].t()  # type: ignore[union-attr,operator]
    assert not torch.equal(engine_tensors.Reader(model, shapes).read("h.0.out.weight"), sent["h.0.out.weight"])
