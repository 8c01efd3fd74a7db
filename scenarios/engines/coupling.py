"""Coupled sampling: the drawn token is a pure function of (logits, seed, sample, position), so two engines draw the
same.

The engine's sampler is replaced by a Gumbel-max draw. Its noise comes from a counter-based generator (Philox4x32-10,
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in integer torch operations: the same integers on a
CPU and a GPU, no state, no round trip to the host. argmax(logits/T + Gumbel) is an exact sample of softmax(logits/T)
(Gumbel 1954; Maddison et al. 2014).

Every engine applies the same order: that of `sampling.filtered`, then noise and argmax. Repetition penalties are
refused in coupled mode (`parameters`), because engines disagree about the tokens that they cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scenarios.engines.canonical import COUPLED
from scenarios.engines.sampling import TopPRule, barred, filtered
from scenarios.plants import inside
from scenarios.settings import CoupledSampling, Sampling

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF  # 32 bits: words of Philox 4x32
EDGE = 0.02  # nats by which half precision shifts the edge of a filter: four times the mean error of a log-probability


@dataclass(frozen=True)
class Draw(CoupledSampling):
    """What one coupled request needs. It is passed to the engines as plain JSON (`to_json`).

    A planted fault overrides the methods to draw differently.
    """

    seed: int
    sample: int
    offset: int = 0  # response tokens that are in the prompt already (guided continuation)
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()  # ids that are masked until min_tokens were drawn
    joint: bool = False  # top-p over the unfiltered mass beside top-k, as in SGLang's own sampler
    exclusive: bool = False  # top-p leaves out the token that reaches its share

    @staticmethod
    def of(
        sampling: Sampling, *, seed: int, sample: int, offset: int = 0, ends: Iterable[int] = (), joint: bool = False
    ) -> Draw:
        """Return the draw of one sample. `ends`: ids that would end it, masked until `min_tokens`. A greedy sampler
        gets T = 1.
        """
        applied = {name: getattr(sampling, name) for name in COUPLED}
        end_ids = tuple(sorted(ends)) if sampling.min_tokens else ()
        draw = Draw(seed, sample, offset, **applied, min_tokens=sampling.min_tokens, end_ids=end_ids, joint=joint)
        return draw if draw.temperature else replace(draw, temperature=1.0)

    @property
    def top_p_rule(self) -> TopPRule:
        """Return which tokens top-p keeps."""
        return TopPRule(self.joint, self.exclusive)

    @property
    def reports_adjusted(self) -> bool:
        """Whether log-probabilities are those of the `adjusted` logits."""
        return False

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self), end_ids=list(self.end_ids))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Draw:
        plants = inside()
        make = Draw if plants is None else plants.draw
        return make(**dict(data, end_ids=tuple(data.get("end_ids", ()))))

    def chosen(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Return the token, int64 (1,), for one row of logits (1, vocab)."""
        return perturbed(logits, self, torch.tensor([position], device=logits.device)).argmax(dim=-1)

    def adjusted(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        """Return the logits (1, vocab) from which the embedded engine draws, after the tokens of `prompt` and
        `output`.
        """
        return logits

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Return the log-probabilities (1, vocab) that are reported; None for the model's own."""
        return None

    def settled(self, probabilities: torch.Tensor, step: int) -> torch.Tensor:
        """Return the probabilities (vocab,) from which the embedded engine's own sampler draws."""
        return probabilities


def philox(counter: tuple[torch.Tensor, ...], key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Return four int64 tensors of 32-bit words: the output of Philox4x32-10.

    `counter`: four broadcastable int64 tensors of 32-bit words. `key`: two words. int64 products wrap modulo 2**64,
    which keeps both halves of a 32x32-bit product. The shift is arithmetic, hence the masks.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key[0] & _MASK, key[1] & _MASK
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: int, samples: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return Gumbel(0, 1) noise, float64, shape (n, vocab). Row i is a pure function of (seed, samples[i],
    positions[i]).
    """
    return -torch.log(-torch.log(uniform(seed, samples, positions, vocab)))


def uniform(seed: int, samples: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Return uniform numbers in (0, 1), float64, shape (n, vocab), from which `gumbel` is made.

    `samples` and `positions` are int64 of shape (n,). Each number has 52 random bits, so the tail of the Gumbel noise
    reaches 36 nats; 24 bits would cut it at 17.
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
    """Return scores whose argmax is the coupled draw, float64 (n, vocab), for one sample at response `positions`
    (n,).

    `positions` count from the start of the response. `slack`: see `filtered`. The difference of two entries is a
    margin in nats of logits/T.
    """
    [scores] = perturbed_with(logits, draw, positions, (slack,))
    return scores


def perturbed_with(
    logits: torch.Tensor, draw: Draw, positions: torch.Tensor, slacks: Sequence[float]
) -> list[torch.Tensor]:
    """Return the scores of `perturbed` for each slack. Their noise, which costs most, is made once."""
    scores = barred(logits, positions, draw.min_tokens, draw.end_ids)
    samples = torch.full_like(positions, draw.sample)
    noise = gumbel(draw.seed, samples, positions, logits.shape[-1])
    return [filtered(scores, draw, slack) + noise for slack in slacks]


def reported(logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
    """Return the log-probabilities that are reported for each row, (n, vocab): the model's own, unless a draw has
    others.
    """
    rows = torch.log_softmax(logits.float(), dim=-1)
    for row, draw in enumerate(draws):
        adjusted_logprobs = draw.logprobs(logits[row : row + 1])
        if adjusted_logprobs is not None:
            rows[row] = adjusted_logprobs[0].to(rows.dtype)
    return rows


def adjusted(
    logits: torch.Tensor, draws: list[Draw], prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Return the logits (n, vocab) from which the embedded engine draws. `prompts`: the tokens before each row's
    output.
    """
    if all(type(draw) is Draw for draw in draws):
        return logits
    rows = enumerate(zip(draws, prompts, outputs, strict=True))
    return torch.cat([draw.adjusted(logits[row : row + 1], prompt, output) for row, (draw, prompt, output) in rows])


def choose(logits: torch.Tensor, draws: list[Draw], positions: list[int]) -> torch.Tensor:
    """Return the coupled token of each row, int64 (n,). Rows may belong to different samples with different
    parameters.
    """
    device = logits.device
    keys = {(d.seed, d.top_p_rule, *(getattr(d, name) for name in COUPLED)) for d in draws}
    # One set of parameters for all rows is the common case: all are drawn at once. A planted draw is a subclass, which
    # must be asked row by row, and so must rows whose end tokens may be masked.
    if len(keys) == 1 and all(type(d) is Draw and not d.min_tokens for d in draws):
        first = draws[0]
        samples = torch.tensor([d.sample for d in draws], device=device, dtype=torch.int64)
        places = torch.tensor(positions, device=device, dtype=torch.int64)
        return (filtered(logits, first) + gumbel(first.seed, samples, places, logits.shape[-1])).argmax(dim=-1)
    rows = enumerate(zip(draws, positions, strict=True))
    return torch.cat([draw.chosen(logits[row : row + 1], position) for row, (draw, position) in rows])


def draw_rows(logits: torch.Tensor, rows: list[int], draws: list[Draw], positions: list[int]) -> torch.Tensor:
    """Change these rows of logits in place so that every greedy sampler takes their coupled tokens."""
    if rows:
        picked = torch.tensor(rows, device=logits.device)
        logits[picked] = force(logits[picked], choose(logits[picked], draws, positions))
    return logits


def force(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Change logits in place so that every greedy sampler takes `tokens`: 0 at the token, -inf elsewhere."""
    logits.fill_(float("-inf"))
    logits.scatter_(-1, tokens[:, None], 0.0)
    return logits
