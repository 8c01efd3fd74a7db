"""What a framework's job is given beyond its own options: a seed where it seeds nothing itself, and coupled sampling.

The user asks for both (`--seed`, `--mode coupled`); both change the job, and both are in the recording. verl's engines
and processes look for plugins themselves. OpenRLHF's and TRL's are given one by the loader of the adapters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import envs
from harness.errors import BadInput
from harness.frameworks.spec import Framework
from harness.program import with_path_first
from probes.adapters import PLUGIN, SEED
from probes.draws import COUPLED
from probes.format import Run, mapping
from scenarios.engines import registry


def refuse(framework: Framework, *, seed: int | None, coupled: int | None) -> None:
    """Raise BadInput for a number that is no seed, or a seed for which the framework has options of its own."""
    for number in (seed, coupled):
        if number is not None and not 0 <= number < 1 << 32:  # it seeds NumPy, which takes no other
            raise BadInput(f"--seed {number} is no seed: it lies between 0 and {(1 << 32) - 1}", fix="--seed 7")
    if coupled is None and seed is not None and not framework.seeds_prompts:
        fix = f"… {framework.own_seeds}" if framework.own_seeds else None
        raise BadInput(f"{framework.name} has seeds of its own, and --seed reaches none of them", fix=fix)
    if coupled is not None and not framework.couples:
        raise BadInput(f"{framework.name} has no coupled sampling", fix="leave --mode coupled out")


def steered(
    framework: Framework, words: Sequence[str], environ: Mapping[str, str], *, seed: int | None = None,
    coupled: int | None = None,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Add a seed of the prompts' order or coupled sampling to a command and its variables; without either, both stay
    unchanged.

    Coupled samples need equal prompts: a framework that leaves their order unseeded gets the same seed for it. Raises
    BadInput as `refuse` does.
    """
    refuse(framework, seed=seed, coupled=coupled)
    if seed is None and coupled is None:
        return list(words), dict(environ)
    variables = dict(environ)
    if coupled is not None:
        variables[COUPLED] = str(coupled)
        for spec in registry.specs().values():
            variables |= spec.coupled_variables
    if framework.plugin:
        variables[PLUGIN] = framework.plugin
    if framework.seeds_prompts:
        variables[SEED] = str(seed if coupled is None else coupled)
    bundle = str(envs.bundle(plugins=bool(framework.entry_points)))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (bundle, environ.get("PYTHONPATH", ""))))
    return [*with_path_first(words, bundle), *(framework.overrides if coupled is not None else ())], variables


def unsteered(folder: Path, framework: Framework, *, seed: int | None, coupled: int | None) -> str:
    """Why a recording does not have the seed or the coupled sampling that was asked for; empty if it does."""
    if seed is None and coupled is None:
        return ""
    run = Run(folder, strict=False)
    wanted = seed if coupled is None else coupled
    recorded_seed = mapping(run.manifest.get("seeds")).get("data")
    if framework.seeds_prompts and recorded_seed != wanted:
        return f"the prompts were not shuffled with the seed {wanted} (recorded: {recorded_seed})"
    if coupled is None:
        return ""
    modes = [frame.fields.get("mode") for frame in run.frames("rollout")]
    if not modes:
        return "no sample was recorded"
    alone = sum(mode != "coupled" for mode in modes)
    return f"{alone} of {len(modes)} groups of samples were drawn without the plugin" if alone else ""
