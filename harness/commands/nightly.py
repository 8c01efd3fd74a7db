"""`harness nightly`: run a matrix of comparisons, and say what changed since the night before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.showing import format_option, say, show
from harness.commands.typed_options import refuse_idle
from harness.errors import BadInput
from harness.extras import need
from harness.nightly import HISTORY
from harness.parity.runs.run_options import nonempty_address
from harness.quantities import seconds, size
from probes.files import folder_or_nothing, open_new, try_writing
from reports.layout import Page
from reports.sections.nightly import duration
from reports.text import clean, counted

if TYPE_CHECKING:
    from harness.nightly.history import History
    from harness.nightly.matrix import Cell
    from harness.nightly.place import Place
    from harness.nightly.plan import Plan

HistoryAt = Annotated[
    str,
    typer.Option(
        help="the history of all nights: a SQLite file, or postgresql://USER@HOST/DATABASE", envvar="HARNESS_HISTORY"
    ),
]
NightFormat = Annotated[str, format_option("nightly")]


def nightly(
    context: typer.Context,
    matrix: Annotated[Path, typer.Argument(help="a TOML file that says which comparisons to run", show_default=False)],
    history: HistoryAt = HISTORY,
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            help="run only the cells that match this wildcard or part of a name; may be repeated",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    budget: Annotated[
        str,
        typer.Option(
            help="run only what fits into this time, 90m or 8h: first the cells that changed most recently, then those "
            "that have not run for longest",
            show_default=False,
        ),
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="continue the last night, which was interrupted")] = False,
    list_: Annotated[bool, typer.Option("--list", help="print the names of the cells, and run none")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would run and how long it would take, and run nothing")
    ] = False,
    out: Annotated[Path, typer.Option(help="the directory for recordings and reports")] = Path("runs/nightly"),
    address: Annotated[
        str | None,
        typer.Option(
            help="run cells side by side over the nodes of this Ray cluster",
            show_default=False,
            callback=nonempty_address,
        ),
    ] = None,
    format: NightFormat = "text",
) -> None:
    """Run the cells of a matrix, judge each against its earlier nights, and say what changed.

    Exits with 1 if a cell regressed, or is new and does not pass; else with 2 if one could not run, or none ran; else
    with 0.

    A matrix:

    \b
    name = "engines"
    [matrix]  # the product of these
    pairs = [["vllm", "sglang"]]
    dtypes = ["float32", "bfloat16"]
    [[include]]  # one more cell
    pair = ["hf", "vllm"]
    candidate_settings = ["engine.prefix_caching=false"]

    Known differences, in a file known.toml. The matrix names it above [matrix]: known = "known.toml"

    \b
    [[known]]
    cell = "vllm-sglang/*"
    cause = "STALE_WEIGHTS*"
    reason = "a known bug of the engine"
    owner = "me"
    expires = 2030-01-31

    \b
    Example:
      harness nightly MATRIX.toml
    """
    from harness.nightly import matrix as matrices
    from harness.nightly.history import History, Retention
    from harness.nightly.known import load as load_known
    from harness.nightly.night import Nightly
    from harness.nightly.place import Here
    from harness.nightly.plan import plan

    if resume and only:
        raise BadInput(
            "--resume runs every cell that the night lacks, and takes no --only",
            fix="   # without --only",
            instead="--only",
        )
    loaded, cells = matrices.load(matrix)
    entries = load_known(matrix.parent / loaded.known) if loaded.known else ()
    kept = Retention(
        loaded.keep.days, loaded.keep.changed, loaded.keep.count, size(loaded.keep.size) if loaded.keep.size else None
    )
    chosen = matrices.selected(cells, only)
    budget_s = seconds(budget, "--budget") if budget else None
    if list_:
        nothing_run = ("budget", "resume", "dry_run", "address", "out")
        refuse_idle(context, nothing_run, "--list prints names and plans no night, which --dry-run does")
        typer.echo("\n".join(clean(cell.name) for cell in chosen))
        return
    if not dry_run:
        need("ray")  # each cell would fail without it, one after the other
    started = time.monotonic()
    with contextlib.ExitStack() as opened:
        place: Place = Here()
        if not dry_run:
            _refuse_unusable(out)
        if address:
            from harness.nightly import nodes

            place = opened.enter_context(nodes.joined(address, say))
        if dry_run:
            _print_plan(_dry_run(history, loaded.name, chosen, resume, place, budget_s))
            return
        if address:
            nodes.refuse_unshared(out)
        past = opened.enter_context(History.at(history))
        number, chosen, dropped_cells = _to_run(past, loaded.name, chosen, resume)
        tonight = plan(chosen, past.last_runs(loaded.name), place, budget_s)
        ran = Nightly(past, out, entries, say, place)
        if number is None:
            number = past.begin(loaded.name, [planned.cell.name for planned in tonight.chosen], tonight.left_out)
        opened.enter_context(_alone(out / f".night-{number:05d}", number, past.command("list")))
        opened.enter_context(_noted())
        late = ran.cells(
            number,
            [planned.cell for planned in tonight.chosen],
            lambda: budget_s is None or time.monotonic() - started < budget_s,
        )
        left_out = [*dropped_cells, *tonight.left_out, *((cell.name, "the budget was used up") for cell in late)]
        night = ran.finish(number, left_out)
        past.prune(kept, out)
    show(night, format)


@contextlib.contextmanager
def _alone(lock: Path, number: int, listing: str) -> Iterator[None]:
    """Only one process runs a night: a second one would run its cells twice. Raises BadInput, whose fix is `listing`,
    the command that lists the nights."""
    import fcntl

    with open_new(lock) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not kept by what this process forks
        except (BlockingIOError, PermissionError) as error:
            raise BadInput(
                f"night {number} is still running", fix=f"{listing}   # it says when a night has ended"
            ) from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """Whoever interrupts a night is told how it goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note("the same command with --resume goes on")
        raise


