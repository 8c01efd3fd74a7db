"""Compares what an engine holds with what its learner has: tensors row by row, and buffers with the model's
configuration.

Runs in the learner's interpreter.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from scenarios.bench.case import HeldOtherwise, HeldReport
from scenarios.engines.engine_interface import Request
from scenarios.engines.engine_tensors import Cut, digests, packed, unpacked
from scenarios.remote import Actor, call

# Tolerance of a rotary cache, in roundings of its own type. The angle is a product of position and frequency, so its
# rounding grows with the position; an engine computes the same product in float32.
ROTARY_ROUNDINGS = 4.0
DECODED = 4  # tokens drawn to see what attention reads: one after the prompt, then three decoded ones
# Kinds of rotary embedding whose cache depends on the length of the input, so that the configuration alone does not
# determine it.
UNKNOWN_ROTARY = ("dynamic", "longrope")
CACHE_SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale")  # as vLLM and SGLang name them


class Learned:
    """The tensors of a policy's directory, under the names of its checkpoint."""

    def __init__(self, policy: str) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(Path(policy).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def shapes(self) -> dict[str, list[int]]:
        shapes_by_name: dict[str, list[int]] = {}
        for path in dict.fromkeys(self._files.values()):
            with safe_open(path, "pt") as file:
                shapes_by_name |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return shapes_by_name

    def tensor(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def compare(session: Actor, policy: str, model: Any, names: list[str] | None = None) -> HeldReport:
    """Compare every tensor (or `names`) with the learner's, and also the buffers where no names are given."""
    learned, dtype = Learned(policy), _dtype(session)
    shapes = learned.shapes()
    order: dict[str, Any] = {"shapes": shapes} | ({} if names else {"buffers": 1 << 30})
    answers = _worker_answers(session, order)
    if answers is None:
        return HeldReport(unreadable={"every tensor": "the engine does not show what it holds"})
    # What any worker cannot show is not compared: equal parts of the others do not make the whole tensor equal.
    wanted = names or learned.names
    unreadable = {name: why for answer in answers for name, why in answer["unreadable"].items() if name in wanted}
    read = [name for name in wanted if name not in unreadable]
    differences = [difference for name in read if (difference := _otherwise(name, answers, learned, dtype))]
    return HeldReport(
        equal=len(read) - len(differences),
        otherwise=differences,
        unreadable=unreadable,
        buffers=_worst([_buffers(answer.get("buffers", {}), model) for answer in answers]),
    )


def values(session: Actor, policy: str, names: list[str]) -> dict[str, torch.Tensor]:
    """Return these tensors as the engine holds them. Where several workers hold one part, a copy that differs is
    preferred.
    """
    learned = Learned(policy)
    tensors: dict[str, torch.Tensor] = {}
    for answer in _worker_answers(session, {"shapes": learned.shapes(), "values": names}) or []:
        for name, part in answer["values"].items():
            learner_tensor, cut = learned.tensor(name).to(part.dtype), answer["cuts"].get(name)
            engine_tensor = tensors.setdefault(name, learner_tensor.clone())
            if not torch.equal(_part(learner_tensor, cut), part):
                _part(engine_tensor, cut).copy_(part)
    return tensors


def _worker_answers(session: Actor, order: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the answer of each worker of the engine, by rank; None where the engine does not show what it holds."""
    answered = call(session, "held", packed(order))
    return None if answered is None else [unpacked(answer) for answer in answered]


def _part(tensor: torch.Tensor, cut: Cut | None) -> torch.Tensor:
    return tensor if cut is None else tensor.narrow(*cut)


def prompt_used(session: Actor, request: Request, version: int) -> tuple[int, ...] | None:
    """Return the prompt ids that the engine's forward pass received for this request, while one token is drawn.

    None where that cannot be seen: no pass was observed, or the positions are not those of one prompt from its start.
    """
    if _worker_answers(session, {"watch": True}) is None:
        return None
    try:
        call(session, "rollout", [dataclasses.replace(request, max_tokens=1)], step=-1, version=version)
    finally:
        forward_pass = (_worker_answers(session, {"watch": False}) or [{}])[0]  # every worker receives the same
    ids, positions = forward_pass["ids"], forward_pass["positions"]
    if len(ids) != len(positions):
        return None
    by_place = dict(zip(positions, ids, strict=True))
    if not ids or sorted(by_place) != list(range(len(by_place))):
        return None
    return tuple(by_place[place] for place in range(len(by_place)))


def keys_read(session: Actor, request: Request, version: int) -> list[tuple[int, int]] | None:
    """Return (position, number of keys and values that attention read there) of the request's tokens while a few are
    drawn.

    None where that cannot be seen.
    """
    if _worker_answers(session, {"watch": True}) is None:
        return None
    try:
        call(session, "rollout", [dataclasses.replace(request, max_tokens=DECODED)], step=-1, version=version)
    finally:
        forward_passes = (_worker_answers(session, {"watch": False}) or [{}])[0]  # every worker receives the same
    return [(position, keys) for position, keys in forward_passes["keys"]] or None


def write_buffers(session: Actor, model: Any, names: list[str]) -> None:
    """Write what the configuration computes into these buffers."""
    buffers = (_worker_answers(session, {"buffers": 1 << 30}) or [{}])[0]["buffers"]
    right = {name: _expected(name, buffers[name], model) for name in names}
    _worker_answers(session, {"write": {name: buffer for name, buffer in right.items() if buffer is not None}})


def _dtype(session: Actor) -> torch.dtype:
    """Return the type in which the engine computes."""
    dtype_name = str(call(session, "snapshot")["resolved"].get("dtype"))
    dtype: torch.dtype = getattr(torch, dtype_name, torch.float32)
    return dtype


def _own_rows(tensor: torch.Tensor, held_dtype: str, computing: torch.dtype) -> list[str]:
    """Return digests of the learner's rows after the engine's conversions: to its computing type, then to the type it
    holds.
    """
    return digests(tensor.to(computing).to(getattr(torch, held_dtype)))


def _otherwise(
    name: str, answers: list[dict[str, Any]], learned: Learned, computing: torch.dtype
) -> HeldOtherwise | None:
    """Return what is wrong with a tensor that every worker showed; None where each holds the learner's."""
    tensor = learned.tensor(name)
    kinds = [(answer["cuts"].get(name), answer["dtypes"][name]) for answer in answers]
    held_rows = [answer["rows"][name] for answer in answers]
    # Workers often hold the same part in the same type: take the learner's digests once for each such kind.
    learner_rows = {
        (cut, dtype): _own_rows(_part(tensor, cut), dtype, computing) for cut, dtype in dict.fromkeys(kinds)
    }
    expected_rows = [learner_rows[kind] for kind in kinds]
    wrong = [rank for rank, rows in enumerate(held_rows) if rows != expected_rows[rank]]
    if not wrong:
        return None
    apart: set[int] = set()  # rows of the whole tensor: one counts once even if several workers hold parts of it
    for rank in wrong:
        cut, _ = kinds[rank]
        apart.update(_rows_apart(cut, expected_rows[rank], held_rows[rank]))
    # Look for an explanation, the most specific one first.
    how = _of_another_rank(wrong, expected_rows, held_rows)
    if not how and all(_is_permuted(expected_rows[rank], held_rows[rank]) for rank in wrong):
        how = "its rows permuted"
    if not how:
        shards = [(*kinds[rank], held_rows[rank]) for rank in wrong]
        instead = _tensor_instead(name, tensor.shape, learned, shards)
        how = f"the learner's {instead}" if instead else ""
    marks = {rank: hashlib.sha256("".join(held_rows[rank]).encode()).hexdigest()[:16] for rank in wrong}
    return HeldOtherwise(name, len(apart), tensor.shape[0] if tensor.ndim else 1, how, marks, len(answers))


def _rows_apart(cut: Cut | None, expected: list[str], held: list[str]) -> Iterator[int]:
    """Yield the rows of the whole tensor in which a worker's part differs. `cut`: that part; None for all of it."""
    first = cut[1] if cut and cut[0] == 0 else 0  # a cut along another dimension has a part of every row
    for at, pair in enumerate(zip(expected, held, strict=True), start=first):
        if pair[0] != pair[1]:
            yield at


def _is_permuted(expected: list[str], held: list[str]) -> bool:
    """Whether the same rows are there, in another order."""
    return Counter(expected) == Counter(held)


def _tensor_instead(
    name: str, shape: torch.Size, learned: Learned, shards: list[tuple[Cut | None, str, list[str]]]
) -> str:
    """Return the learner's tensor of this shape whose rows all of these workers hold instead; "" where there is none.

    `shards`: the cut, the type and the row digests of what each worker holds.
    """
    for peer_name in learned.names:
        if peer_name == name:
            continue
        tensor = learned.tensor(peer_name)
        if tensor.shape != shape:
            continue
        if all(digests(_part(tensor, cut).to(getattr(torch, dtype))) == rows for cut, dtype, rows in shards):
            return peer_name
    return ""


def _of_another_rank(wrong: list[int], expected_rows: list[list[str]], held_rows: list[list[str]]) -> str:
    """Return in words whose part each of these workers holds, where it is another worker's; "" otherwise."""
    whose = [next((peer for peer, rows in enumerate(expected_rows) if rows == held_rows[rank]), None) for rank in wrong]
    if None in whose:
        return ""
    return ", ".join(f"rank {rank} holds the shard of rank {peer}" for rank, peer in zip(wrong, whose, strict=True))


def _worst(workers: list[dict[str, tuple[str, torch.Tensor | None]]]) -> dict[str, str]:
    """Return the state of each buffer over all workers; a worker that differs decides."""
    states: dict[str, str] = {}
    for state in ("equal", "not tested", "differs"):  # later states overwrite earlier ones
        for worker in workers:
            states |= {name: state for name, (buffer_state, _) in worker.items() if buffer_state == state}
    return states


def _buffers(buffers: dict[str, torch.Tensor], model: Any) -> dict[str, tuple[str, torch.Tensor | None]]:
    """Return name -> (equal, differs or not tested, what the configuration computes)."""
    states: dict[str, tuple[str, torch.Tensor | None]] = {}
    for name, buffer in buffers.items():
        right = _expected(name, buffer, model)
        if right is None:
            states[name] = ("not tested", None)
            continue
        # A table of angles has a row for each position, and its rounding grows with the position. Any other buffer is
        # held to the size of its own numbers.
        gap = (buffer.double() - right.double()).abs()
        allowed = ROTARY_ROUNDINGS * max(torch.finfo(buffer.dtype).eps, torch.finfo(torch.float32).eps)
        if gap.ndim > 1:
            gap = gap / torch.arange(1, len(gap) + 1, dtype=torch.float64)[:, None]
        else:
            gap = gap / right.double().abs().clamp(min=torch.finfo(torch.float32).tiny)
        states[name] = ("equal" if bool((gap <= allowed).all()) else "differs", right)
    return states


def _expected(name: str, buffer: torch.Tensor, model: Any) -> torch.Tensor | None:
    """Return what the model's configuration computes for a buffer; None where that is unknown.

    `model`: the learner's, which Transformers made of the same configuration.
    """
    last = name.rpartition(".")[2]
    if last.lstrip("_") in CACHE_SCALES and buffer.numel() == 1:
        return torch.ones_like(buffer)  # of an unquantized cache; other scales are parameters of a checkpoint
    rotary = _rotary(last, buffer, model)
    if rotary is not None:
        return rotary
    same_name = None if model is None or "rotary" in name else dict(model.named_buffers()).get(name)
    if same_name is not None and same_name.shape == buffer.shape and same_name.is_floating_point():
        return same_name.detach().cpu().to(buffer.dtype)
    return None


def _rotary(last: str, buffer: torch.Tensor, model: Any) -> torch.Tensor | None:
    """Return what the model's rotary embedding has for a buffer of this name; None where it has none, or where its kind
    is one that the configuration alone does not determine.
    """
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    types = getattr(rotary, "rope_type", "default")
    if rotary is None or {*(types.values() if isinstance(types, dict) else [types])} & {*UNKNOWN_ROTARY}:
        return None
    # Made again, because a reference may have computed with other frequencies.
    made = dict(type(rotary)(rotary.config).named_buffers(remove_duplicate=False))
    if last in made and made[last].shape == buffer.shape:
        return made[last].float().cpu().to(buffer.dtype)
    frequencies = made["inv_freq"].float().cpu() if "inv_freq" in made else None
    if frequencies is None or last != "cos_sin_cache" or buffer.shape[1:] != (2 * len(frequencies),):
        return None
    angles = torch.outer(torch.arange(len(buffer), dtype=torch.float32), frequencies)
    scaling = float(getattr(rotary, "attention_scaling", 1.0))
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling).to(buffer.dtype)
