"""`harness env`: create, add, check, list, path and remove the environments in which rollout engines run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness import completion
from harness.commands.doors import group
from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from harness.errors import BadInput, EnvironmentUnusable

if TYPE_CHECKING:
    from harness.envs import Environment

app = group(
    "Engine environments: one interpreter per rollout engine.",
    "harness env create vllm",
    "harness env check vllm",
)


@app.command()
def create(
    engine: Annotated[
        str,
        typer.Argument(
            help="the engine, vllm or sglang; with a version: vllm@0.31",
            show_default=False,
            autocompletion=completion.engines_with_environments,
        ),
    ],
    version: Annotated[
        str, typer.Option(help="the version of the engine, such as 0.31.0 or 0.31; default: the recipe's")
    ] = "",
    name: Annotated[
        str, typer.Option(help="the name of the environment; default: the engine's, with the version if one is given")
    ] = "",
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option(help="the device to build for; auto: cuda where there is an NVIDIA GPU"),
    ] = "auto",
    python: Annotated[str, typer.Option(help="the Python interpreter to base it on; default: the harness's own")] = "",
    recreate: Annotated[bool, typer.Option("--recreate", help="replace the environment if it exists")] = False,
) -> None:
    """Make an environment for an engine, with its pinned packages. One that exists is left as it is.

    \b
    Example:
      harness env create vllm
    """
    from harness import envs
    from harness.envs.creation import unreleased
    from harness.envs.environment import find_whole
    from harness.envs.progress import console

    engine, _, release = engine.partition("@")
    if release and version not in ("", release):
        raise BadInput(f"{engine}@{release} and --version {version} name two versions", fix="", instead="--version")
    wanted = envs.order(engine, version=version or release, name=name, device=device, python=python)
    if find_whole(wanted.name) is None and (reason := unreleased(wanted)):
        raise BadInput(
            reason, fix=f"harness env create {engine}   # the version of the recipe, {wanted.recipe.version}"
        )
    made, new = envs.create(wanted, recreate=recreate, progress=console(f"environment {wanted.name}"))
    state = "made" if new else "is there already"
    print(f"environment {made.name} {state}: {_described(made)}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="the name of the new environment", show_default=False)],
    engine: Annotated[str, typer.Option(help="the engine that it has: vllm or sglang", show_default=False)],
    python: Annotated[
        str,
        typer.Option(help="its Python interpreter, or the directory of the virtual environment", show_default=False),
    ],
) -> None:
    """Register an interpreter that you already have. Nothing is written into its environment.

    \b
    Example:
      harness env add mine --engine vllm --python ~/venv/bin/python
    """
    from harness import envs

    made = envs.add(name, engine, python)
    print(f"environment {made.name} registered: {_described(made)}")
    print(f"use it as backend {made.engine}@{made.name}")


@app.command()
def check(
    name: Annotated[
        str, typer.Argument(help="the environment to check; default: all of them", show_default=False)
    ] = "",
    generate: Annotated[
        bool, typer.Option("--generate/--no-generate", help="also generate from one prompt with the engine")
    ] = True,
    format: TextOrJson = "text",
) -> None:
    """Check an environment: versions against the driver, shims, imports, generation. Exits with 1 if a check fails.

    \b
    Example:
      harness env check vllm
    """
    from harness import envs
    from harness.commands import env_tables
    from harness.envs.progress import console

    chosen = [envs.get(name)] if name else envs.all_environments()
    if not chosen:
        raise EnvironmentUnusable("there is no environment to check", fix="harness env create vllm")
    results = []
    for environment in chosen:
        with console(f"checking {environment.name}") as progress:
            results.append((environment, envs.check(environment, generate=generate, progress=progress)))
        if format == "text":
            env_tables.print_checks(*results[-1])
    if format == "json":
        show_json([{"environment": e.to_json(), "checks": [c.to_json() for c in checks]} for e, checks in results])
    if any(item.outcome == "failed" for _, checks in results for item in checks):
        raise typer.Exit(1)


@app.command("list")
def list_(format: TextOrJson = "text") -> None:
    """List the environments.

    \b
    Example:
      harness env list
    """
    from harness import envs
    from harness.commands import env_tables

    if format == "json":
        show_json([environment.to_json() for environment in envs.all_environments()])
    else:
        env_tables.print_environments(envs.all_environments())


@app.command()
def path(name: Annotated[str, typer.Argument(help="the name of the environment", show_default=False)]) -> None:
    """Print the interpreter of an environment.

    \b
    Example:
      harness env path sglang
    """
    from harness import envs

    print(envs.get(name).python)


@app.command()
def arguments(
    name: Annotated[str, typer.Argument(help="the name of the environment", show_default=False)],
    format: TextOrJson = "text",
) -> None:
    """List the arguments that the engine of an environment takes: to start it, to draw samples, and to serve it.

    \b
    Example:
      harness env arguments sglang
    """
    import dataclasses

    from harness import envs
    from harness.envs.stored_arguments import accepted

    takes = accepted(envs.get(name), ask=True, renew=True, say=say)
    if format == "json":
        show_json(dataclasses.asdict(takes))
        return
    for title, names in (("to start", takes.engine), ("to sample", takes.sampling), ("to serve", takes.server)):
        print(f"{title}: {', '.join(names) or 'not known'}")
    for argument, words in sorted(takes.choices.items()):
        print(f"{argument} is one of: {', '.join(words)}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="the name of the environment", show_default=False)]) -> None:
    """Remove an environment that the harness made, or forget a registered one (its interpreter stays untouched).

    \b
    Example:
      harness env remove sglang
    """
    from harness import envs

    print(f"removed {envs.remove(name)}")


def _described(e: Environment) -> str:
    return f"{e.engine} {e.version}, {e.device}, Python {e.python_version}: {e.python}"
