"""Coupled sampling: the sample is a pure function of (logits, seed, sample, position), so two engines draw the same
one.

The engine's sampler is replaced by a Gumbel-max draw whose noise comes from a counter-based generator (Philox4x32-10,
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in integer torch operations: the same integers on a
CPU and a GPU, no state, no host round trip. argmax(logits/T + Gumbel) is an exact sample of softmax(logits/T) (Gumbel
1954; Maddison et al. 2014).

One order for every engine: that of `sampling.filtered`, then noise and argmax. Repetition penalties are refused in
coupled mode (`parameters`): engines disagree about what they cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from scenarios.engines.sampling import barred, filtered

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
EDGE = 0.02  # nats by which half precision moves the edge of a filter: four times the mean error of a log-probability


@dataclass(frozen=True)
class Draw:
    """What one coupled request needs: carried to the engines as plain JSON (`to_json`)."""

    seed: int
    sample: int
    offset: int = 0  # response tokens that are already in the prompt (guided continuation)
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()  # ids masked until min_tokens were drawn
    # What only planted faults set: another order of the filters, noise beside the coupled one, other log-probabilities.
    joint: bool = False  # top-p over the unfiltered mass beside top-k, as SGLang's own sampler has it
    jitter: float = 0.0  # uniform noise of so many nats on logits/T, the same at every call
    # tempered: at T, tempered:T at another one; filtered: renormalised over what top-k, top-p and min-p leave;
    # penalised: after the penalties below
    reported: str = "raw"
    second: int = 0  # every how many tokens the second best is taken; 0: never
    # Penalties on tokens that occurred, of the embedded engine: see `penalties.penalised`.
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def penalised(self) -> bool:
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self), end_ids=list(self.end_ids))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Draw:
        return Draw(**dict(data, end_ids=tuple(data.get("end_ids", ()))))


def philox(counter: tuple[torch.Tensor, ...], key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Philox4x32-10. `counter`: four broadcastable int64 tensors of 32-bit words; returns four int64 tensors of 32-bit
    words.

    int64 products wrap modulo 2**64, which keeps both halves of a 32x32-bit product; the shift is arithmetic, hence the
    masks.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key[0] & _MASK, key[1] & _MASK
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, samples: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Gumbel(0, 1) noise, float64, shape (n, vocab): row i is a pure function of (seed, samples[i], positions[i])."""
    return -torch.log(-torch.log(uniform(seed, samples, positions, vocab)))


def uniform(seed: int, samples: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64, shape (n, vocab): what `gumbel` is made of.

    `samples` and `positions` are int64 of shape (n,). 52 random bits a number: the tail of the Gumbel noise reaches 36
    nats, where 24 bits would cut it at 17.
    """
    device = samples.device
    # One Philox call gives four words: enough for two numbers, so half the counters cover the vocabulary.
    pairs = torch.arange((vocab + 1) // 2, device=device, dtype=torch.int64)
    zero = torch.zeros((), device=device, dtype=torch.int64)
    words = philox(
        (
            pairs[None, :] + zero,
            (positions[:, None] & _MASK) + zero,
            (samples[:, None] & _MASK) + zero,
            ((samples[:, None] >> 32) & _MASK) + zero,
        ),
        (seed & _MASK, (seed >> 32) & _MASK),
    )
    w0, w1, w2, w3 = torch.broadcast_tensors(*words)
    bits = torch.stack(((w0 << 20) | (w1 >> 12), (w2 << 20) | (w3 >> 12)), dim=-1).flatten(-2)[:, :vocab]
    return (bits.to(torch.float64) + 0.5) * 2.0**-52


def perturbed(logits: torch.Tensor, draw: Draw, positions: torch.Tensor, slack: float = 0.0) -> torch.Tensor:
    """Scores whose argmax is the coupled draw, float64 (n, vocab), for one sample at response `positions` (n,).
    `slack`: see `filtered`.

    `positions` count from the start of the response. Subtracting two entries gives a margin in nats of logits/T.
    """
    scores = barred(logits, positions, draw.min_tokens, draw.end_ids)
    samples = torch.full_like(positions, draw.sample)
    vocab = logits.shape[-1]
    noise = gumbel(draw.seed, samples, positions, vocab)
    if draw.jitter:
        noise = noise + draw.jitter * (2.0 * uniform(draw.seed + 1, samples, positions, vocab) - 1.0)
    return filtered(scores, draw, slack) + noise


def reported(logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """The log-probabilities that are reported for each row, (n, vocab): the model's own, unless a planted fault says
    otherwise."""
    rows = torch.log_softmax(logits.float(), dim=-1)
    for row, draw in enumerate(draws):
        if draw.reported not in ("raw", "penalised"):
            one = logits[row : row + 1]
            other = float(draw.reported.partition(":")[2] or draw.temperature)
            scores = filtered(one, draw) if draw.reported == "filtered" else one.float() / other
            rows[row] = torch.log_softmax(scores, dim=-1)[0].to(rows.dtype)
    return rows


def choose(logits: torch.Tensor, draws: list[Draw], positions: list[int]) -> torch.Tensor:
    """The coupled token of each row, int64 (n,). Rows may belong to different samples with different parameters."""
    device = logits.device
    keys = {(d.seed, d.temperature, d.top_k, d.top_p, d.min_p, d.joint) for d in draws}
    if len(keys) == 1 and not any(d.min_tokens or d.jitter or d.second for d in draws):
        first = draws[0]
        samples = torch.tensor([d.sample for d in draws], device=device, dtype=torch.int64)
        places = torch.tensor(positions, device=device, dtype=torch.int64)
        return (filtered(logits, first) + gumbel(first.seed, samples, places, logits.shape[-1])).argmax(dim=-1)
    rows = []
    for i, (draw, position) in enumerate(zip(draws, positions, strict=True)):
        scores = perturbed(logits[i : i + 1], draw, torch.tensor([position], device=device))
        best = scores.argmax(dim=-1)
        if seconded(draw, position):
            others = scores.scatter(-1, best[:, None], float("-inf"))
            best = torch.where(others.isfinite().any(), others.argmax(dim=-1), best)
        rows.append(best)
    return torch.cat(rows)


def seconded(draw: Draw, position: int) -> bool:
    """Whether a planted fault takes the second best token there."""
    return draw.second > 0 and (draw.sample + position) % draw.second == 0


def force(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Logits under which every greedy sampler takes `tokens`: 0 at the token, -inf elsewhere, in place."""
    logits.fill_(float("-inf"))
    logits.scatter_(-1, tokens[:, None], 0.0)
    return logits
