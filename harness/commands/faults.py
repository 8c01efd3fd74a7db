"""`harness faults`: the planted faults, what is true of each, and whether the harness finds it."""

from __future__ import annotations

import datetime
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness import completion
from harness.aside import print_aside
from harness.commands.doors import group
from harness.commands.showing import show_json
from harness.commands.typed_options import spelled, typed
from harness.errors import BadInput
from harness.extras import need
from harness.other_paths import another_out
from harness.parity.runs.run_options import LaunchOptions
from harness.quantities import seconds
from probes.files import make_folder, write_whole

if TYPE_CHECKING:
    from harness.planted.differences.files import Fault
    from harness.planted.hangs.hang_outcome import Outcome as HangOutcome
    from reports.progress import ProgressEvent
    from scenarios.settings import Scenario

app = group("Planted faults: list them, run them, see what is found.", "harness faults list --suite parity")

Suite = Literal["hang", "parity"]
Format = Annotated[Literal["text", "json", "md"], typer.Option("--format", help="the format of what is printed")]
From = Annotated[
    str,
    typer.Option(
        "--from",
        help="take the faults from a Python file of your own, with a list HANGS or FAULTS; it is executed",
        show_default=False,
    ),
]


def names_of_faults(context: typer.Context, incomplete: str) -> list[str]:
    """What a shell completes: planted faults of the suite that the command line names so far, or of that by default."""
    if context.params.get("suite") == "parity":
        from harness.planted.differences import files

        names = [fault.name for fault in files.faults()]
    else:
        from harness.planted.hangs import hang_selection

        names = [hang.name for hang in hang_selection.hangs()]
    return sorted(name for name in dict.fromkeys(names) if name.startswith(incomplete))


Chosen = Annotated[
    list[str] | None,
    typer.Argument(
        help="the faults to run, by name or beginning of a name; default: all",
        show_default=False,
        autocompletion=names_of_faults,
    ),
]


@app.command("list")
def list_(
    suite: Annotated[Literal["all", "hang", "parity"], typer.Option(help="which planted faults to list")] = "all",
    source: From = "",
    format: Format = "text",
) -> None:
    """List the planted faults and the controls, with what is true of each.

    \b
    Example:
      harness faults list --suite parity
    """
    from harness.planted import listing

    rows = []
    if source and suite == "all":
        suite = _suite_of(Path(source))
    if suite != "parity":
        from harness.planted.hangs import hang_selection

        rows += [listing.described(hang) for hang in hang_selection.hangs(source)]
    if suite != "hang":
        from harness.planted.differences import files

        rows += [listing.described_parity(fault) for fault in files.faults(source)]
    listing.show_list(rows, format)


@app.command()
def run(
    context: typer.Context,
    names: Chosen = None,
    suite: Annotated[Suite, typer.Option(help="which planted faults to run")] = "hang",
    source: From = "",
    stall: Annotated[str, typer.Option(help="the stall after which the watchdog looks: 5s, 1m")] = "5s",
    engines: Annotated[
        bool, typer.Option("--engines", help="also run the hangs of real engines, which take a minute each")
    ] = False,
    conditions: Annotated[
        bool,
        typer.Option(
            "--conditions",
            help="also run each hang with spinning waits, a busy thread and a logger, which takes two hours",
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="how many hangs to run at a time; each has two to four processes")
    ] = 1,
    out: Annotated[
        str,
        typer.Option(
            help="keep recordings, evidence and output in this directory; default: nothing is kept", show_default=False
        ),
    ] = "",
    backends: Annotated[
        tuple[str, str],
        typer.Option(
            help="baseline and candidate of the parity suite", metavar="A B", autocompletion=completion.engines
        ),
    ] = ("vllm", "sglang"),
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="the dtype of learner and engines in the parity suite"),
    ] = "float32",
    model: Annotated[
        str,
        typer.Option(
            help="the policy in the parity suite: a directory, or builtin:NAME; rotate: for each fault another of the "
            "built-in architectures, by its place and the day, and the control on all",
            show_default=False,
        ),
    ] = "",
    cold: Annotated[
        bool, typer.Option("--cold", help="use no engine that `harness up` keeps, in the parity suite")
    ] = False,
    format: Format = "text",
) -> None:
    """Run planted faults and say what was found of each. Exits with 0 if all is as expected, else with 1.

    \b
    Example:
      harness faults run --suite parity min-tokens-dropped
    """
    if not source:
        _refuse_other_suite(suite, names or [])
    _refuse_options_of_other_suite(context, suite, names or [])
    if suite == "parity":
        _parity(names or [], source, backends=backends, dtype=dtype, model=model, out=out, cold=cold, format=format)
    from harness.planted.hangs import hang_selection, lab, tables

    need("torch")  # the programs of the lab are ranks
    hangs = hang_selection.chosen(hang_selection.hangs(source), names or [], engines=engines, conditions=conditions)
    folder = _folder(out)
    rows: list[HangOutcome] = []
    outcomes = lab.outcomes(hangs, stall_s=seconds(stall), jobs=jobs, out=folder, progress=_progress_line(len(hangs)))
    for outcome in outcomes:
        rows.append(outcome)
        if format == "text":
            tables.print_outcome(outcome)
    result = lab.score(rows)
    if folder is not None:
        write_whole(folder / "suite.md", tables.as_markdown(rows, result).encode())
    if format == "text":
        print(result.line)
    elif format == "json":
        show_json(tables.as_json(rows, result, seconds(stall)))
    else:
        print(tables.as_markdown(rows, result), end="")
    raise typer.Exit(0 if result.passed else 1)


