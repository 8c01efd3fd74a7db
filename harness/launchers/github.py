"""GitHub Actions: a workflow that gates every push, and one that runs a nightly matrix with a job for each cell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import extras
from harness.command_options import of_options
from harness.commands.showing import say
from harness.commands.typed_options import refuse_idle
from harness.errors import BadInput
from harness.launchers import Recreate, _manifest, _shell, write
from harness.nightly import HISTORY

if TYPE_CHECKING:
    from harness.nightly.matrix import Cell

OUT = Path(".github") / "workflows"
VERDICT = "runs/push"  # where the gate of a push writes its verdict, for the summary
MOST_JOBS = 256  # the limit of a matrix: docs.github.com/actions/reference/limits
MINUTES = 350  # a job on GitHub's own runners ends after 360; this leaves time to upload the artefacts
# The newest major versions that run on Node 24, as of November 2026.
CHECKOUT, PYTHON, UPLOAD = "actions/checkout@v6", "actions/setup-python@v6", "actions/upload-artifact@v6"
CACHE, RESTORE, SAVE = "actions/cache@v5", "actions/cache/restore@v5", "actions/cache/save@v5"
Source = Annotated[
    str,
    typer.Option(
        envvar="HARNESS_SOURCE",
        help="where a runner installs the harness from: a path in the repository, of a checkout (.) or a wheel, or an "
        "address that pip takes; default: where this installation came from, if others can reach it",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Options:
    """The options of `harness render github`."""

    matrix: Annotated[
        Path, typer.Argument(help="a matrix of harness nightly; its path is from the root of the repository")
    ]
    on_push: Annotated[
        str,
        typer.Option(
            help="the command that gates a push; default: harness parity of the matrix's first pair", show_default=False
        ),
    ] = ""
    nightly: Annotated[
        str, typer.Option(help="a command to run every night too, in a job of its own", show_default=False)
    ] = ""
    source: Source = ""
    setup: Annotated[
        str,
        typer.Option(
            help="the command that installs the harness on a runner; default: pip, from --source", show_default=False
        ),
    ] = ""
    at: Annotated[str, typer.Option(help="when the night begins, in the syntax of cron and in UTC")] = "17 2 * * *"
    runner: Annotated[str, typer.Option(help="the label of the runners")] = "ubuntu-latest"
    python: Annotated[str, typer.Option(help="the version of Python")] = "3.12"
    out: Annotated[Path, typer.Option(help="the directory to write the workflows into")] = OUT
    recreate: Recreate = False


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write the GitHub workflows of a project: on every push, and every night a matrix.

    Each cell of the matrix is a job with a history of its own; the repository's secret HARNESS_HISTORY may name a
    PostgreSQL database for all of them. For a training job of your own there is harness render github-job.

    \b
    Example:
      harness render github MATRIX.toml
    """
    from harness.nightly import matrix as matrices

    if options.setup:
        refuse_idle(context, ["source"], "--setup is the whole command that installs the harness")
    _, cells = matrices.load(options.matrix)
    matrix = Path(in_repository(str(options.matrix), "MATRIX.toml"))
    if len(cells) > MOST_JOBS:
        raise BadInput(
            f"{options.matrix} has {len(cells)} cells, a GitHub matrix at most {MOST_JOBS} jobs", fix="exclude some"
        )
    source = in_repository(options.source, "--source")
    begin = start(options.setup or install(source, "nightly", "parity"), options.python, str(matrix))
    for option, line in (("--on-push", options.on_push), ("--nightly", options.nightly)):
        _shell.check(line, option)
    gate = options.on_push or _gate(cells, options.matrix)
    if _shell.writes_elsewhere(gate, VERDICT):
        say(f"the workflow shows no verdict, because --on-push does not write {VERDICT}; fix: give it --out {VERDICT}")
    changed_options = {
        "--on-push": options.on_push,
        "--nightly": options.nightly,
        "--source": source,
        "--setup": options.setup,
        "--at": "" if options.at == "17 2 * * *" else options.at,
        "--runner": "" if options.runner == "ubuntu-latest" else options.runner,
        "--python": "" if options.python == "3.12" else options.python,
    }
    words = [word for option, value in changed_options.items() if value for word in (option, value)]
    files = {
        "harness-push.yml": workflow(
            "push",
            {"push": None, "pull_request": None},
            {"gate": job(options.runner, [*begin, *_push(gate)])},
            cancels=True,
        ),
        "harness-nightly.yml": workflow(
            "nightly",
            {"schedule": [{"cron": options.at}], "workflow_dispatch": None},
            {
                **(
                    {"command": job(options.runner, [*begin, _run("Every night", options.nightly), upload("night")])}
                    if options.nightly
                    else {}
                ),
                "cell": {"strategy": {"fail-fast": False, "matrix": {"include": _named(cells)}}}
                | job(options.runner, [*begin, *_night(matrix)], name="${{ matrix.cell }}"),
            },
        ),
    }
    texts = {name: _manifest.text(value) for name, value in files.items()}
    command_line = shlex.join(["harness", "render", "github", str(matrix), *words])
    write(texts, options.out, command_line, recreate=options.recreate)


