"""Bisection over commits, each checked out into a worktree of its own.

Either a command builds and judges the commit there, or an engine is built from the commit and compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import envs, verdict_file
from harness.bisect import engine_builds
from harness.bisect.engine_builds import GIVES_UP
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.errors import BadInput, HarnessError
from harness.nightly import cells
from harness.quantities import seconds
from probes.files import make_new_folder, open_new
from reports.bisect_model import Bisection, Call

SKIP = 125  # the same exit code as in `git bisect run`
ADD_WORKTREE = ("worktree", "add", "--detach", "--force")
OUT = "HARNESS_BISECT_OUT"  # names the folder for the command's recording


def bisect(search: Search) -> Bisection:
    """Search the commits between the ends of the request.

    Raises BadInput for a missing repository or an invalid range, HarnessError where the command ends the search.
    """
    request = search.journal.request
    repo = Path(request.repo).resolve()
    engine, names = request.engine_and_ends()
    good, bad = (_commit(repo, name) for name in names)
    if _git(repo, "merge-base", "--is-ancestor", good, bad) is None or good == bad:
        raise BadInput(f"{request.what}: the good commit is no ancestor of the bad one", fix=f"git -C {repo} log")
    listed = _git(repo, "log", "--first-parent", "--reverse", "--format=%H", f"{good}..{bad}") or ""
    commits = [good, *listed.split()]
    titles = [_git(repo, "log", "-1", "--format=%h %s", commit) or commit for commit in commits]

    if engine:
        envs.parse(request.against)
        envs.resolve(engine)  # makes a missing environment before the search starts

    def attempt(index: int, place: Path) -> Judged:
        with _checked_out(repo, commits[index], search.journal.folder / "tree") as tree:
            if engine:
                return engine_builds.compare(search, engine, commits[index], tree, place)
            return _run(search, tree, place)

    merges = _git(repo, "rev-list", "--first-parent", "--merges", f"{good}..{bad}")
    if merges:
        search.notes = ("only first parents were searched: a merge stands for what it merged",)
    return search.in_order(titles, attempt)


@contextlib.contextmanager
def _checked_out(repo: Path, commit: str, tree: Path) -> Iterator[Path]:
    """A worktree of the commit. It is removed afterwards, together with everything that was built in it."""
    _remove(repo, tree)
    if _git(repo, *ADD_WORKTREE, str(tree), commit) is None:
        raise BadInput(f"{commit} cannot be checked out into {tree}", fix=f"git -C {repo} worktree list")
    try:
        yield tree
    finally:
        _remove(repo, tree)


def _remove(repo: Path, tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    _git(repo, "worktree", "prune")


def _run(search: Search, tree: Path, place: Path) -> Judged:
    """Run the command in the worktree. A verdict that it left decides; otherwise its exit code decides."""
    request = search.journal.request
    make_new_folder(place)
    environ = {**os.environ, OUT: str(place / "recording")}
    with open_new(place / "log.txt") as log:
        code = cells.process(
            ["/bin/sh", "-c", request.run], seconds(request.limit, "--limit"), output=log, log=log, environ=environ,
            folder=tree,
        )  # fmt: skip
    if code is None:
        return Judged("skip", f"ended at its limit of {request.limit}")
    if (place / "recording" / verdict_file.NAME).is_file():
        return search.judge.read(place / "recording")
    if request.metric or request.cause:
        return Judged("skip", f"the command left no verdict in ${OUT} (exit code {code})")
    if code < 0 or code >= GIVES_UP:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise HarnessError(f"the command ended with {ended}, which ends the search", fix=f"see {place / 'log.txt'}")
    calls: dict[int, Call] = {0: "good", SKIP: "skip"}
    return Judged(calls.get(code, "bad"), f"exit code {code}")


def _commit(repo: Path, name: str) -> str:
    commit = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit is None:
        if _git(repo, "rev-parse", "--git-dir") is None:
            raise BadInput(f"{repo} is no git repository", fix="--repo DIR")
        raise BadInput(f"{repo} has no commit {name}", fix=f"git -C {repo} log --oneline")
    return commit


def _git(repo: Path, *words: str) -> str | None:
    """Return what git printed, or None where git failed. Raises BadInput where git is not installed."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(repo), *words], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise BadInput("git is not installed here", fix="apt-get install git") from error
    return answer.stdout.strip() if answer.returncode == 0 else None
