"""Checks before anything starts: each would otherwise fail only after a cluster and engines have started."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import config, envs
from harness.cluster.learners import roles_of
from harness.envs.environment import Environment
from harness.envs.install import nvidia_gpu
from harness.errors import BadInput, HarnessError, collected, refuse
from harness.other_paths import similar_path
from harness.parity.runs import user_mapping
from harness.parity.runs.fits import check_fit
from probes import limits
from reports.text import counted
from scenarios import memory_fit, prompts
from scenarios.engines import canonical_request, engine_processes
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.settings import BUILTIN, Prompts, Scenario
from scenarios.tiny import ANY_MODEL, OPTIONS, builtin_models, no_such_model

# Memory that a process of the learner has to itself: 304 to 347 MiB with the built-in model on a CPU, almost all of it
# for torch and transformers. A larger model takes more.
PROCESS_BYTES = 300 * 2**20


def preflight(scenario: Scenario, backend: str, mapping: dict[str, Any] | None = None) -> None:
    """Refuse a missing model, unreadable prompts, and parameters that the engine cannot express. Raises BadInput.

    `mapping`: a user's own. What it passes on unfaithfully is found later and not refused here.
    """
    engine = envs.parse(backend).engine
    mistakes: list[HarnessError] = []
    with collected(mistakes):
        _check_model("model.path", scenario.model.path)
    with collected(mistakes):
        if scenario.train:
            _check_model("model.reward", scenario.model.reward)
    with collected(mistakes):
        _check_prompts(scenario.prompts)
    refuse(mistakes)
    try:
        canonical_request.check_engines(engine, scenario)
        canonical_request.check_sleep(scenario)
        ours = not user_mapping.defines(mapping or {}, f"{engine}_sampling")
        canonical_request.check_sampling(engine, scenario.sampling, scenario.rollout.mode, ours=ours)
    except ParameterRefused as error:
        raise BadInput(str(error), fix=error.fix) from error


def environment_for(
    backend: str,
    scenario: Scenario,
    address: str | None = None,
    *,
    mapping: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Environment:
    """Return the environment that the backend starts in, made where it is missing. Raises BadInput,
    EnvironmentUnusable.

    Refuses what its engine cannot start with (`fits.check_fit`), and more ranks of an engine than this process has
    cores for. On a cluster at `address` the engine checks its cores itself, since its host has others.
    """
    return _checked(envs.resolve(backend), scenario, address, mapping or {}, say)


def check_environment(
    backend: str,
    scenario: Scenario,
    *,
    mapping: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Check like `environment_for`, but make nothing. A missing environment is made, and checked, when it is used."""
    if envs.exists(backend):
        _checked(envs.resolve(backend, create=False), scenario, None, mapping or {}, say)
    else:
        envs.refuse_unreleased(backend)


def _checked(
    environment: Environment,
    scenario: Scenario,
    address: str | None,
    mapping: Mapping[str, Any],
    say: Callable[[str], None],
) -> Environment:
    ranks = scenario.engine.tensor_parallel
    if ranks > 1 and environment.device == "cpu" and not address:
        try:
            engine_processes.cores(ranks, os.sched_getaffinity(0))
        except ParameterRefused as error:
            raise BadInput(str(error), fix=f"--set engine.tensor_parallel={len(os.sched_getaffinity(0))}") from error
    check_fit(environment, scenario, mapping, say)
    return environment


def check_device(device: str, address: str | None) -> None:
    """Refuse CUDA where this machine has no GPU. A cluster at `address` has other machines. Raises BadInput."""
    if device == "cuda" and not address and not nvidia_gpu():
        raise BadInput("--device cuda: this machine has no NVIDIA GPU that its driver shows", fix="--device cpu")


def check_machine(scenarios: Iterable[Scenario], address: str | None, say: Callable[[str], None]) -> None:
    """Refuse more ranks of the learner than fit into memory, and report where ranks must share cores. Raises BadInput.

    On a cluster at `address` neither is checked, since each process is given a core there. But a router is refused,
    since the engines may be on several hosts.
    """
    scenarios, turns = list(scenarios), dict[str, None]()
    if address and any(scenario.engine.router for scenario in scenarios):
        raise BadInput(
            "engine.router: the router and its engines listen on one host only, and a cluster may have several",
            fix="leave out --address, or engine.router",
        )
    local_scenarios = [] if address else scenarios
    for scenario in local_scenarios:
        _check_memory(scenario)
        cores, learner, engine = len(os.sched_getaffinity(0)), scenario.ppo.world_size, scenario.engine
        workers = engine.engines * engine.tensor_parallel
        if scenario.train and learner > cores:
            turns[f"the {learner} ranks of the learner (ppo.world_size) take turns at {counted(cores, 'core')}"] = None
        if workers > cores >= engine.tensor_parallel:  # an engine with more ranks than cores is refused elsewhere
            setting_names = "engine.engines x engine.tensor_parallel"
            turns[f"the {workers} ranks of the engines ({setting_names}) take turns at {counted(cores, 'core')}"] = None
    if turns:
        say(f"{'; '.join(turns)}: steps take longer")


