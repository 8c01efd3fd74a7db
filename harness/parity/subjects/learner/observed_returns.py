"""Whether a learner's returns are what its rewards, values and KL penalty give.

Generalised advantage estimation ties each return to the next, so the reward that a token was given follows from them:
r_t = R_t - γλ (R_{t+1} - V_{t+1}) - γ V_{t+1}, with nothing after the last token (Schulman et al., 2016, equation 16;
`scenarios.ppo.advantages`). It must be -kl_coef × KL, and the sample's reward besides at its last token. Only runs of
the harness's own trainer say by which γ and λ they were made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from harness.parity.facts.align import AlignedTokens, Match
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder, items_of
from harness.parity.subjects.learner.observed_experience import ROUNDINGS
from harness.parity.subjects.learner.observed_learner_faults import Reading, Returns
from harness.parity.subjects.log_probabilities import observed_separations
from harness.parity.subjects.log_probabilities.observed_properties import StepTokens
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from harness.parity.subjects.log_probabilities.observed_separations import Sums, separations
from harness.parity.subjects.precision.observed_floor import EPSILON
from harness.parity.subjects.recording.observed_step_consistency import StepTables
from harness.recordings.records.run_settings import LearnerSettings
from harness.recordings.tables import Rows, Table
from reports.model import Place
from reports.text import figure

FEWEST = 5  # samples whose returns follow: then they are made as the settings say
COLUMNS = ("kl", "value", "return")


@dataclass(frozen=True)
class _StepRewards:
    """The rewards of one step's tokens, flat: what the returns imply, and what was recorded.

    `penalty`: of each token. `terminal`: the sample's reward, at its last token, 0 elsewhere. `allowed`: roundings.
    """

    implied: np.ndarray
    penalty: np.ndarray
    terminal: np.ndarray
    allowed: np.ndarray

    def wrong(self, reading: Reading | None = None) -> np.ndarray:
        """Return a mask of tokens whose return does not follow, where a term is left out."""
        penalty = 0.0 if reading is Reading.NO_PENALTY else self.penalty
        terminal = 0.0 if reading is Reading.NO_REWARD else self.terminal
        wrong: np.ndarray = ~(np.abs(self.implied - penalty - terminal) <= self.allowed)
        return wrong


@dataclass
class ReturnSums:
    """What the steps of one side have shown so far."""

    compared: int = 0
    sums: Sums = field(default_factory=dict)
    items: list[np.ndarray] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    repaired: dict[Reading, int] = field(default_factory=lambda: dict.fromkeys(Reading, 0))

    def add(self, side: SideBuilder, rollout: Table, experience: Table, specials: Iterable[int]) -> None:
        """Compare one step's returns with its rewards, where both are recorded."""
        rewards = _rewards(side.recording.records.settings.learner, experience)
        tokens, output = experience.rows("tokens"), rollout.rows("output")
        if rewards is None or tokens is None or output is None:
            return
        self.compared += len(experience.sample)
        wrong = rewards.wrong()
        rows = np.unique(tokens.row_of(np.flatnonzero(wrong)))
        if not len(rows):
            return
        aligned = AlignedTokens.of(rollout, experience, Match.of(rollout.sample, experience.sample), output, tokens)
        nothing = np.full(aligned.grid.size, np.nan)
        step = StepTokens(aligned, nothing, nothing, None, tuple(specials))
        differs = aligned.take_b(Rows(wrong, tokens.offsets))
        observed_separations.count(self.sums, step, differs, np.ones(aligned.grid.size, bool))
        self.items.append(items_of(experience.step, experience.sample[rows]))
        for reading in Reading:
            still_wrong = np.unique(tokens.row_of(np.flatnonzero(rewards.wrong(reading))))
            self.repaired[reading] += len(np.setdiff1d(rows, still_wrong))
        self.places.append(_place(side, experience, tokens, rewards, int(np.flatnonzero(wrong)[0])))

    def returns(self, e: EvidenceBuilder, side: SideBuilder) -> Returns:
        """Return what the run showed, and note its divergences. Returns made in another way show nothing."""
        items = np.concatenate([np.empty((0, 2), np.int64), *self.items])
        # Readings that repair every wrong sample.
        repairing = [reading for reading, count in self.repaired.items() if count == len(items)]
        if not len(items):
            return Returns(self.compared)
        # A learner of which hardly any return follows may make all of them in another way. That shows nothing, unless
        # a reading of its rewards gives every one of several.
        few_follow = self.compared - len(items) < FEWEST
        if few_follow and (not repairing or len(items) < FEWEST):
            return Returns(0)
        for rows, place in zip(self.items, self.places, strict=True):
            e.note_divergence(Kind.RETURNS.of(side.name), rows[:, 1], place)
        exact = [separation for separation in separations(self.sums) if separation.exact]
        return Returns(self.compared, items, repairing[0] if len(repairing) == 1 else None, tuple(exact))


def note(e: EvidenceBuilder, side: SideBuilder, sums: ReturnSums, tables: StepTables) -> None:
    """Compare one step's returns with its rewards. A framework's job does not say how it makes its returns."""
    if side.recording.records.manifest.framework or tables.rollout is None or tables.experience is None:
        return
    sums.add(side, tables.rollout, tables.experience, tokenizer(e).specials)


def _rewards(settings: LearnerSettings, table: Table) -> _StepRewards | None:
    """Return the rewards of a step; None where a column or a setting is missing, or a number is not finite."""
    recorded, reward, tokens = table.together(*COLUMNS), table.flat("reward"), table.rows("tokens")
    gamma, coefficient = settings.gamma, settings.kl_coef
    if recorded is None or reward is None or tokens is None:
        return None
    if not all(np.array_equal(column.lengths, tokens.lengths) for column in recorded):
        return None
    kl, values, totals = (column.values.astype(np.float64) for column in recorded)
    ends = tokens.offsets[1:][tokens.lengths > 0] - 1
    if not np.isfinite([gamma, coefficient, settings.gae_lambda]).all():
        return None
    if not all(np.isfinite(numbers).all() for numbers in (kl, values, totals, reward)):
        return None
    penalty = -coefficient * kl
    # Generalised advantage estimation (Schulman et al. 2016) makes each return of the reward r of its token and of the
    # next token: R = r + γ V' + γλ (R' − V'). This is solved for r. Beyond a sample's last token V' and R' are 0.
    next_value, next_return = np.append(values[1:], 0.0), np.append(totals[1:], 0.0)
    next_value[ends], next_return[ends] = 0.0, 0.0
    terminal = np.zeros_like(totals)
    terminal[ends] = reward[tokens.lengths > 0]
    implied = totals - gamma * settings.gae_lambda * (next_return - next_value) - gamma * next_value
    # Every term is rounded in float32, so the reward may be off by a few roundings of their sizes.
    size = np.abs(totals) + np.abs(next_return) + np.abs(next_value) + np.abs(penalty) + np.abs(terminal)
    return _StepRewards(implied, penalty, terminal, ROUNDINGS * EPSILON / 2 * size)


def _place(side: SideBuilder, table: Table, tokens: Rows, rewards: _StepRewards, at: int) -> Place:
    row = int(tokens.row_of(np.array([at]))[0])
    recorded, implied = float(rewards.penalty[at] + rewards.terminal[at]), float(rewards.implied[at])
    return Place(
        **table.at(row),
        phase="experience",
        position=at - int(tokens.offsets[row]),
        field="reward in the return",
        **side.paired(implied, recorded),
        context=f"the {side.name}'s return gives this token a reward of {figure(implied)}; recorded are "
        f"{figure(recorded)}, with the KL penalty",
    )
