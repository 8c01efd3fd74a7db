"""The lifted stage: the weights of a half-precision run, computed with in float32.

Rounding falls by four orders of magnitude while logic errors remain, so that differences that half precision hides
can be judged at float32's floor. The weights that are sent and held keep the run's own bfloat16 or float16 values;
only the computation is wider.
"""

from __future__ import annotations

import dataclasses

from probes.format import LIFTED
from scenarios.settings import Scenario

HALF = ("bfloat16", "float16")
EXACT_LIMIT = 1_000_000_000  # parameters
FOLDER = LIFTED  # of the stage's own recording, in the run's directory


def lifts(scenario: Scenario) -> bool:
    """Whether a run has a lifted stage: half precision, common randomness, and not switched off."""
    coupled = scenario.rollout.mode in ("coupled", "greedy")
    return scenario.model.dtype in HALF and coupled and scenario.lifted.samples > 0


def lifted(scenario: Scenario) -> Scenario:
    """Return the stage's scenario: rollouts only, in steps after the run's last one, with prompts that the run does
    not use.

    The first step draws with the initial weights. Where the run trains, a second step draws with the last ones.
    """
    rollout, sampling, stage = scenario.rollout, scenario.sampling, scenario.lifted
    copies = min(rollout.samples_per_prompt, stage.samples)
    drawn = dataclasses.replace(
        rollout,
        samples_per_prompt=copies,
        prompts_per_step=stage.samples // copies,
    )
    held_dtype = "" if scenario.model.dtype == "float32" else scenario.model.dtype
    return dataclasses.replace(
        scenario,
        steps=scenario.steps + (2 if scenario.train else 1),
        train=False,
        model=dataclasses.replace(scenario.model, dtype="float32", held=held_dtype),
        engine=dataclasses.replace(scenario.engine, sleep_level=0),
        rollout=drawn,
        sampling=dataclasses.replace(
            sampling, max_tokens=max(sampling.min_tokens, min(sampling.max_tokens, stage.max_tokens))
        ),
    )


def steps(scenario: Scenario) -> range:
    """Return the steps of a run's lifted stage."""
    return range(scenario.steps, lifted(scenario).steps)