def _check_memory(scenario: Scenario) -> None:
    roles, ranks, free = len(roles_of(scenario)), scenario.ppo.world_size, memory_fit.free()
    needed = roles * ranks * PROCESS_BYTES
    if ranks == 1 or free is None or needed <= free:
        return
    fitting = [n for n in range(1, ranks) if n * roles * PROCESS_BYTES <= free and config.divides(scenario, n)]
    raise BadInput(
        f"ppo.world_size = {ranks}: {roles} roles of {ranks} ranks are {roles * ranks} processes on this machine; "
        f"they take {memory_fit.gib(needed)} of memory at the least, and {memory_fit.gib(free)} are free",
        fix=f"--set ppo.world_size={max(fitting, default=1)}   # or --address HOST:PORT, of a Ray cluster",
    )


def check_pair(baseline_scenario: Scenario, candidate_scenario: Scenario) -> None:
    """Refuse two scenarios that cannot be compared, whatever the engines do. Raises BadInput."""
    if baseline_scenario.rollout.mode == "native":
        raise BadInput(
            "whole runs in native mode part after one update and cannot be compared: the engines' own samplers are "
            "compared in the native stage, which follows every coupled or greedy run",
            fix="--mode coupled   # or harness run SCENARIO --mode native, for one run",
            instead="rollout.mode",
        )
    shared = "steps and rollout.mode belong to both sides: set them for the run, not for the candidate"
    if baseline_scenario.steps != candidate_scenario.steps:
        raise BadInput(shared, fix=f"--steps {candidate_scenario.steps}", instead="steps")
    if baseline_scenario.rollout.mode != candidate_scenario.rollout.mode:
        raise BadInput(shared, fix=f"--mode {candidate_scenario.rollout.mode}", instead="rollout.mode")


def check_resume(resume: str, scenario: Scenario) -> None:
    """Refuse what is not a checkpoint, and one that leaves no steps to run. The learner verifies its files.

    Raises BadInput.
    """
    path, fix = Path(resume) / "manifest.json", "--resume RUN/checkpoints/step-N"
    try:
        manifest = json.loads(limits.read_text(path))
    except FileNotFoundError as error:
        raise BadInput(f"{resume} is not a checkpoint: it has no manifest.json", fix=fix) from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}", fix=fix) from error
    expected = {"format": int, "step": int, "version": int, "scenario": dict, "files": dict}
    for key, kind in expected.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(key), kind):
            raise BadInput(f"{path}: is not a manifest of a checkpoint: it has no {key!r}", fix=fix)
    done = manifest["version"]
    if done >= scenario.steps:
        raise BadInput(
            f"{resume} was written after {counted(done, 'step')}, and the run has {scenario.steps}: nothing is left to "
            "record",
            fix=f"--steps {done + scenario.steps}   # counted from the beginning of the run: more than {done}",
        )


def _check_model(key: str, name: str) -> None:
    """Refuse what is not a directory with a config.json, the built-in model, or OWNER/NAME of a locally cached
    model.
    """
    if name in builtin_models(key):
        return
    path, fix = Path(name).expanduser(), OPTIONS[key] + ANY_MODEL
    if path.is_dir():
        if (path / "config.json").is_file():
            return
        wrong = "this directory holds no config.json, so it is no Hugging Face model"
    elif path.exists():
        wrong = "this is a file; a Hugging Face model is a directory"
    elif name.startswith("builtin:"):
        wrong = no_such_model(key)
    elif name.count("/") != 1 or name.startswith((".", "/", "~")):
        wrong = "no such directory" + ("" if "/" in name else "; a model of the Hugging Face cache is named OWNER/NAME")
    elif _cached(name):
        return
    else:
        wrong, fix = "no such directory, nor a downloaded model", f"hf download {name}"
    # A directory beside it that holds a model is what a misspelt path was most likely meant to be.
    models = [] if path.exists() else [config.parent for config in path.parent.glob("*/config.json")]
    if (near := similar_path(path, models)) is not None:
        wrong = f"{wrong}; did you mean {near.name}?"
        fix = OPTIONS[key] + shlex.quote(str(near))
    raise BadInput(f"{key} = {name!r}: {wrong}", fix=fix)


def _check_prompts(settings: Prompts) -> None:
    """Refuse a file of prompts that does not exist, cannot be read or holds none."""
    path = Path(settings.path).expanduser()
    try:
        if settings.path != BUILTIN and not prompts.check(settings):
            raise BadInput(f"prompts.path = {settings.path!r} holds no prompt", fix=prompts.FILE)
    except prompts.PromptError as error:
        files: list[Path] = []
        if not path.exists():
            files = [file for file in path.parent.glob("*.*") if file.suffix.lower() in prompts.KINDS]
        if (near := similar_path(path, files)) is None:
            raise BadInput(str(error), fix=error.fix) from error
        fix = f"--prompts {shlex.quote(str(near))}"
        raise BadInput(f"{error}; did you mean {near.name}?", fix=fix) from error


def _cached(name: str) -> bool:
    """Whether a model of the hub is in the local cache. Never uses the network."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False
