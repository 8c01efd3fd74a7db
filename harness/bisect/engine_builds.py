"""Build an engine from a checkout, install it over the engine's environment, and compare that build."""

from __future__ import annotations

import os
from pathlib import Path

from harness import envs
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.envs import indexes, interpreter, layer
from harness.envs.install import UNSATISFIABLE, uv_binary
from harness.envs.layer import Layer
from harness.errors import EnvironmentUnusable, HarnessError
from harness.nightly import cells
from harness.quantities import seconds
from probes.files import make_new_folder, open_new
from scenarios.engines import registry

PYTHON = "HARNESS_BISECT_PYTHON"  # names the interpreter to install for, in the environment of the --build command
LOG = "build.txt"
GIVES_UP = 128  # exit codes from here on end the search, as in `git bisect run`


def compare(search: Search, engine: str, commit: str, tree: Path, place: Path) -> Judged:
    """Build and compare the commit that is checked out in `tree`. A commit that cannot be built is skipped."""
    request, judge = search.journal.request, search.judge
    cold = ("--cold",)  # engines that are already running do not contain the checkout
    with layer.over(envs.resolve(engine), f"{engine}-bisect-{commit[:12]}") as made:
        if failure := _build(search, made, tree, place):
            return failure
        if registry.get(engine).embedded:  # it runs in the harness's interpreter, so the harness runs in the layer too
            command = (str(made.python), *cells.COMMAND[1:])
            return judge.pair((request.against, engine), place, cold, os.environ, command)
        try:
            made.register()
        except EnvironmentUnusable as error:
            return Judged("skip", f"what was built cannot be used: {error.message}")
        return judge.pair((request.against, f"{engine}@{made.name}"), place, cold, os.environ)


def _build(search: Search, made: Layer, tree: Path, place: Path) -> Judged | None:
    """Build the commit into the layer. Return why the commit cannot be judged, or None after a successful build.

    Raises HarnessError where the build ended in a way that ends the search, such as by a signal.
    """
    request = search.journal.request
    # `--refresh` forces a new build: uv recognizes a checkout by its path and the times of a few files only.
    install = [uv_binary(), "pip", "install", "--python", str(made.python), "--no-deps", "--refresh", str(tree)]
    environ = indexes.uv_environment(indexes.pip_configuration(), interpreter.clean(os.environ))
    environ |= {PYTHON: str(made.python), "VIRTUAL_ENV": str(made.python.parents[1])}
    make_new_folder(place)
    with open_new(place / LOG) as log:
        code = cells.process(
            ["/bin/sh", "-c", request.build] if request.build else install, seconds(request.limit, "--limit"),
            output=log, log=log, environ=environ, folder=tree if request.build else place,
        )  # fmt: skip
    if code is None:
        return Judged("skip", f"its build ended at the limit of {request.limit}")
    if code < 0 or code >= GIVES_UP or (code and code != UNSATISFIABLE and not request.build):
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise HarnessError(f"the build ended with {ended}, which ends the search", fix=f"see {place / LOG}")
    if code:
        return Judged("skip", f"it cannot be built: exit code {code}, see {place / LOG}")
    if made.is_empty:
        return Judged("skip", f"its build installed nothing for ${PYTHON}")
    return None
