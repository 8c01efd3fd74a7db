"""Bisection over the releases of an engine that the package index lists; environments are made on demand."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from harness import envs
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.envs import creation, indexes, recipe
from harness.envs.install import UNSATISFIABLE, CommandFailed, uv_binary
from harness.errors import BadInput, EnvironmentUnusable
from reports.bisect_model import Bisection

# The first pip whose `index versions` prints JSON. uv runs it in an environment of its own, because ours may have no
# pip.
PIP = "pip>=25.1"
ASK_S = 120.0  # a choice: as long as a person is likely to wait


def bisect(search: Search) -> Bisection:
    """Search the releases between the ends of the request.

    Raises BadInput for an invalid range, EnvironmentUnusable where the package index cannot be reached.
    """
    request = search.journal.request
    good, bad = request.ends()
    first, last = envs.parse(good), envs.parse(f"{good.partition('@')[0]}@{bad}")
    if not (first.version and last.version):
        raise BadInput(f"{request.what} names no two versions", fix="harness bisect vllm@0.29..0.32 --against sglang")
    envs.parse(request.against)
    package = recipe.load(first.engine, creation.choose_device("auto")).package
    releases = between(published(package), first.version, last.version, package, first.engine)
    names = [f"{first.engine}@{version}" for version in releases]
    search.say(f"{len(names)} releases of {package} by the package index: {', '.join(releases)}")

    return search.in_order(names, lambda index, place: _compare(search, names[index], place))


def published(package: str) -> list[str]:
    """Return every release of a package that the index offers for this machine, oldest first, according to pip."""
    command = [uv_binary(), "tool", "run", "--quiet", "--from", PIP, "pip", "index", "versions", package, "--json"]
    environ = {**indexes.uv_environment(indexes.pip_configuration()), "NO_COLOR": "1"}
    if index := environ.get("UV_DEFAULT_INDEX"):  # a user may have configured the index for uv only
        environ.setdefault("PIP_INDEX_URL", index)
    try:
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=ASK_S, cwd="/",
                                stdin=subprocess.DEVNULL)  # fmt: skip
        if answer.returncode == 0:
            return list(reversed(json.loads(answer.stdout)["versions"]))
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.lower().startswith("error")), (lines or ["it said nothing"])[-1])
    except subprocess.TimeoutExpired:
        why = f"no answer within {ASK_S:.0f} s"
    except (ValueError, KeyError) as error:
        why = f"its answer cannot be read: {error}"
    raise EnvironmentUnusable(
        f"the package index cannot be reached, or has no release of {package} for this machine: {why}",
        fix=f"uv tool run --from '{PIP}' pip index versions {package}",
    )


def between(versions: list[str], good: str, bad: str, package: str, engine: str) -> list[str]:
    """Releases from the newest that `good` names to the newest that `bad` names (0.29 names every 0.29.x)."""
    places = []
    for requested in (good, bad):
        fits = [index for index, version in enumerate(versions) if recipe.matches(version, requested)]
        if not fits:
            newest = ", ".join(versions[-5:]) or "none"
            message = f"the package index has no release {requested} of {package} for this machine (newest: {newest})"
            if len(versions) < 2:
                raise BadInput(message, fix=f"pip index versions {package}")
            raise BadInput(message, fix=_range(versions, good, bad, engine), instead=f"{engine}@{good}..{bad}")
        places.append(fits[-1])
    first, last = places
    if first >= last:
        raise BadInput(
            f"{versions[first]} is not older than {versions[last]}: give the good release first",
            fix=f"harness bisect {engine}@{bad}..{good} --against BACKEND",
        )
    return versions[first : last + 1]


def _range(versions: list[str], good: str, bad: str, engine: str) -> str:
    """A range that the index has, with what it has of the one that was asked for: up to the newest release, and from
    the one before."""
    fits = [index for index, version in enumerate(versions) if index and recipe.matches(version, bad)]
    last = fits[-1] if fits else len(versions) - 1
    before = [version for version in versions[:last] if recipe.matches(version, good)]
    return f"{engine}@{(before or versions[:last])[-1]}..{versions[last]}   # or others of these"


def _compare(search: Search, backend: str, place: Path) -> Judged:
    """Compare a release in its environment, which is made where it is missing. Skip a release whose environment
    cannot be.
    """
    request = search.journal.request
    before = {env.name for env in envs.all_environments()}
    try:
        environment = envs.resolve(backend)
    except EnvironmentUnusable as error:
        cause = error.__cause__
        if isinstance(cause, OSError) or (isinstance(cause, CommandFailed) and cause.status != UNSATISFIABLE):
            raise  # a full disk or a missing network is a problem of this machine, not of the release
        return Judged("skip", f"its environment cannot be: {error.message}")
    made = environment.name if environment.name not in before else ""
    _evict(search, keep=environment.name)
    return replace(search.judge.pair((request.against, backend), place, (), os.environ), environment=made)


def _evict(search: Search, *, keep: str) -> None:
    """Remove the oldest environments of this bisection, so that at most `keep_envs` remain, `keep` included."""
    made = list(dict.fromkeys(step.environment for step in reversed(search.journal.steps) if step.environment))
    owned_names = {env.name for env in envs.all_environments() if env.owned}
    kept = [name for name in made if name in owned_names and name != keep]
    for name in kept[max(0, search.journal.request.keep_envs - 1) :]:
        search.say(f"removing the environment {name}: at most {search.journal.request.keep_envs} are kept")
        envs.remove(name)
