"""Reads what a live engine holds: its tensors in the checkpoint's layout, and its buffers. Runs in the engine's
process.

An order and its answer are dictionaries of plain values and tensors, packed as bytes (`packed`, `unpacked`), because
they pass through vLLM's workers, SGLang's scheduler and Ray. docs/explanation/attribution.md says what can be read
from which engine.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
from typing import Any

import torch

from probes.weights import digest
from scenarios.engines import leftovers

# Modules of a checkpoint that an engine fuses into one, their rows in this order. A model's own mapping takes
# precedence.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
PADDED = ("Embedding", "LMHead")  # classes of modules whose rows an engine may pad
# Classes of vLLM 0.32 and SGLang 0.5 whose weights tensor parallelism divides among the workers in order: along the
# inputs, the outputs, or the vocabulary. A module of another class can be read only where each worker holds the whole
# tensor.
BY_INPUTS = ("RowParallelLinear",)
BY_OUTPUTS = ("ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear")
BY_VOCABULARY = ("VocabParallelEmbedding", "ParallelLMHead")
BUFFER_NUMBERS = 1 << 24  # most numbers of one buffer that are read, from its first rows
CHUNK = 1024  # rows of the identity matrix that a packed layer is given at a time
WITNESS = "_harness_witness"
LOADING = "_harness_loading"
ROW = 8  # bytes of a row's digest


class Unreadable(Exception):
    """Why a tensor cannot be read back in the checkpoint's layout."""