def _refuse_unusable(out: Path) -> None:
    """Raises BadInput where the recordings of a night could not be written: before it begins."""
    try:
        with folder_or_nothing(out):
            try_writing(out)
    except OSError as error:
        raise BadInput(
            f"--out {out}: recordings cannot be written there: {error.strerror}",
            fix="--out DIR   # a folder that can be written, on a disk with free space (df -h)",
        ) from error


def _to_run(
    past: History, name: str, chosen: list[Cell], resume: bool
) -> tuple[int | None, list[Cell], list[tuple[str, str]]]:
    """The night to go on with (None: a new one), its cells, and those of them that the matrix no longer has, with this
    reason. Raises BadInput where there is no such night."""
    if not resume:
        return None, chosen, []
    cut = past.unfinished(name)
    if cut is None:
        raise _nothing_to_resume(name)
    number, wanted = cut
    matrix_names = {cell.name for cell in chosen}
    dropped_cells = [
        (cell_name, "the matrix no longer has it") for cell_name in wanted if cell_name not in matrix_names
    ]
    return number, [cell for cell in chosen if cell.name in wanted], dropped_cells


def _nothing_to_resume(name: str) -> BadInput:
    return BadInput(f"no night of {name} was cut on this machine", fix="   # a new night", instead="--resume")


def _dry_run(history: str, name: str, chosen: list[Cell], resume: bool, place: Place, budget_s: float | None) -> Plan:
    """What would run; makes no history."""
    from harness.nightly.history import History, NoHistory
    from harness.nightly.plan import plan

    try:
        with History.at(history, create=False) as past:
            _, chosen, dropped_cells = _to_run(past, name, chosen, resume)
            tonight = plan(chosen, past.last_runs(name), place, budget_s)
            return replace(tonight, left_out=(*dropped_cells, *tonight.left_out))
    except NoHistory:
        if resume:
            raise _nothing_to_resume(name) from None
        return plan(chosen, {}, place, budget_s)


def _print_plan(tonight: Plan) -> None:
    with Page() as page:
        for planned in tonight.chosen:
            note = "" if planned.last_run else " at most; it never ran"
            page.prose(f"{clean(planned.cell.name)}  {duration(planned.estimate_s)}{note}")
        for name, why in tonight.left_out:
            page.prose(f"{clean(name)}  not run: {clean(why)}")
        page.prose(f"{counted(len(tonight.chosen), 'cell')}, about {duration(tonight.estimate_s)} without second runs")
