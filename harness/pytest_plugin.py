"""pytest plugin with which an engine's own repository gates on parity. It calls what the commands call, and judges
nothing.

It is loaded into every pytest run of an environment with the harness, so it imports nothing except pytest before one of
its fixtures is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reports.model import Verdict

OPTION, STRICT, MARKER = "--harness-parity", "--harness-strict", "harness_parity"
_VERDICTS = pytest.StashKey[dict[str, Any]]()  # a comparison takes minutes, so tests with equal arguments share one


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rlhf-harness", "parity of rollout engines")
    group.addoption(
        OPTION,
        metavar="BASELINE,CANDIDATE",
        default="",
        help=f"compare these engines in tests marked {MARKER}, instead of those that they name",
    )
    group.addoption(
        STRICT, action="store_true", help="fail a comparison that is EQUIVALENT with reservations, as strict=True does"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(baseline, candidate, **options): what the fixture {MARKER} compares; options as of run_parity",
    )


@pytest.fixture
def harness_parity(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Verdict:
    """The verdict EQUIVALENT of the engines in the test's marker. With any other verdict the test fails with its
    sentence."""
    marker = request.node.get_closest_marker(MARKER)
    named = request.config.getoption(OPTION)
    engines: list[Any] = []
    if named:
        engines = [engine.strip() for engine in named.split(",")]
    elif marker is not None:
        engines = list(marker.args)
    if len(engines) != 2:
        written = f"{OPTION} vllm,sglang" if named else f"@pytest.mark.{MARKER}('vllm', 'sglang')"
        pytest.fail(f"two engines are compared: {written}", pytrace=False)
    options = dict(marker.kwargs) if marker is not None else {}
    options |= {"strict": True} if request.config.getoption(STRICT) else {}
    verdicts = request.config.stash.setdefault(_VERDICTS, {})
    key = repr((engines, sorted(options.items())))
    if key not in verdicts:
        import harness

        verdicts[key] = _attempt(
            lambda: harness.run_parity(*engines, **options), lambda: _parity_command(engines, options)
        )
    return _gate(verdicts[key], record_property)


@pytest.fixture
def harness_diff(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., Verdict]:
    """A function that compares two recorded runs, or the directory or bundle of a pair, and fails unless they are
    EQUIVALENT."""

    def judge(*runs: Any, **options: Any) -> Verdict:
        import harness

        options |= {"strict": True} if request.config.getoption(STRICT) else {}
        outcome = _attempt(lambda: harness.diff(*runs, **options), lambda: ["diff", *map(str, runs)])
        return _gate(outcome, record_property)

    return judge


def _attempt(compare: Callable[[], Verdict], command: Callable[[], list[str]]) -> Verdict | str:
    """The verdict, or the error text that the command of these words would print."""
    from harness.amended_command import amended
    from harness.errors import HarnessError

    try:
        return compare()
    except HarnessError as error:
        fix = amended(command(), error.fix or "", error.instead)
        return f"harness: {error.message}" + (f"\n  fix: {fix}" if fix else "")


def _parity_command(engines: list[str], options: dict[str, Any]) -> list[str]:
    from harness.command_options import command_options, option_words
    from harness.parity.runs.run_options import ParityOptions

    return ["parity", *engines, *option_words(command_options(ParityOptions(**options)))]


def _gate(outcome: Verdict | str, record_property: Callable[[str, object], None]) -> Verdict:
    from probes import redaction

    if isinstance(outcome, str):
        pytest.fail(redaction.text(outcome, 0), pytrace=False)
    from reports.sections import answer

    for name, path in outcome.paths.items():
        record_property(f"harness_{name}", path)
    if outcome.exit_code:
        summary = answer.of(redaction.scrub(outcome))
        lines = [f"{summary.title} (exit code {summary.exit_code}): {summary.reason}"]
        lines += [f"  {sentence}" for sentence in summary.evidence]
        lines += [f"  {label}: {text}" for label, text in summary.parts]
        lines += [f"  {name}: {path}" for name, path in outcome.paths.items()]
        pytest.fail("\n".join(lines), pytrace=False)
    return outcome
