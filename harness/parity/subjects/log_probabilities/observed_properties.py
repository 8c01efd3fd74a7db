"""The properties of a token, or of its sample, by which differences can be separated: one registry.

Each property gives every token, or every sample, of a step a whole number. `Reads.FLAG`: 1 where it has the property.
`Reads.LABEL`: a name, such as an id or a rank. `Reads.AMOUNT`: a number that is compared, such as a position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from harness.parity.facts.align import AlignedTokens
from harness.recordings.tables import Rows

UNLIKELY = float(np.log(0.01))  # nats


class Reads(Enum):
    FLAG = auto()
    LABEL = auto()
    AMOUNT = auto()


@dataclass(frozen=True)
class StepTokens:
    """One step's tokens of an engine, with the learner's numbers, flat on the grid of `tokens`.

    `cached`: the number of tokens of each row's prompt from a cache; None where not recorded. `specials`: ids.
    """

    tokens: AlignedTokens
    engine: np.ndarray
    learner: np.ndarray
    cached: np.ndarray | None
    specials: tuple[int, ...]

    @property
    def position(self) -> np.ndarray:
        return self.tokens.grid.position

    @property
    def prompts(self) -> Rows | None:
        return self.tokens.a.rows("prompt")

    @property
    def prompt_lengths(self) -> np.ndarray | None:
        """Return [rows] the number of tokens of each row's prompt."""
        return None if self.prompts is None else self.prompts.lengths[self.tokens.match.a]

    @cached_property
    def place_in_group(self) -> np.ndarray | None:
        """Return [rows] how many rows with the same prompt have a smaller sample number; rows are in their order."""
        if self.prompts is None:
            return None
        seen: dict[bytes, int] = {}
        places = np.empty(len(self.tokens.match.a), np.int64)
        for row, recorded_row in enumerate(self.tokens.match.a):
            prompt = self.prompts.row(int(recorded_row)).tobytes()
            places[row] = seen.get(prompt, 0)
            seen[prompt] = places[row] + 1
        return places

    def finished(self, reason: str) -> np.ndarray | None:
        """Return the rows that ended for this reason."""
        finish = self.tokens.a.finish
        return None if finish is None else np.asarray(finish)[self.tokens.match.a] == reason


@dataclass(frozen=True)
class Property:
    """`name`: what tokens with it are called, or samples where it is `of_samples`; `{}` stands for a label or an
    amount. `of`: the number of each; None where the recording does not say.
    """

    name: str
    of: Callable[[StepTokens], np.ndarray | None]
    of_samples: bool = False
    reads: Reads = Reads.FLAG


def _ends(step: StepTokens) -> np.ndarray | None:
    stopped, grid = step.finished("stop"), step.tokens.grid
    is_last = grid.position == (grid.length - 1)[grid.row]
    return None if stopped is None else is_last & stopped[grid.row]


def _shorter(step: StepTokens) -> np.ndarray | None:
    lengths = step.prompt_lengths
    return None if lengths is None else lengths < lengths.max(initial=0)


def _repeated_prompts(step: StepTokens) -> np.ndarray | None:
    return None if step.place_in_group is None else step.place_in_group > 0


def _context(step: StepTokens) -> np.ndarray | None:
    lengths = step.prompt_lengths
    return None if lengths is None else step.position + lengths[step.tokens.grid.row]


ZERO = "tokens with a log-probability of exactly 0"
PADDED = "samples with a prompt shorter than the longest of the step, which a batch pads"
PROPERTIES = (
    Property("end tokens of samples that stopped", _ends),
    Property("first tokens of responses", lambda step: step.position == 0),
    Property(ZERO, lambda step: step.engine == 0.0),
    Property(PADDED, _shorter, True),
    Property("samples with cached tokens", lambda step: None if step.cached is None else step.cached > 0, True),
    Property("samples that a limit cut", lambda step: step.finished("length"), True),
    Property("samples whose prompt an earlier sample of the step has", _repeated_prompts, True),
    Property("special tokens", lambda step: np.isin(step.tokens.tokens_a, step.specials) if step.specials else None),
    Property("tokens that the learner gives less than 1 in 100", lambda step: step.learner < UNLIKELY),
    Property("tokens with the id {}", lambda step: step.tokens.tokens_a, reads=Reads.LABEL),
    Property("samples of rank {}", lambda step: step.tokens.a.rank[step.tokens.match.a], True, Reads.LABEL),
    Property("samples in place {} of their group", lambda step: step.place_in_group, True, Reads.LABEL),
    Property("tokens with {} tokens before them", _context, reads=Reads.AMOUNT),
    Property("tokens with {} tokens of the response before them", lambda step: step.position, reads=Reads.AMOUNT),
    Property("samples with a prompt of {} tokens", lambda step: step.prompt_lengths, True, Reads.AMOUNT),
    Property("samples with a response of {} tokens", lambda step: step.tokens.lengths_a, True, Reads.AMOUNT),
)
