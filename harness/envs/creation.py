"""Make an engine environment from its recipe. A name refers to a complete environment or does not exist."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import dates
from harness.envs import home, indexes, interpreter, recipe, stored_arguments
from harness.envs.environment import (
    Device,
    Environment,
    check_name,
    create_command,
    default_name,
    find_whole,
    folder,
)
from harness.envs.install import UNSATISFIABLE, CommandFailed, Uv, lacks_release, nvidia_gpu, uv_binary
from harness.envs.interpreter import Driver
from harness.envs.progress import Progress, Silent
from harness.errors import BadInput, EnvironmentUnusable, HarnessError, Interrupted
from harness.other_paths import disk_of
from probes.files import open_new
from scenarios.engines import registry
from scenarios.engines.accepted import FILE


@dataclass(frozen=True)
class Order:
    """A resolved request for an environment. It suffices to decide whether an existing environment satisfies it."""

    name: str
    version: str  # empty stands for the recipe's version
    recipe: recipe.Recipe
    driver: Driver
    python: str  # the interpreter that the environment is based on

    @property
    def digest(self) -> str:
        return self.recipe.digest(self.version, self.driver.ray, self.driver.minor)

    @property
    def command(self) -> str:
        """The command line that makes the environment."""
        return create_command(self.recipe.engine, self.version, self.name)


def choose_device(device: str) -> Device:
    """Resolve `auto` to cuda where a GPU is visible, else to cpu. Raises BadInput for anything but auto, cpu, cuda."""
    if device == "auto":
        return "cuda" if nvidia_gpu() else "cpu"
    if device == "cpu":
        return "cpu"
    if device == "cuda":
        return "cuda"
    raise BadInput(f"there is no device {device!r} (there are: auto, cpu, cuda)", fix="--device auto")


def order(engine: str, *, version: str = "", name: str = "", device: str = "auto", python: str = "") -> Order:
    """Validate a request before anything is made. Raises BadInput, or EnvironmentUnusable for an unsuitable
    interpreter.
    """
    engines = registry.names(embedded=False)
    if engine not in engines:
        raise BadInput(
            f"there is no engine {engine!r} to make an environment for (there are: {', '.join(engines)})",
            fix=f"harness env create {engines[0]}",
        )
    if sys.platform != "linux":
        raise EnvironmentUnusable(
            f"the engines install on Linux only, this is {sys.platform}: register an interpreter that has {engine}",
            fix=f"harness env add {engine} --engine {engine} --python PATH   # PATH is that interpreter",
        )
    plan = recipe.load(engine, choose_device(device))
    if version == plan.version:
        version = ""
    if version:
        recipe.pin(version)
    driver = Driver.here()
    if python:
        facts = interpreter.inspect(python)
        if facts.minor != driver.minor or facts.implementation != "CPython":
            raise EnvironmentUnusable(
                f"{facts.path} is {facts.implementation} {facts.python}, the driver is CPython {driver.python}: "
                "one Ray cluster needs the same minor version everywhere",
                fix=f"give --python a CPython {driver.minor}, or leave it out",
            )
    return Order(
        check_name(name or default_name(engine, version), engine), version, plan, driver, python or sys.executable
    )


def unreleased(wanted: Order) -> str:
    """Why there is no release of the version that is wanted; empty where there is one, or that cannot be asked."""
    plan, version = wanted.recipe, wanted.version
    if not version:
        return ""
    if recipe.is_before(version, plan.first):
        return f"there is no {plan.package} {version}: its first release is {plan.first}"
    environ = indexes.uv_environment(indexes.pip_configuration())
    if lacks_release(uv_binary(), environ, f"{plan.package}{recipe.pin(version)}", wanted.python):
        return f"there is no {plan.package} {version}: no index that is configured here has such a release"
    return ""


def create(wanted: Order, *, recreate: bool = False, progress: Progress | None = None) -> tuple[Environment, bool]:
    """Make the environment unless it exists. Return it, and whether it was made now.

    An environment that was made from another recipe, ray or Python is replaced. This takes 40 to 60 s with a warm
    package registry. After a failure or an interruption no partial environment has the name, and the old environment
    stays until the new one is complete. Raises EnvironmentUnusable, Interrupted, or BadInput when the name belongs to
    a registered interpreter.
    """
    progress = progress or Silent()
    with (
        progress,
        home.locked(f"env-{wanted.name}", lambda: progress.step("waiting for another process that makes it")) as lock,
    ):
        existing = find_whole(wanted.name)
        if existing is not None and not existing.owned:
            raise BadInput(
                f"environment {wanted.name!r} is a registered interpreter ({existing.python})",
                fix=f"harness env remove {wanted.name}   # or create with another --name",
            )
        if existing and existing.engine != wanted.recipe.engine:
            raise BadInput(
                f"environment {wanted.name!r} holds {existing.engine}, not {wanted.recipe.engine}",
                fix="give another --name",
            )
        if existing and not recreate and existing.digest == wanted.digest and Path(existing.python).exists():
            return existing, False
        partial = folder(wanted.name).with_name(f".partial-{wanted.name}")
        log = home.directory("logs") / f"env-{wanted.name}.log"
        try:
            home.directory("envs")
            home.sweep(folder(wanted.name))
            home.sweep(partial)
            home.remove_tree(partial)  # left by a creation that was killed; we hold the lock, so no process uses it
            made = _build(wanted, partial, log, progress, lock)
            home.write_json(partial / "env.json", made.to_json())
            with _undisturbed():
                home.replace_tree(partial, folder(wanted.name))
            return made, True
        except BaseException as error:
            with _undisturbed():
                progress.step("cleaning up")
                home.remove_tree(partial)
            if explained := _explained(error, wanted, log):
                raise explained from error
            raise


def _build(wanted: Order, partial: Path, log: Path, progress: Progress, lock: int) -> Environment:
    plan = wanted.recipe
    with io.TextIOWrapper(open_new(log), encoding="utf-8", line_buffering=True) as record:

        def say(line: str) -> None:
            record.write(line + "\n")
            progress.detail(line)

        uv = Uv(uv_binary(), indexes.uv_environment(indexes.pip_configuration()), say, keep_open=(lock,))
        python = partial / "venv" / "bin" / "python"
        progress.step(f"making a Python {wanted.driver.minor} environment")
        # relocatable, because it is made under another name and renamed when it is complete
        uv.run(
            "venv",
            "--relocatable",
            "--no-project",
            "--python",
            wanted.python,
            str(partial / "venv"),
            cwd=home.directory("envs"),
        )
        cpu = plan.device == "cpu"
        packages = plan.packages(wanted.version, wanted.driver.ray)
        progress.step(f"installing {packages[0]} for {plan.device}")
        uv.install(python, packages, overrides=plan.overrides, cpu=cpu, torch=plan.torch_for(wanted.version))
        if plan.no_deps:
            progress.step(f"installing {', '.join(plan.no_deps)}")
            uv.install(python, plan.no_deps, cpu=cpu, extra=["--no-deps"])
        if plan.shims:
            progress.step(f"writing shims: {', '.join(plan.shims)}")
            _write_shims(python)
        facts = interpreter.inspect(python)
        if reason := interpreter.misfit(facts, plan.engine, wanted.driver):
            raise reason
        # The environment is ours, so bytecode may be written. Measured: importing vLLM takes 20 s without it and 8.5
        # s with it.
        variables = {**plan.env, "PYTHONDONTWRITEBYTECODE": ""}
        if cpu or nvidia_gpu():  # a CUDA engine may be installed on a login node without a GPU
            progress.step(f"importing {plan.engine} once")
            keep, more = stored_arguments.keeping(plan.engine, facts.versions[plan.engine], partial / FILE)
            statement = f"{plan.imports}\n{keep}"
            if failure := interpreter.import_failure(str(python), statement, {**variables, **more}, (lock,)):
                raise EnvironmentUnusable(
                    f"{plan.engine} cannot be imported: {failure}",
                    fix=f"harness env create {plan.engine} --version VERSION   # another one",
                )
    return Environment(
        name=wanted.name,
        engine=plan.engine,
        version=facts.versions[plan.engine],
        asked=wanted.version,
        python=str(folder(wanted.name) / "venv" / "bin" / "python"),
        python_version=facts.python,
        ray=facts.versions["ray"],
        torch=facts.versions["torch"],
        device=plan.device,
        owned=True,
        created=dates.now(),
        digest=wanted.digest,
        shims=facts.shims,
        env=variables,
    )


def _write_shims(python: Path) -> None:
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    (packages / f"{recipe.SHIMS_MODULE}.py").write_text(recipe.shims_source(), encoding="utf-8")
    (packages / f"{recipe.SHIMS_MODULE}.pth").write_text(f"import {recipe.SHIMS_MODULE}\n", encoding="utf-8")


def _explained(error: BaseException, wanted: Order, log: Path) -> HarnessError | None:
    """Return the error with an explanation for the user; None for a defect of the harness, which is raised
    unchanged.
    """
    what = f"environment {wanted.name!r}"
    if isinstance(error, KeyboardInterrupt):
        return Interrupted.by(error, f"making {what} was interrupted; nothing was left behind", fix=wanted.command)
    if not isinstance(error, CommandFailed | EnvironmentUnusable | OSError):
        return None
    reason = error.reason() if isinstance(error, CommandFailed) else str(error)
    message = f"{what} could not be made, and nothing was left behind: {reason.rstrip('.')} (whole output: {log})"
    return EnvironmentUnusable(message, fix=_fix_of(error, wanted, log))


def _fix_of(error: CommandFailed | EnvironmentUnusable | OSError, wanted: Order, log: Path) -> str:
    """Return a command that changes something, because the same command would fail again."""
    if isinstance(error, EnvironmentUnusable) and error.fix:
        return error.fix
    if isinstance(error, OSError) or (isinstance(error, CommandFailed) and error.is_of_a_full_disk()):
        return f"{disk_of(log.parent)}   # free some space, or HARNESS_HOME=DIR on another disk"
    if isinstance(error, CommandFailed) and error.status == UNSATISFIABLE and wanted.version:
        return f"harness env create {wanted.recipe.engine}   # the version of the recipe, {wanted.recipe.version}"
    if isinstance(error, CommandFailed) and error.unreached():
        return f"UV_DEFAULT_INDEX=URL {wanted.command}   # URL: an index that this machine reaches"
    return f"tail {shlex.quote(str(log))}   # why"


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM meanwhile, so that an impatient second Ctrl-C does not stop the cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
