"""Which operations of two ranks may meet at one sequence number although their sizes differ.

Compared is only what must be equal on every rank: numbers of elements rather than shapes, and only the side of an
operation that may not differ by design. Names are those of NCCL and gloo, without the backend's prefix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from probes import limits

Sizes = tuple[tuple[int, ...], ...]


class Kind(NamedTuple):
    """What an operation is, without its time. Equal operations of one rank share one Kind."""

    op: str  # without its backend prefix; "send 0->1" keeps its peers, which are ranks in the group
    inputs: Sizes
    outputs: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]


class Signature(NamedTuple):
    """What must be equal on all ranks at one sequence number."""

    op: str
    numels: tuple[int, ...]
    dtypes: tuple[str, ...]


def signature(kind: Kind) -> Signature:
    """The part of an operation that its peers must share."""
    family = kind.op.lower().removeprefix("_")
    inputs, outputs = _numels(kind.inputs), _numels(kind.outputs)
    if family.startswith(("all_to_all", "alltoall")):
        return Signature(kind.op, (), kind.input_dtypes[:1])  # each rank may send a different amount
    if family.startswith("scatter"):
        return Signature(kind.op, outputs, kind.output_dtypes)  # only the root has an input
    if family.startswith(("gather", "reduce_scatter")):
        return Signature(kind.op, inputs, kind.input_dtypes)  # only the root has an output; uneven shares
    if family.startswith(("all_gather", "allgather", "broadcast")):
        side = outputs if outputs else inputs  # shares may be uneven, and a broadcast's root may have only an input
        # One flat output and an output of world × shares are equal.
        return Signature(kind.op, (sum(side),), (kind.output_dtypes or kind.input_dtypes)[:1])
    return Signature(kind.op, inputs, kind.input_dtypes)


def coalesced(kinds: tuple[Kind, ...]) -> Kind:
    """One Kind for several operations that were launched as one and share a sequence number."""
    names = [kind.op for kind in kinds if kind.op != "coalesced"]
    counted = " + ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    return Kind(
        f"coalesced({counted})",
        tuple((sum(sign.numels),) for sign in map(signature, kinds) if sign.op != "coalesced"),
        (),
        tuple(dict.fromkeys(dtype for kind in kinds for dtype in signature(kind).dtypes)),
        (),
    )


def described(kind: Kind) -> str:
    """Sizes for people: [4096] -> [8, 4096]."""
    sides = [", ".join(str(list(shape)) for shape in side[:4]) for side in (kind.inputs, kind.outputs)]
    return " -> ".join(side or "nothing" for side in sides)


def peers(op: str) -> tuple[int, int] | None:
    """(from, to) of "send 0->1" or "recv 1<-0", as ranks in the group; None for other operations."""
    word, _, ranks_text = op.partition(" ")
    arrow = "->" if word == "send" else "<-" if word == "recv" else ""
    left, _, right = ranks_text.partition(arrow) if arrow else ("", "", "")
    left_rank, right_rank = limits.rank(left), limits.rank(right)
    if left_rank is None or right_rank is None:
        return None
    return (left_rank, right_rank) if word == "send" else (right_rank, left_rank)


def _numels(sizes: Sizes) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in sizes)
