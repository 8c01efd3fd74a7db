"""`harness parity`, `run`, `diff` and `report`: record, judge, show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.commands.showing import format_option, show
from probes import redaction

if TYPE_CHECKING:
    from reports.model import Verdict

Format = Annotated[str, format_option("parity")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="print the tables too: both runs, metrics, every check and finding")
]
Scenario = Annotated[str, typer.Option(help="a scenario of the catalog, or the path of a .toml file")]
Set = Annotated[
    list[str], typer.Option("--set", help="section.key=value, on every side; may be repeated", show_default=False)
]
Model = Annotated[str, typer.Option(help="a Hugging Face directory; default: the scenario's", show_default=False)]
Prompts = Annotated[str, typer.Option(help="a JSONL or Parquet file; default: the scenario's", show_default=False)]
Mode = Annotated[
    Literal["coupled", "native", "greedy"] | None,
    typer.Option(help="of sampling; default: the scenario's", show_default=False),
]
Steps = Annotated[int | None, typer.Option(help="PPO steps; default: the scenario's", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="of everything; default: the scenario's", show_default=False)]
Out = Annotated[
    str, typer.Option(help="directory of the recording; default: a new one under runs/", show_default=False)
]
Address = Annotated[str, typer.Option(help="join this Ray cluster instead of starting one", show_default=False)]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="of the learner; auto: CUDA where the cluster has it")
]


def _finite(cap: float | None) -> float | None:
    from harness.errors import BadInput

    if cap == float("inf"):
        raise BadInput("--cap inf would believe any noise: nothing could differ", fix="--cap 0.05   # in nats")
    return cap


Cap = Annotated[
    float | None,
    typer.Option(
        help="largest rounding noise to believe, in nats; default: the dtype's",
        min=0,
        callback=_finite,
        show_default=False,
    ),
]
Stall = Annotated[
    str, typer.Option(help="without progress for so long, a run is looked at and ended if it hangs; 0: never")
]
RolloutOnly = Annotated[bool, typer.Option("--rollout-only", help="no training: generation at fixed weights")]


WITH_A_COMMAND = ("framework", "repeat", "out", "cap", "stall", "format", "verbose", "seed", "mode")


def parity(
    context: typer.Context,
    baseline: Annotated[str, typer.Argument(help="engine or engine@environment or engine@version", show_default=False)],
    candidate: Annotated[str, typer.Argument(help="the one that is judged", show_default=False)],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="a job of OpenRLHF, verl or TRL, run on both instead of a scenario (docs/how-to/frameworks.md)"
        ),
    ] = None,
    framework: Annotated[str, typer.Option(help="of the command; auto: what it and its scripts name")] = "auto",
    scenario: Scenario = "ppo-tiny",
    set: Set = [],  # noqa: B006
    candidate_set: Annotated[
        list[str], typer.Option("--candidate-set", help="section.key=value, on the candidate only", show_default=False)
    ] = [],  # noqa: B006
    model: Model = "",
    prompts: Prompts = "",
    repeat: Annotated[
        Literal["baseline", "both", "none"] | None,
        typer.Option(
            help="with a command: which sides are run a second time, for the floor; default: the baseline with --mode "
            "coupled, else none",
            show_default=False,
        ),
    ] = None,
    mode: Mode = None,
    steps: Steps = None,
    seed: Seed = None,
    rollout_only: RolloutOnly = False,
    free: Annotated[bool, typer.Option("--free", help="let the runs part instead of guiding the candidate")] = False,
    native: Annotated[bool, typer.Option("--native/--no-native", help="the short native stage at the end")] = True,
    lifted: Annotated[
        bool | None,
        typer.Option(
            "--lifted/--no-lifted",
            help="compute once more in float32 with the weights of half precision; default: where they fit into memory",
            show_default=False,
        ),
    ] = None,
    attribution: Annotated[
        bool,
        typer.Option(
            "--attribution/--no-attribution", help="intervene on the live engines to find the cause of a divergence"
        ),
    ] = True,
    fault: Annotated[
        str, typer.Option(help="plant this fault in the candidate (an unknown name lists them)", show_default=False)
    ] = "",
    mapping: Annotated[
        str,
        typer.Option(
            help="the candidate's own parameter mapping, FILE.py (docs/reference/parameters.md)", show_default=False
        ),
    ] = "",
    baseline_mapping: Annotated[str, typer.Option(help="the same, of the baseline", show_default=False)] = "",
    cap: Cap = None,
    out: Out = "",
    address: Address = "",
    device: Device = "auto",
    stall: Stall = "60s",
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Run one scenario, or a framework's own job, on two backends: do they agree; if not, where do they part, and why?

    With a command after `--` only --framework, --repeat, --out, --cap, --stall, --format, --verbose, --seed and --mode
    coupled count.
    """
    _count(context, bool(command) or framework != "auto", mode)
    if command or framework != "auto":
        coupled = (seed or 0) if mode == "coupled" else None
        alone = seed if mode != "coupled" else None
        verdict = _framework_parity(
            baseline, candidate, command or [], framework, out, cap, stall, alone, coupled, repeat
        )
        show(verdict, format, verbose=verbose)
    from harness.parity.runs.run import run_parity

    with _progress() as progress:
        verdict = run_parity(
            baseline,
            candidate,
            scenario=scenario,
            overrides=_overrides(set, model, prompts),
            candidate_overrides=candidate_set,
            mode=mode,
            seed=seed,
            steps=steps,
            rollout_only=rollout_only,
            free=free,
            native=native,
            lifted=lifted,
            attribution=attribution,
            fault=fault or None,
            mapping=mapping or None,
            baseline_mapping=baseline_mapping or None,
            cap=cap,
            out=out or None,
            address=address or None,
            device=device,
            stall_s=_seconds(stall),
            progress=progress.update,
        )
    show(verdict, format, verbose=verbose)


