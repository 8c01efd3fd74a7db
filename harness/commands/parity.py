"""`harness parity`: one scenario, or a framework's own job, on two backends."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from harness import completion
from harness.command_options import of_options
from harness.commands.options import Format, Verbose
from harness.commands.showing import progress, say, show
from harness.commands.typed_options import begins_a_job, refuse_idle, typed
from harness.errors import BadInput, refuse
from harness.misplaced_words import is_engine, joined_engines
from harness.parity.runs.run_options import ParityOptions

WITH_A_COMMAND = ("framework", "repeat", "out", "cap", "strict", "stall", "format", "verbose", "seed", "mode")


@of_options
def parity(
    context: typer.Context,
    baseline: Annotated[
        str,
        typer.Argument(
            help="the backend to compare with: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ],
    candidate: Annotated[
        str,
        typer.Argument(
            help="the backend that is judged, named in the same way",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="a job of OpenRLHF, verl or TRL, which is run on both backends instead of a scenario"),
    ] = None,
    *,
    framework: Annotated[
        str, typer.Option(help="the framework of the command; auto: found from the command and its scripts")
    ] = "auto",
    repeat: Annotated[
        Literal["baseline", "both", "none"] | None,
        typer.Option(
            help="which sides of a job are run a second time, to measure the floor; default: the baseline with --mode "
            "coupled, else none",
            show_default=False,
        ),
    ] = None,
    options: ParityOptions,
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Run one scenario, or a framework's own job, on two backends, and say whether, where and why they differ.

    With a command after `--`, only these options are accepted: --framework, --repeat, --out, --cap, --strict, --stall,
    --format, --verbose, --seed and --mode coupled.

    \b
    Example:
      harness parity vllm sglang
      harness parity vllm@0.31 vllm@0.32 --rollout-only
    """
    _two(baseline, candidate, command or [])
    _no_job(context, command or [])
    _count(context, bool(command) or framework != "auto", options.mode)
    if command or framework != "auto":
        from harness.frameworks.job_parity import JobOptions, run_framework_parity

        coupled = options.mode == "coupled"
        job = JobOptions(
            framework=framework,
            out=options.out,
            cap=options.cap,
            strict=options.strict,
            stall_s=options.stall_s or None,
            seed=None if coupled else options.seed,
            coupled=(options.seed or 0) if coupled else None,
            repeat=repeat,
        )
        show(run_framework_parity(baseline, candidate, command or [], job, say), format, verbose=verbose)
    from harness.parity.runs.run import run_parity

    with progress() as view:
        verdict = run_parity(baseline, candidate, options, progress=view.update)
    show(verdict, format, verbose=verbose)


JOINING = ("vs", "vs.", "versus", "against", "and", "with", "to", ",")  # words that people type between two backends


def _two(baseline: str, candidate: str, others: list[str]) -> None:
    """Refuse further backends, which would be taken for a job's command, and words between two."""
    if candidate in JOINING and len(others) == 1 and is_engine(others[0]):
        raise BadInput(f"{candidate!r} is no backend: two stand beside each other", fix="", instead=candidate)
    typed_words = [baseline, candidate, *others]
    engines_by_word = [joined_engines(word) or [word] for word in typed_words]
    named = [engine for engines in engines_by_word for engine in engines]
    if len(named) == 2 or not all(map(is_engine, named)):
        return
    kept = [*dict.fromkeys(named)][:2] if len({*named}) > 1 else named[:2]
    message = f"{len(named)} backends are named, and a comparison takes two: {', '.join(named)}"
    refusals = []
    for word, engines in zip(typed_words, engines_by_word, strict=True):
        stay = []
        for engine in engines:
            if engine in kept:
                kept.remove(engine)
                stay.append(engine)
        if stay != [word]:
            refusals.append(BadInput(message, fix=f"{' '.join(stay)}   # two at a time", instead=word))
    refuse(refusals)


def _no_job(context: typer.Context, words: list[str]) -> None:
    """Refuse words behind two backends that are no job's command: nothing says that they are one."""
    import shutil

    from harness.config import catalog

    if not words or begins_a_job(context):
        return
    first, *others = words
    if not others and (first in catalog() or first.endswith(".toml")):
        raise BadInput(f"{first} is a scenario, which is an option", fix=f"--scenario {first}", instead=first)
    if shutil.which(first) is None and "=" not in first and not os.path.exists(first):
        message = f"{' '.join(words)} is neither a backend nor a command: a job's command stands behind --"
        refuse([BadInput(message, fix="", instead=word) for word in words])


def _count(context: typer.Context, command: bool, mode: str | None) -> None:
    """An option that would not count is refused: a job of hours must not run without what was asked of it."""
    if not command:
        fix = "-- python train.py   # the command of a job"
        refuse_idle(context, ["repeat"], "only a job is run a second time, and none is given", fix)
        return
    idle = [name for name in typed(context) if name not in (*WITH_A_COMMAND, "baseline", "candidate", "command")]
    counting = ", ".join(f"--{name}" for name in WITH_A_COMMAND)
    refuse_idle(context, idle, f"of no use with a job's command, with which only {counting} count")
    if mode not in (None, "coupled"):
        raise BadInput(
            f"--mode {mode}: a job draws with its own sampler, or coupled (--mode coupled)",
            fix="--mode coupled   # or leave it out",
        )
