"""Resolve a backend on the command line (`engine`, `engine@environment`, `engine@version`) to its interpreter."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.envs import creation, environment, interpreter, recipe
from harness.envs.environment import Environment
from harness.envs.install import nvidia_gpu
from harness.envs.interpreter import Driver
from harness.envs.progress import announce, console
from harness.errors import BadInput, EnvironmentUnusable, closest, nearest
from scenarios.engines import registry


@dataclass(frozen=True)
class Backend:
    """A parsed backend: an engine, and the name of an environment or a version of the engine, if given."""

    engine: str
    environment: str = ""
    version: str = ""

    def __str__(self) -> str:
        return "@".join(filter(None, (self.engine, self.environment or self.version)))


def parse(backend: str) -> Backend:
    """Parse a backend. Raises BadInput for an unknown engine or a malformed rest, with the valid names."""
    engine, at, selector = backend.partition("@")
    spec = registry.find(engine)
    if spec is None:
        raise unknown(backend)
    if spec.embedded and at:
        raise BadInput(
            f"backend {backend!r}: {engine} runs in the harness's own environment and takes no @",
            fix=engine,
            instead=backend,
        )
    if not at:
        return Backend(engine)
    if not selector:
        raise BadInput(
            f"backend {backend!r}: an environment or a version is missing after the @", fix=engine, instead=backend
        )
    if recipe.is_version(selector):
        return _released(Backend(engine, version=selector))
    if not environment.is_name(selector):
        message = f"backend {backend!r}: {selector!r} names neither an environment nor a version"
        raise BadInput(message, fix=engine, instead=backend)
    return Backend(engine, environment=selector)


def _released(backend: Backend) -> Backend:
    """The backend, whose version there may be. Raises BadInput for one before the first release, which would show only
    when its environment is made: after minutes, if another one is made before."""
    plan = recipe.find(backend.engine, creation.choose_device("auto"))
    if plan is None or not recipe.is_before(backend.version, plan.first) or _existing(backend) is not None:
        return backend
    raise BadInput(
        f"there is no {plan.package} {backend.version}: its first release is {plan.first}",
        fix=f"{backend.engine}@{plan.version}",
        instead=f"{backend.engine}@{backend.version}",
    )


def refuse_unreleased(backend: str) -> None:
    """Raise BadInput for a version that would have to be installed and that was never released."""
    wanted = parse(backend)
    if not wanted.version or _existing(wanted) is not None:
        return
    order = _order(wanted, None)
    if reason := creation.unreleased(order):
        raise BadInput(reason, fix=f"{wanted.engine}@{order.recipe.version}", instead=backend)


def unknown(backend: str) -> BadInput:
    """The error for a backend whose engine does not exist, or whose plug-in was refused."""
    engine, at, selector = backend.partition("@")
    if reason := registry.refusal(engine):
        return BadInput(reason, fix="update or uninstall the package of that plug-in")
    names = registry.names()
    environments = ", ".join(item.name for item in environment.all_environments()) or "none yet"
    near = nearest(engine.lower(), names)
    return BadInput(
        f"there is no backend {backend!r}: {', '.join(names)}; {registry.alternatives(registry.names(embedded=False))} "
        f"also with @ENVIRONMENT or @VERSION (environments: {environments}){closest(engine.lower(), names)}",
        fix=f"{near}{at}{selector}" if near else f"{names[0]}   # or {registry.alternatives(names[1:])}",
        instead=backend,
    )


def resolve(backend: str, *, create: bool = True) -> Environment:
    """Return the environment of a backend, checked against the driver. With `create`, a missing one is made.

    An environment of the harness that was made from another recipe, ray or Python counts as missing. The progress of
    making it is shown on stderr. Raises BadInput, EnvironmentUnusable, Interrupted.
    """
    parsed = parse(backend)
    if registry.get(parsed.engine).embedded:
        return embedded(parsed.engine)
    existing = _existing(parsed)
    if existing is None or _outdated(existing):
        if parsed.environment and existing is None:
            environment.get(parsed.environment)
        wanted = _order(parsed, existing)
        if create and existing is None:
            refuse_unreleased(backend)
        state = "is missing" if existing is None else f"was made from another recipe, ray or Python ({existing.name})"
        if not create:
            raise EnvironmentUnusable(f"the environment of backend {parsed} {state}", fix=wanted.command)
        announce(f"the environment of {parsed} {state}: it is made first, as by {wanted.command} (minutes, gigabytes)")
        existing, _ = creation.create(wanted, progress=console(f"environment {wanted.name}"))
    facts = interpreter.inspect(existing.python)
    if reason := interpreter.misfit(facts, existing.engine, Driver.here()):
        if existing.owned:
            reason.fix = existing.fix
        raise reason
    return existing


def exists(backend: str) -> bool:
    """Whether `resolve` would make nothing. Raises BadInput for an unknown engine or environment name."""
    wanted = parse(backend)
    if registry.get(wanted.engine).embedded:
        return True
    existing = _existing(wanted)
    if existing is None and wanted.environment:
        environment.get(wanted.environment)
    return existing is not None and not _outdated(existing)


def embedded(engine: str) -> Environment:
    """Return the driver's own interpreter as the environment of an engine that runs in it."""
    versions = map(_version, registry.get(engine).distributions)
    return Environment(
        name=engine,
        engine=engine,
        version=next(filter(None, versions), ""),
        python=sys.executable,
        python_version=platform.python_version(),
        ray=_version("ray"),
        torch=_version("torch"),
        device="cuda" if nvidia_gpu() else "cpu",
        owned=False,
    )


def _existing(backend: Backend) -> Environment | None:
    if backend.version:
        of_engine = [item for item in environment.all_environments() if item.engine == backend.engine]
        fits = [item for item in of_engine if recipe.matches(item.version, backend.version)]
        return min(fits, key=lambda item: (item.name != backend.engine, not item.owned, item.name), default=None)
    existing = environment.find(backend.environment or backend.engine)
    if existing is not None and existing.engine != backend.engine:
        raise BadInput(
            f"environment {existing.name!r} holds {existing.engine}, not {backend.engine}",
            fix=f"use {existing.engine}@{existing.name}",
        )
    return existing


def _outdated(existing: Environment) -> bool:
    if not existing.owned:
        return False
    plan = recipe.load(existing.engine, existing.device)
    driver = Driver.here()
    return (
        existing.digest != plan.digest(existing.asked, driver.ray, driver.minor) or not Path(existing.python).exists()
    )


def _order(backend: Backend, existing: Environment | None) -> creation.Order:
    if existing is not None:
        return creation.order(existing.engine, version=existing.asked, name=existing.name, device=existing.device)
    pinned = recipe.load(backend.engine, creation.choose_device("auto")).version
    return creation.order(backend.engine, version="" if recipe.matches(pinned, backend.version) else backend.version)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
