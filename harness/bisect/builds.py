"""An engine from a checkout: built and installed over the engine's environment, and compared from there."""

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

PYTHON = "HARNESS_BISECT_PYTHON"  # for the command of --build: the interpreter to install for
LOG = "build.txt"
GIVES_UP = 128  # exit codes from here on end the search, as with `git bisect run`


def compare(search: Search, engine: str, commit: str, tree: Path, place: Path) -> Judged:
    """A commit that is checked out in `tree`. One that cannot be built is skipped."""
    request, judge = search.journal.request, search.judge
    cold = ("--cold",)  # engines that are up know nothing of the checkout
    with layer.over(envs.resolve(engine), f"{engine}-bisect-{commit[:12]}") as made:
        if failure := _build(search, made, tree, place):
            return failure
        if registry.get(engine).embedded:  # it runs in the harness's interpreter: the harness runs in the layer too
            command = (str(made.python), *cells.COMMAND[1:])
            return judge.pair((request.against, engine), place, cold, os.environ, command)
        try:
            made.register()
        except EnvironmentUnusable as error:
            return Judged("skip", f"what was built cannot be used: {error.message}")
        return judge.pair((request.against, f"{engine}@{made.name}"), place, cold, os.environ)


def _build(search: Search, made: Layer, tree: Path, place: Path) -> Judged | None:
    """Why the commit cannot be judged, or None. Raises HarnessError where no commit can be built now."""
    request = search.journal.request
    # Built anew: uv knows a checkout by its path and the times of a few files.
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