def _count(context: typer.Context, command: bool, mode: str | None) -> None:
    """An option that would not count is refused: a job of hours must not run without what was asked of it."""
    from harness.errors import BadInput

    given = [
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if not command:
        if "repeat" in given:
            raise BadInput("--repeat runs a job a second time: there is none", fix="harness parity A B … -- COMMAND")
        return
    idle = [name for name in given if name not in (*WITH_A_COMMAND, "baseline", "candidate", "command")]
    if idle:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        counting = ", ".join(f"--{name}" for name in WITH_A_COMMAND)
        raise BadInput(f"{named}: of no use with a job's command, with which only {counting} count")
    if mode not in (None, "coupled"):
        raise BadInput(f"--mode {mode}: a job draws with its own sampler, or coupled (--mode coupled)")


def _framework_parity(
    baseline: str, candidate: str, command: list[str], framework: str, out: str, cap: float | None, stall: str,
    seed: int | None, coupled: int | None, repeat: Literal["baseline", "both", "none"] | None,
) -> Verdict:  # fmt: skip
    import sys

    from harness.frameworks.parity import run_framework_parity

    def say(line: str) -> None:
        print(redaction.text(f"harness: {line}", 0), file=sys.stderr, flush=True)

    return run_framework_parity(
        baseline, candidate, command, framework=framework, out=out or None, cap=cap, say=say,
        stall_s=_seconds(stall) or None, seed=seed, coupled=coupled, repeat=repeat,
    )  # fmt: skip


def run(
    scenario: Annotated[
        str, typer.Argument(help="a scenario of the catalog, or the path of a .toml file", show_default=False)
    ],
    backend: Annotated[str, typer.Option(help="engine or engine@environment or engine@version")] = "hf",
    set: Set = [],  # noqa: B006
    model: Model = "",
    prompts: Prompts = "",
    mode: Mode = None,
    steps: Steps = None,
    seed: Seed = None,
    rollout_only: RolloutOnly = False,
    mapping: Annotated[
        str,
        typer.Option(
            help="a parameter mapping of your own, FILE.py (docs/reference/parameters.md)", show_default=False
        ),
    ] = "",
    resume: Annotated[
        str, typer.Option(help="continue from this checkpoint (…/checkpoints/step-N)", show_default=False)
    ] = "",
    out: Out = "",
    address: Address = "",
    device: Device = "auto",
    stall: Stall = "60s",
    format: Annotated[str, format_option("run", "of what is printed: the directory, or its steps")] = "text",
) -> None:
    """Record one run of a scenario on one backend."""
    from harness.parity.runs.run import run_scenario

    with _progress() as progress:
        folder = run_scenario(
            scenario,
            backend=backend,
            overrides=_overrides(set, model, prompts),
            mode=mode,
            seed=seed,
            steps=steps,
            rollout_only=rollout_only,
            mapping=mapping or None,
            resume=resume or None,
            out=out or None,
            address=address or None,
            device=device,
            stall_s=_seconds(stall),
            progress=progress.update,
        )
    from reports.run_model import RecordedRun

    show(RecordedRun.of(folder), format)


def diff(
    baseline: Annotated[str, typer.Argument(help="a run directory", show_default=False)],
    candidate: Annotated[str, typer.Argument(help="the run directory that is judged", show_default=False)],
    again: Annotated[
        str,
        typer.Option(help="a second run of the baseline's job, with which its floor is measured", show_default=False),
    ] = "",
    cap: Cap = None,
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Judge two recorded runs, ours or another framework's."""
    from harness.parity.runs.run import diff as judge

    with _progress() as progress:
        verdict = judge(baseline, candidate, again=again or None, cap=cap, progress=progress.update)
    show(verdict, format, verbose=verbose)


def report(
    run: Annotated[str, typer.Argument(help="a directory with a verdict.json, or that file", show_default=False)],
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Show a verdict again, in any format."""
    import json

    from harness.errors import BadInput
    from reports.model import EXIT_CODES, Verdict

    path = Path(run) / "verdict.json" if Path(run).is_dir() else Path(run)
    try:
        verdict = Verdict.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist", fix="harness parity … --out DIR writes one") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no verdict of this version: {error}") from error
    if verdict.kind == "parity" and verdict.exit_code != EXIT_CODES.get(verdict.verdict):
        raise BadInput(f"{path} says {verdict.verdict!r} with exit code {verdict.exit_code!r}: it was edited")
    show(verdict, format, verbose=verbose)


@contextmanager
def _progress() -> Iterator[Any]:
    from rich.console import Console

    from reports.progress import progress

    with progress(Console(stderr=True)) as view:
        yield view


def _seconds(stall: str) -> float:
    from harness.commands.watch import seconds

    return 0.0 if stall.strip() in ("0", "0s") else seconds(stall)


def _overrides(settings: list[str], model: str, prompts: str) -> list[str]:
    import json

    named = (("model.path", model), ("prompts.path", prompts))
    return [*settings, *(f"{key}={json.dumps(value)}" for key, value in named if value)]