def _parity(
    names: list[str],
    source: str,
    *,
    backends: tuple[str, str],
    dtype: str,
    model: str,
    out: str,
    cold: bool,
    format: str,
) -> None:
    """The planted faults of parity; leaves with 0 when the score passes."""
    import tempfile

    from harness.planted.differences import files, tables
    from harness.planted.differences.fault_runs import outcomes
    from harness.planted.differences.outcome import Outcome, score
    from harness.planted.differences.rotation import ROTATE, rotated

    faults = files.chosen(files.faults(source), names)
    _refuse_impossible(faults, backends)
    rows: list[Outcome] = []
    scenario = _scenario(dtype, model)
    planted = {fault.name: fault.at(dtype) for fault in faults}
    hidden = [name for name, fault in planted.items() if fault is None]
    faults = [fault for fault in planted.values() if fault is not None]
    if model == ROTATE:
        faults = rotated(faults, turn=datetime.date.today().toordinal())
    with tempfile.TemporaryDirectory(prefix="parity-faults-") as scratch:
        folder = _folder(out, fresh=True) or Path(scratch)
        options = LaunchOptions(cold=cold, progress=_print_message)
        for outcome in outcomes(*backends, faults, scenario=scenario, out=folder, options=options):
            rows.append(outcome)
            tables.print_outcome(outcome, aside=format != "text")
            tables.keep(rows, folder)
    result = score(rows)
    if format == "json":
        show_json(tables.as_json(rows, result))
    elif format == "md":
        print(tables.as_markdown(rows, result), end="")
    else:
        print(tables.summary(rows, result, faults, hidden))
    raise typer.Exit(0 if result.passed and rows else 1)


def refuse_unknown(
    suite: Suite,
    names: Sequence[str],
    backends: tuple[str, str],
    *,
    engines: bool,
    conditions: bool,
    dtype: str = "",
    model: str = "",
) -> None:
    """Raises BadInput for what `harness faults run` would refuse: a fault that is not there, or not with this pair, a
    model that is not there, and an engine that cannot start."""
    _refuse_other_suite(suite, names)
    if suite == "hang":
        from harness.planted.hangs import hang_selection

        hang_selection.chosen(hang_selection.hangs(), names, engines=engines, conditions=conditions)
        return
    from harness.parity.runs.preflight import check_environment, preflight
    from harness.planted.differences import files

    _refuse_impossible(files.chosen(files.faults(), names), backends)
    scenario = _scenario(dtype, model)
    for backend in backends:
        preflight(scenario, backend)
        check_environment(backend, scenario)


