"""The request of a bisection: validated as a whole before anything starts, and stored so that it can be resumed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.bisect.bisect_options import BisectOptions
from harness.bisect.job_command import Command
from harness.cli import parsed
from harness.command_options import command_line, command_options, options_of
from harness.envs import recipe
from harness.errors import BadInput, closest, nearest
from harness.frameworks.detection import of
from harness.frameworks.job_parity import check_pair
from harness.nightly.observation import COUNTS, METRICS, NATIVE, group_and_name, metric
from harness.parity.runs.run import check_parity
from harness.parity.runs.run_options import ParityOptions
from reports.bisect_model import Over
from scenarios.engines import registry

RANGE = re.compile(r"(?P<good>.+?)\.\.(?P<bad>.+)")


_EITHER = "--run, or --against with an engine"  # of a bisection over commits


@dataclass(frozen=True)
class Request(BisectOptions):
    """A bisection that a user asked for."""

    @staticmethod
    def of(options: BisectOptions) -> Request:
        """Return the request of a command line, whose paths are those of this folder."""
        request = Request(**vars(options))
        if request.what.startswith("-"):  # there was no WHAT before --
            request = replace(request, what="", options=(request.what, *request.options))
        names = ("repo",) if request.framework else ("repo", "good", "bad")
        paths: dict[str, Any] = {name: str(Path(path).absolute()) for name in names if (path := getattr(request, name))}
        return replace(request, **paths)

    @property
    def over(self) -> Over:
        if self.repo:
            return "commits"
        return "settings" if self.good or self.bad else "releases"

    @property
    def command(self) -> str:
        """The command line that repeats this bisection."""
        arguments = command_options(self)
        options = arguments.pop("options", ())
        line = command_line("bisect", *filter(None, [arguments.pop("what", "")]), **arguments)
        return f"{line} -- {shlex.join(options)}" if options else line

    def ends(self) -> tuple[str, str]:
        """Return both ends of WHAT, which has the form GOOD..BAD. Raises BadInput for any other form."""
        match = RANGE.fullmatch(self.what)
        if match is None:
            if not self.what:
                raise BadInput("what to bisect is missing: a range GOOD..BAD", fix=f"harness bisect {self._example()}")
            engine, _, version = self.what.partition("@")
            raise BadInput(
                f"{self.what!r} is not a range GOOD..BAD",
                fix=f"{engine}@{version or 'GOOD'}..BAD"
                if registry.find(engine) is not None
                else self._example().partition(" ")[0],
                instead=self.what,
            )
        return match["good"], match["bad"]

    def _example(self) -> str:
        """Return the arguments of a valid `harness bisect` command of this kind, for the fix of an error."""
        if self.framework:
            return f"vllm --against sglang --framework {self.framework} --good 'COMMAND' --bad 'COMMAND'"
        if self.over == "commits":
            return "vllm@v1..v2 --repo DIR --against sglang" if self.against else "v1..v2 --repo DIR --run COMMAND"
        return "vllm@0.29..0.32 --against sglang" if self.over == "releases" else "--good a.toml --bad b.toml"

    def engine_and_ends(self) -> tuple[str, tuple[str, str]]:
        """Return (the engine that is built from each commit, both ends). The engine is empty with --run. Raises
        BadInput.
        """
        good, bad = self.ends()
        if self.run:
            return "", (good, bad)
        engine, at, good = good.partition("@")
        if not at:
            first, *_ = registry.names(embedded=False)
            raise BadInput(f"{self.what} names no engine", fix=f"{first}@{self.what}", instead=self.what)
        if registry.find(engine) is None:
            raise BadInput(
                f"there is no engine {engine!r} (there are: {', '.join(registry.names())})",
                fix=f"name one that there is: {', '.join(registry.names())}",
            )
        return engine, (good, bad)

    def check(self) -> None:
        """Raise BadInput for options that do not belong together."""
        self._check_over()
        if (self.metric == "") != (self.above is None):
            lacking = "--above 1e-4" if self.metric else "--metric max_delta_logprob"
            raise BadInput("--metric and --above belong together", fix=lacking)
        if self.above is not None and not math.isfinite(self.above):
            raise BadInput(f"--above {self.above} is no bound", fix="--above 1e-4")
        if self.metric and self.cause:
            raise BadInput(
                "--metric and --cause both decide what is good: give only one of them",
                fix="   # or without --metric",
                instead="--cause",
            )
        if self.metric:
            _check_metric(self.metric)
        if self.cause:
            _check_cause(self.cause)

    def _check_over(self) -> None:
        """Raise BadInput for options that do not belong to this kind of bisection, or that contradict each other."""
        if self.over == "releases":
            self._check_releases()
        for name, value in self._needed():
            if not value:
                raise BadInput(f"a bisection over {self.over} needs {name}", fix=self._fix_for(name))
        for name, value in self._foreign().items():
            if value:
                beside = " with --run" if self.run and self.over == "commits" else ""
                message = f"{name} does not apply to a bisection over {self.over}{beside}"
                raise BadInput(message, fix="", instead=name)
        if self.framework:
            self._check_job()
        if not self.run:
            self._check_options()

    def _check_releases(self) -> None:
        """Raise BadInput for a range without an engine that has releases."""
        good, bad = self.ends()
        engine, at, first = good.partition("@")
        engines = registry.names(embedded=False)
        if at and engine in engines:
            return
        near = nearest(engine, engines) if at else engines[0]
        versions = f"{first if at else good}..{bad}"
        is_range = near and all(map(recipe.is_version, versions.split("..", 1)))
        raise BadInput(
            f"there is no engine {engine!r} with releases: {', '.join(engines)}" if at
            else f"{self.what} names no engine",
            fix=f"{near}@{versions}" if is_range else self._example().partition(" ")[0],
            instead=self.what,
        )  # fmt: skip

    def _needed(self) -> list[tuple[str, object]]:
        """(Name, value) of what this kind of bisection cannot do without."""
        if self.over == "commits":
            return [(_EITHER, self.run or self.against)]
        if self.over == "releases":
            return [("--against", self.against)]
        ends: list[tuple[str, object]] = [("--good", self.good), ("--bad", self.bad)]
        if self.framework:
            ends += [("a backend before them, with --framework", self.what), ("--against", self.against)]
        return ends

    def _foreign(self) -> dict[str, object]:
        """Option -> its value, of those that this kind of bisection does not take."""
        if self.over == "commits":
            foreign: dict[str, object] = {"--good": self.good, "--bad": self.bad, "--framework": self.framework}
            if self.run:
                foreign |= {"--against": self.against, "--build": self.build, "--": self.options}
            return foreign
        foreign = {"--run": self.run, "--build": self.build}
        return foreign if self.over == "settings" else foreign | {"--framework": self.framework}

    def _fix_for(self, name: str) -> str:
        against = f"--against {registry.names()[0]}"
        fixes = {
            "--against": against,
            "--good": "--good a.toml",
            "--bad": "--bad b.toml",
            _EITHER: f"--run COMMAND   # or {against}",
        }
        return fixes.get(name) or f"harness bisect {self._example()}"

    def _check_options(self) -> None:
        """Refuse what a comparison would refuse. Raises BadInput."""
        alone = self.over == "settings" and not self.against
        command = "run" if alone else "parity"
        parsed_options = check_options(self.options, command, own_scenario=self.over == "settings")
        if self.over == "commits":
            self.engine_and_ends()
        if self.over != "settings":
            self._check_comparison(parsed_options)

    def _check_job(self) -> None:
        """Raise BadInput for a command that is not one of the framework, and for an engine that it does not support."""
        for text in (self.good, self.bad):
            command = Command.read(text)
            framework = of([word for part in command.parts.values() for word in part], self.framework)
            for backend in (self.what, self.against):
                check_pair(framework, backend)

    def _check_comparison(self, parsed_options: dict[str, Any]) -> None:
        """Refuse what every comparison of releases or commits would refuse. Raises BadInput."""
        check_parity(self.against, self.what.partition("@")[0], options_of(ParityOptions, parsed_options))


def check_options(options: Sequence[str], command: str, *, own_scenario: bool) -> dict[str, Any]:
    """Validate the options of `harness COMMAND`, and return the values of all options by name.

    Raises BadInput for options that the command would reject, and for those that the bisection sets for each
    comparison.
    """
    try:
        context = parsed(command, [*(["ppo-tiny"] if command == "run" else ["hf", "hf"]), *options])
    except BadInput as error:
        raise BadInput(f"behind --: {error.message}", fix=error.fix, instead=error.instead) from error
    explicit_names = {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}
    ours = {"out", "format", "command", "backend", "framework", "resume", *(["scenario"] if own_scenario else [])}
    if reserved_names := sorted(explicit_names & ours - ({"scenario"} if command == "run" else set())):
        raise BadInput(
            f"behind --: {reserved_names[0]} is set for each comparison, and cannot be given",
            fix=f"leave {reserved_names[0]} out",
        )
    return dict(context.params)


def _check_metric(name: str) -> None:
    metric_names, native = (*METRICS, *COUNTS), [metric("native", each) for each in NATIVE]
    if name not in native and group_and_name(name)[1] not in metric_names:
        raise BadInput(
            f"there is no metric {name!r} (there are: {', '.join([*metric_names, *native])})",
            fix="--metric max_delta_logprob",
        )


def _check_cause(name: str) -> None:
    from harness.parity.causes.registry import families  # the judge's libraries, which most requests do not need

    if name.partition("(")[0] not in families():
        raise BadInput(f"there is no cause {name!r}{closest(name, families())}", fix="harness explain   # lists them")