def install(source: str, *names: str) -> str:
    """Return the command with which a runner installs the harness with extras. Raises BadInput where no runner
    could.
    """
    source = in_repository(source, "--source")
    return f"pip install {shlex.quote(extras.requirement(source or extras.source_for_others(), *names))}"


def in_repository(path: str, option: str) -> str:
    """Return an absolute path relative to the root of the repository, where a runner's job begins; a relative one as it
    is.

    The repository is that of the working directory, which itself is the root where nothing above it has a `.git`.
    Raises BadInput for a file outside of it, which no runner has.
    """
    if not os.path.isabs(path):
        return path
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    for file in (Path(os.path.normpath(path)), Path(path).resolve()):
        if file.is_relative_to(root):
            return str(file.relative_to(root)) or "."
    copied, name = shlex.join(["cp", "-r", path, str(root)]), shlex.quote(Path(path).name)
    raise BadInput(
        f"{option} {path} is outside of the repository {root}, and no runner has it",
        fix=f"{copied} && {option} {name}   # and commit it"
        if option.startswith("-")
        else f"{copied}   # name the copy",
    )


def workflow(name: str, on: dict[str, Any], jobs: dict[str, Any], *, cancels: bool = False) -> dict[str, Any]:
    """Return a workflow. `cancels`: a run cancels an earlier one of its branch."""
    group = {"group": "${{ github.workflow }}-${{ github.ref }}", "cancel-in-progress": cancels}
    return {"name": name, "on": on, "permissions": {"contents": "read"}, "concurrency": group, "jobs": jobs}


def job(runner: str, steps: Sequence[dict[str, Any]], minutes: int = MINUTES + 10, **more: Any) -> dict[str, Any]:
    return {**more, "runs-on": runner, "timeout-minutes": minutes, "steps": list(steps)}


def start(setup: str, python: str, matrix: str = "") -> list[dict[str, Any]]:
    """Return the steps that install `harness`. With a matrix, the engine environments of an earlier job are
    restored.
    """
    cache = {
        "path": "~/.local/share/rlhf-harness",
        "key": f"harness-${{{{ runner.os }}}}-${{{{ hashFiles('{matrix}', 'pyproject.toml') }}}}",
        "restore-keys": "harness-${{ runner.os }}-",
    }
    return [
        {"uses": CHECKOUT},
        {"uses": PYTHON, "with": {"python-version": python}},
        *([{"name": "Environments of the engines", "uses": CACHE, "with": cache}] if matrix else []),
        _run("Install the harness", setup),
    ]


def _push(gate: str) -> list[dict[str, Any]]:
    show = f'harness report {VERDICT} --format md >> "$GITHUB_STEP_SUMMARY"'
    return [_run("Gate", gate), summary(f"{VERDICT}/verdict.json", show), upload("push")]


def _night(matrix: Path) -> list[dict[str, Any]]:
    """Return the steps of a nightly cell.

    The history is saved whatever the result. `actions/cache` alone would save it only for a night without a
    regression.
    """
    key, path = "harness-history-${{ matrix.key }}-", f"{HISTORY}*"
    attempt = f"{key}${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}"
    always = "${{ always() }}"
    environ = {
        "CELL": "${{ matrix.cell }}",
        "HARNESS_HISTORY": f"${{{{ secrets.HARNESS_HISTORY || '{HISTORY}' }}}}",
    }
    words = f'harness nightly {shlex.quote(str(matrix))} --only "$CELL" --format github'
    return [
        {"name": "History", "uses": RESTORE, "with": {"path": path, "key": attempt, "restore-keys": key}},
        {"name": "Cell", "env": environ, "timeout-minutes": MINUTES, "run": words},
        summary("runs/nightly/night-*/night.md", 'cat runs/nightly/night-*/night.md >> "$GITHUB_STEP_SUMMARY"'),
        {"name": "Keep the history", "if": always, "uses": SAVE, "with": {"path": path, "key": attempt}},
        upload("${{ matrix.key }}"),
    ]


def _run(name: str, command: str) -> dict[str, Any]:
    return {"name": name, "timeout-minutes": MINUTES, "run": command}


def summary(file: str, command: str) -> dict[str, Any]:
    return {"name": "Summary", "if": f"${{{{ always() && hashFiles('{file}') != '' }}}}", "run": command}


def upload(name: str, path: str = "runs/") -> dict[str, Any]:
    kept = {"name": name, "path": path, "if-no-files-found": "ignore", "retention-days": 14}
    return {"name": "Recordings and reports", "if": "${{ always() }}", "uses": UPLOAD, "with": kept}


def _gate(cells: Sequence[Cell], matrix: Path) -> str:
    pair = next((cell.pair for cell in cells if cell.pair), None)
    if pair is None:
        raise BadInput(f"{matrix} compares no pair of engines that could gate a push", fix="--on-push COMMAND")
    return shlex.join(["harness", "parity", *pair, "--rollout-only", "--format", "github", "--out", VERDICT])


def _named(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """Return each cell with a unique key that is valid as the name of a cache and of an artefact."""
    keys: list[str] = []
    for cell in cells:
        key = re.sub(r"[^A-Za-z0-9._]+", "-", cell.name)[:80]
        keys.append(f"{key}-{keys.count(key) + 1}" if key in keys else key)
    return [{"cell": cell.name, "key": key} for cell, key in zip(cells, keys, strict=True)]