def _refuse_other_suite(suite: Suite, names: Sequence[str]) -> None:
    """Raises BadInput for names that only the other suite has."""
    other: Suite = "parity" if suite == "hang" else "hang"
    unknown = [name for name in names if not _in_suite(suite, name)]
    strays = [name for name in unknown if _in_suite(other, name)]
    if strays:
        names_of_other = shlex.join(strays)
        raise BadInput(
            f"{' and '.join(strays)}: of the {other} suite of planted faults, not of the {suite} suite",
            fix=f"harness faults run --suite hang {names_of_other}"
            if other == "hang"
            else f"harness faults run --suite parity {names_of_other}",
        )


OPTIONS: dict[Suite, tuple[str, ...]] = {
    "hang": ("stall", "engines", "conditions", "jobs"),
    "parity": ("backends", "dtype", "model", "cold"),
}


def _refuse_options_of_other_suite(context: typer.Context, suite: Suite, names: Sequence[str]) -> None:
    """Raises BadInput for an option that was given and that only the other suite has: it would change nothing."""
    other: Suite = "parity" if suite == "hang" else "hang"
    strays = [spelled(context, name) for name in typed(context) if name in OPTIONS[other]]
    if strays:
        listed = shlex.join(names)
        raise BadInput(
            f"{strays[0]} is an option of the {other} suite of planted faults: it changes nothing in the {suite} suite",
            fix=f"harness faults run --suite {suite} {listed}" if names else f"--suite {other}",
        )


def _in_suite(suite: Suite, name: str) -> bool:
    """Whether a fault of the suite begins with this name."""
    if suite == "hang":
        from harness.planted.hangs import hang_selection

        return any(hang.name.startswith(name) for hang in hang_selection.hangs())
    from harness.planted.differences import files

    return any(fault.name.startswith(name) for fault in files.faults())


def _scenario(dtype: str, model: str = "") -> Scenario:
    """That of the parity suite. `model`: another policy than the built-in one, or ROTATE: each fault has its own."""
    from harness import config
    from harness.planted.differences.rotation import ROTATE

    changes = [f"model.dtype={dtype}"] if dtype else []
    changes += [f"model.path={model}"] if model not in ("", ROTATE) else []
    return config.changed(config.load("ppo-tiny", steps=5), changes)


def _refuse_impossible(faults: Sequence[Fault], backends: tuple[str, str]) -> None:
    from harness.planted.differences.fault_runs import planned

    if planned(faults, backends):
        return
    pairs = sorted({" ".join(fault.pair) for fault in faults if fault.pair})
    raise BadInput(
        f"none of these faults can be had with {' and '.join(backends)}: they need {' or '.join(pairs)}",
        fix=f"harness faults run --suite parity --backends {pairs[0]}",
    )


def _suite_of(path: Path) -> Literal["all", "hang", "parity"]:
    """The suite of which a Python file has a list, which is executed; all where it has both. Raises BadInput."""
    from harness.planted.differences.files import EXAMPLE
    from harness.planted.foreign import executed

    module = executed(path)
    hangs, faults = hasattr(module, "HANGS"), hasattr(module, "FAULTS")
    if not (hangs or faults):
        raise BadInput(f"{path} has no list HANGS or FAULTS at its top level", fix=EXAMPLE)
    return "all" if hangs and faults else "hang" if hangs else "parity"


def _folder(out: str, *, fresh: bool = False) -> Path | None:
    """The folder to keep things in, made; None for none."""
    if not out:
        return None
    folder = Path(out)
    if fresh and folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty; a recording never overwrites another", fix=another_out(folder))
    try:
        make_folder(folder)
    except OSError as error:
        raise BadInput(f"{folder} cannot be made: {error.strerror}", fix="--out DIR") from error
    return folder.resolve()


def _print_message(event: ProgressEvent) -> None:
    """What a person must know of a suite's engines; its progress is the outcomes."""
    if event.message and not event.side:
        print_aside(f"harness: {event.message}")


def _progress_line(total: int) -> Any:
    """Progress for a person who looks at the terminal; nothing elsewhere."""
    count = 0

    def say(line: str) -> None:
        nonlocal count
        count += 1
        if sys.stderr.isatty():
            progress_line = f"{count}/{total} {line}"[: shutil.get_terminal_size().columns - 1]
            print_aside(f"\r\033[K{progress_line}", end="\r")

    return say