def packed(content: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    message: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return message


Cut = tuple[int, int, int]  # of a tensor: dimension, start, size; as of torch.narrow


@torch.no_grad()
def answer(
    model: Any, order: bytes, saved: dict[str, torch.Tensor] | None = None, *, rank: int = 0, workers: int = 1
) -> bytes:
    """Answer one order about the live `model`, for the part of it that this worker holds.

    `saved`: its tensors under their names in the checkpoint, where these are not its parameters' names. `rank`: of
    this worker among the tensor-parallel `workers`. Orders and answers:

    {"shapes": {name: sizes}}: {"rows": {name: digests of its rows}, "cuts": {name: this worker's part of the tensor,
    where it is not all}, "dtypes", "unreadable": {name: reason}}. With "values": names, those tensors too.
    {"buffers": rows}: {"buffers": {name: its first rows}}.
    {"write": {name: tensor}}: the first rows of these buffers are overwritten.
    {"watch": True}: forward passes are observed from now on. {"watch": False}: {"ids", "positions", "keys"} that they
    have received since.
    {"leftovers": True}: {"leftovers": what has changed in this process and its model since this order first came}.
    {"loaded": True}: {"loaded": `Loading.compare` of the last sync; None before the first sync}.
    """
    request = unpacked(order)
    reply: dict[str, Any] = {}
    if "loaded" in request:
        loading: Loading | None = model.__dict__.get(LOADING)
        reply["loaded"] = None if loading is None else loading.compare(model, saved)
    if "leftovers" in request:
        reply["leftovers"] = leftovers.of_process(type(model).__module__.partition(".")[0]) + leftovers.of_model(model)
    if request.get("watch"):
        object.__setattr__(model, WITNESS, Witness(model))
    elif "watch" in request:
        reply |= model.__dict__.pop(WITNESS).take()
    if "write" in request:
        buffers = dict(model.named_buffers())
        for name, rows in request["write"].items():
            buffers[name][: len(rows)].copy_(rows) if buffers[name].ndim else buffers[name].copy_(rows)
    if "buffers" in request:
        reply["buffers"] = {name: _first(buffer, request["buffers"]) for name, buffer in model.named_buffers()}
    if "shapes" in request:
        shapes = {name: tuple(sizes) for name, sizes in request["shapes"].items()}
        reply |= _rows(Reader(model, shapes, saved, rank=rank, workers=workers), request)
    return packed(reply)


def _first(buffer: torch.Tensor, rows: int) -> torch.Tensor:
    if not buffer.ndim:
        return buffer.detach().cpu().clone()
    width = max(1, buffer[0].numel()) if len(buffer) else 1
    return buffer[: min(rows, max(1, BUFFER_NUMBERS // width))].detach().cpu().clone()


def _rows(reader: Reader, request: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, list[str]] = {}
    dtypes: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    values: dict[str, torch.Tensor] = {}
    cuts: dict[str, Cut] = {}
    for name in request["shapes"]:
        try:
            tensor, cut = reader.read(name), reader.cut(name)
        except Unreadable as reason:  # one tensor in a layout of its own leaves the others readable
            unreadable[name] = str(reason)
            continue
        rows[name], dtypes[name] = digests(tensor), str(tensor.dtype).removeprefix("torch.")
        if cut is not None:
            cuts[name] = cut
        if name in request.get("values", ()):
            values[name] = tensor.clone()
    return {"rows": rows, "cuts": cuts, "dtypes": dtypes, "unreadable": unreadable, "values": values}


def digests(tensor: torch.Tensor) -> list[str]:
    """Return a digest of each row of `_plain(tensor)`; for a vector, of each number."""
    tensor = _plain(tensor)
    if not tensor.numel():
        return []
    raw = tensor.reshape(len(tensor), -1).view(torch.uint8).numpy()
    return [hashlib.sha256(row).hexdigest()[: 2 * ROW] for row in raw]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU copy without signs of zeros and without subnormal numbers: products that read a packed layer lose
    them.
    """
    tensor = tensor.detach().cpu().contiguous().reshape(tensor.shape or (1,))
    return torch.where(tensor.abs() < torch.finfo(tensor.dtype).tiny, torch.zeros_like(tensor), tensor)


class Loading:
    """Compares what one worker should hold after a sync, its part of each tensor that arrived, with what it does
    hold.

    A digest of what arrived proves only the transport, and a later sync may correct what an earlier one left. So only
    a comparison after each sync shows that a worker did not load its part. `rank`: of this worker among the
    tensor-parallel `workers`.
    """

    def __init__(self, rank: int, workers: int) -> None:
        self._rank, self._workers = rank, workers
        self._shapes: dict[str, tuple[int, ...]] = {}  # of all syncs, because a fused parameter needs all of its parts
        self._parts: dict[str, tuple[Cut | None, torch.dtype]] = {}
        self._arrived: dict[str, str] = {}  # tensor -> digest of this worker's part, in the last sync
        self._before: dict[str, str] = {}  # the same, in the last sync before it that sent the tensor
        self._held: dict[str, str] = {}  # tensor -> digest of what the worker held when it was last compared

    @classmethod
    def of(cls, model: Any, *, rank: int = 0, workers: int = 1) -> Loading:
        """Return the instance of this model, made at the first call."""
        if LOADING not in model.__dict__:
            object.__setattr__(model, LOADING, cls(rank, workers))
        loading: Loading = model.__dict__[LOADING]
        return loading

    def begin(
        self, model: Any, shapes: dict[str, tuple[int, ...]], saved: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Prepare for a sync of these tensors. Must be called before the load changes the engine's own layout."""
        # `_before` keeps what the last sync that sent a tensor brought: a later one may leave it out.
        self._before |= self._arrived
        self._arrived, self._parts = {}, {}
        self._shapes |= shapes
        reader = self._reader(model, saved)
        for name in shapes:
            try:
                self._parts[name] = reader.cut(name), reader.dtype(name)
            except Unreadable:
                continue

    def arrived(self, name: str, tensor: torch.Tensor) -> None:
        """Keep the digest of a tensor that arrived. Must be called before the tensor is loaded."""
        if name not in self._parts:
            return
        cut, dtype = self._parts[name]
        self._arrived[name] = digest(_plain((tensor if cut is None else tensor.narrow(*cut)).to(dtype)))

    def compare(self, model: Any, saved: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """Compare what the worker holds with what arrived. Must be called after each sync.

        Return {"read": names of tensors that could be compared, "otherwise": {name: whether the worker kept its old
        value}}. The second lists tensors that differ from what arrived. "Kept" means: what the worker holds did not
        change although what arrived did.
        """
        reader, read, otherwise = self._reader(model, saved), [], {}
        for name, expected in self._arrived.items():
            try:
                held_digest = digest(_plain(reader.read(name)))
            except Unreadable:
                continue
            read.append(name)
            if held_digest != expected:
                otherwise[name] = held_digest == self._held.get(name) and expected != self._before.get(name)
            self._held[name] = held_digest
        return {"read": read, "otherwise": otherwise}

    def _reader(self, model: Any, saved: dict[str, torch.Tensor] | None) -> Reader:
        return Reader(model, self._shapes, saved, rank=self._rank, workers=self._workers)


class Reader:
    """Reads a worker's part of each tensor.

    `shapes`: of all the checkpoint's tensors that may be asked for. `rank`: of this worker among the tensor-parallel
    `workers`, each of which has a reader of its own.
    """

    def __init__(
        self,
        model: Any,
        shapes: dict[str, tuple[int, ...]],
        saved: dict[str, torch.Tensor] | None = None,
        *,
        rank: int = 0,
        workers: int = 1,
    ) -> None:
        self._model, self._shapes = model, shapes
        self._rank, self._workers = rank, workers
        self._parameters = saved or dict(model.named_parameters(remove_duplicate=False))
        self._modules = dict(model.named_modules())
        packed_modules = getattr(model, "packed_modules_mapping", None) or {}
        self._fused = FUSED | {name: tuple(parts) for name, parts in packed_modules.items()}
        self._whole: dict[str, torch.Tensor] = {}  # the last parameter that was read; its parts are asked for next
        self._transposed: dict[str, bool] = {}  # last word of a module's name -> whether its weights are held so

    def read(self, name: str) -> torch.Tensor:
        """Return the worker's part of the tensor in the checkpoint's layout. Raises Unreadable."""
        shape = self._shape(name)
        if name in self._parameters:
            tensor = self._parameter(name)
            if self._is_transposed(name):
                tensor = tensor.t()
            # A vocabulary is padded at its end, to a size that divides evenly among workers.
            if tensor.shape[1:] == shape[1:] and len(tensor) > shape[0] and self._may_pad(name):
                tensor = tensor[: shape[0]]
        else:
            tensor = self._part(name)
        if tuple(tensor.shape) != shape:
            raise Unreadable(f"held as {tuple(tensor.shape)}, not {shape}")
        return tensor

    def cut(self, name: str) -> Cut | None:
        """Return the part of the tensor that this worker should hold; None for all of it. Raises Unreadable."""
        shape, parameter = self._shapes[name], name if name in self._parameters else self._fusion(name)[0]
        module: Any = self._modules.get(parameter.rpartition(".")[0])
        kind, workers = type(module).__name__, getattr(module, "tp_size", self._workers)
        dim = 1 if kind in BY_INPUTS else 0
        if workers == 1 or dim >= len(shape):  # the bias of a layer divided along its inputs is whole on every worker
            return None
        if kind in BY_VOCABULARY:
            start, end = module.shard_indices.org_vocab_start_index, module.shard_indices.org_vocab_end_index
            return (0, start, end - start)
        if kind not in (*BY_INPUTS, *BY_OUTPUTS):
            return None
        rank = getattr(module, "tp_rank", self._rank)
        if kind == "QKVParallelLinear" and not name.rpartition(".")[0].endswith("q_proj"):
            # With more workers than key-value heads, several workers hold the same head.
            workers, rank = workers // module.num_kv_head_replicas, rank // module.num_kv_head_replicas
        if shape[dim] % workers:
            raise Unreadable(f"{shape[dim]} are not cut evenly for {workers} workers")
        size = shape[dim] // workers
        return (dim, rank * size, size)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type in which the engine holds the tensor. Raises Unreadable."""
        return self._parameters[name if name in self._parameters else self._fusion(name)[0]].dtype

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of the part that this worker should hold."""
        shape, cut = self._shapes[name], self.cut(name)
        return shape if cut is None else (*shape[: cut[0]], cut[2], *shape[cut[0] + 1 :])

    def _fusion(self, name: str) -> tuple[str, list[str]]:
        """Return the fused parameter that contains this tensor, and all its parts in order. Raises Unreadable."""
        module, _, kind = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        for fused, parts in self._fused.items():
            fused_name, members = f"{parent}.{fused}.{kind}", [f"{parent}.{part}.{kind}" for part in parts]
            if last in parts and fused_name in self._parameters and set(members) <= set(self._shapes):
                return fused_name, members
        raise Unreadable("the engine has no parameter of that name, nor one that it would be a part of")

    def _part(self, name: str) -> torch.Tensor:
        fused_name, members = self._fusion(name)
        sizes, fused_tensor = [self._shape(member)[0] for member in members], self._parameter(fused_name)
        if len(fused_tensor) != sum(sizes):
            raise Unreadable(f"{fused_name} has {len(fused_tensor)} rows for {sum(sizes)}")
        return fused_tensor.split(sizes)[members.index(name)]

    def _is_transposed(self, name: str) -> bool:
        """Whether an engine holds the weights of modules of this name as transposes of the checkpoint's, as those of
        GPT-2's Conv1D. A square weight does not show it: others of the same name do. Raises Unreadable.
        """
        kind = _kind(name)
        if kind not in self._transposed:
            tellers = (
                weight for weight, shape in self._shapes.items()
                if _kind(weight) == kind and len(set(shape)) == len(shape) == 2 and weight in self._parameters
            )  # fmt: skip
            teller = next(tellers, None)
            self._transposed[kind] = (
                teller is not None and tuple(self._parameter(teller).shape) == self._shapes[teller][::-1]
            )
        if self._transposed[kind] and self._workers > 1:
            raise Unreadable("held as a transpose, of which several workers hold parts")
        return self._transposed[kind]

    def _may_pad(self, name: str) -> bool:
        owner = self._model.get_submodule(name.rpartition(".")[0])
        return any(word in type(owner).__name__ for word in PADDED)

    def _parameter(self, name: str) -> torch.Tensor:
        if name not in self._whole:
            parameter = self._parameters[name]
            owner = self._modules.get(name.rpartition(".")[0])
            if parameter.numel() and not getattr(owner, "use_intel_amx_backend", False):
                self._whole = {name: parameter.detach().cpu()}
            else:
                self._whole = {name: _unpacked_by_product(owner, parameter)}
        return self._whole[name]


def _kind(name: str) -> str:
    """Return the last word of the name of a tensor's module, and the tensor's own: `c_proj.weight`."""
    return ".".join(name.split(".")[-2:])


def _unpacked_by_product(layer: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return the weight of a linear layer that keeps it only in packed form, as the layer's output for the identity
    matrix.

    This is exact, because each output is one weight times one plus zeros. Raises Unreadable.
    """
    method, width = getattr(layer, "quant_method", None), getattr(layer, "input_size_per_partition", None)
    width = width or getattr(layer, "input_size", None)
    if method is None or width is None:
        raise Unreadable("packed, in a layer that is no linear one")
    if not type(method).__name__.startswith("Unquantized"):
        raise Unreadable(f"packed by {type(method).__name__}")
    eye = torch.eye(width, dtype=parameter.dtype, device=parameter.device)
    parts = [method.apply(layer, eye[start : start + CHUNK].contiguous(), None) for start in range(0, width, CHUNK)]
    return torch.cat(parts).T.detach().cpu()


class Witness:
    """Records the ids, positions and numbers of keys that a decoder's forward passes receive, whatever the engine
    reports.

    They are read at the embeddings and at the decoder's own arguments. `forward` is wrapped, because vLLM calls it
    without the hooks of a module. A CUDA graph or a compiled model calls neither; then nothing is recorded.
    """

    def __init__(self, model: Any) -> None:
        self._ids: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._keys: list[tuple[int, int]] = []
        self._decoder = getattr(model, "model", None)
        embeddings = getattr(self._decoder, "embed_tokens", None)
        self._handle = None
        if self._decoder is not None and embeddings is not None:
            self._handle = embeddings.register_forward_pre_hook(self._embedded)
            self._replaced, forward = self._decoder.__dict__.get("forward"), self._decoder.forward

            @functools.wraps(forward)
            def watched(*inputs: Any, **named: Any) -> Any:
                self._called(inputs, named)
                return forward(*inputs, **named)

            self._decoder.__dict__["forward"] = watched

    def _embedded(self, module: Any, inputs: Any) -> None:
        self._ids.append(inputs[0].detach().flatten().cpu().clone())

    def _called(self, inputs: Any, named: dict[str, Any]) -> None:
        positions = named.get("positions", named.get("position_ids"))
        if positions is None and len(inputs) > 1 and isinstance(inputs[1], torch.Tensor):
            positions = inputs[1]
        if positions is None:
            return
        self._positions.append(positions.detach().reshape(-1).cpu().clone())
        keys = keys_read((*inputs, *named.values()), named.get("attention_mask"), positions.shape[-1])
        if keys is not None:
            self._keys += zip(self._positions[-1].tolist(), keys.tolist(), strict=False)  # a batch may be padded

    def take(self) -> dict[str, list[Any]]:
        """Stop recording, and return {"ids", "positions", "keys"} of all recorded tokens in order.

        `keys`: (position, number of keys and values that its attention read), for the tokens where that can be seen.
        """
        if self._handle is not None:
            self._handle.remove()
            del self._decoder.__dict__["forward"]
            if self._replaced is not None:
                self._decoder.__dict__["forward"] = self._replaced
        parts_by_name = {"ids": self._ids, "positions": self._positions}
        return {name: torch.cat(parts).tolist() if parts else [] for name, parts in parts_by_name.items()} | {
            "keys": self._keys
        }


def keys_read(arguments: tuple[Any, ...], mask: Any, tokens: int) -> torch.Tensor | None:
    """Return how many keys and values attention reads for each token of a forward pass that has begun; None where
    unknown.

    `tokens`: per row of the pass. `seq_lens` of SGLang's batch and of vLLM's metadata are what their CPU backends
    pass to the kernel (intel_amx_backend.py of 0.5.23, cpu_attn.py of 0.32.0). Transformers has a mask.
    """
    batch = next((argument for argument in arguments if hasattr(argument, "seq_lens")), None)
    if batch is not None:
        queries = getattr(batch, "extend_seq_lens", None)
        return _lengths(batch.seq_lens, torch.ones_like(batch.seq_lens) if queries is None else queries)
    context = sys.modules.get("vllm.forward_context")
    if context is not None and context.is_forward_context_available():
        layers = context.get_forward_context().attn_metadata
        first: Any = next(iter(layers.values()), None) if isinstance(layers, dict) else None
        if hasattr(first, "seq_lens") and hasattr(first, "query_start_loc"):
            queries = first.query_start_loc.diff()
            return _lengths(first.seq_lens[: len(queries)], queries)
        return None
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        return mask.long().cumsum(-1)[:, -tokens:].flatten().cpu()
    return None


def _lengths(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return the number of keys per token.

    `keys`: of each request, after its last token. `queries`: how many of its tokens are in this pass.
    """
    rows = zip(keys.tolist(), queries.tolist(), strict=True)
    return torch.cat([torch.arange(last - count + 1, last + 1) for last, count in rows])
