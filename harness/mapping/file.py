"""Checks the mapping in a user's file: its functions are called in a process of their own, within a time limit."""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from harness.envs.environment import all_environments, find
from harness.envs.interpreter import import_failure
from harness.envs.stored_arguments import accepted, of_tables
from harness.errors import BadInput, Mistakes, closest, nearest
from harness.frameworks.spec import frameworks
from harness.mapping import call_program
from harness.mapping.carried_settings import (
    CANONICAL,
    MODEL,
    Edge,
    Replies,
    Setting,
    Words,
    asked_for,
    harness_gives,
    owners,
    settings,
)
from harness.mapping.judge import Arrival, Judge, Mapping, Part, Takes, Trial
from harness.other_paths import free_path, nearest_folder, similar_path
from harness.triage.collect import bounded
from harness.triage.graph.subjects import exit_text
from probes import limits
from scenarios.engines import registry
from scenarios.engines.accepted import Accepted
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.mapping import PARTS
from scenarios.engines.native import same
from scenarios.engines.spec import EngineSpec

_WITH_THE_REST = " with the rest"  # suffix for requests of a part that also have the other part's settings
_LEFT_OUT = " without "  # suffix for the first request of a part without a word of --with, whose name follows
_ADVICE = (
    "harness mapping --help   # which functions it calls, such as def to_engine(args): a dictionary of settings in, "
    "the engine's arguments out"
)


@dataclass(frozen=True)
class Asked:
    """What the user asked for.

    `functions`: those of the file to check; none: all. `ignored`: settings that are never set. `more`: other settings
    that the functions read. `python`: the interpreter that runs the file, with its packages; empty: this one, with
    stand-ins for packages of engines and frameworks.
    """

    file: str
    engine: str
    source: str
    functions: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()
    python: str = ""
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Answers:
    """The answers of one function of the file.

    `calls`: part -> the answer to each request. `takes`: the settings that it accepts by name; None: all. `error`: why
    it cannot be called. `missing`: parameters beside the settings for which nothing was given.
    """

    name: str
    shape: str
    calls: dict[str, list[dict[str, Any]]]
    takes: list[str] | None
    error: str
    missing: tuple[str, ...] = ()

    def of(self, part: str) -> list[dict[str, Any]]:
        """The answers to the requests of a part: with that part's settings alone, or with both parts' if the
        function reads both."""
        alone, combined = self.calls.get(part, []), self.calls.get(f"{part}{_WITH_THE_REST}", [])
        works_alone = bool(alone) and "native" in alone[0]
        return combined if combined and not works_alone else alone

    def raised(self) -> tuple[int, str]:
        """The line of the file that raised the first error, and the error; (0, "") if none was raised."""
        for call in self._first_calls():
            if call.get("line"):
                return call["line"], call["error"]
        return 0, ""

    def _first_calls(self) -> list[dict[str, Any]]:
        """The answer for each part's first values."""
        return [calls[0] for calls in map(self.of, PARTS) if calls]

    def trouble(self, file: str) -> str:
        """Why the function maps nothing, as far as its answers tell."""
        line, error = self.raised()
        if line:
            return f"{file}:{line} {self.name} raised {error}"
        errors = [self.error, *(call.get("error", "") for call in self._first_calls())]
        why = next(filter(None, errors), "nothing that it returns follows a setting")
        return f"{self.name}: {why}"


def check(options: Asked, takes: Takes | None = None) -> Mapping:
    """Judge the mapping in a file.

    `takes`: the argument names that the installed engines accept, to report unknown ones. Raises BadInput if the file
    has no function that can be called.
    """
    target, source = registry.get(options.engine), registry.get(options.source)
    names = takes or Takes(Accepted(), Accepted())
    words = Words(names.source.choices, names.target.choices)
    of_canonical = Words(names.target.choices, names.target.choices, canonical=True)
    plans = {
        "native": _without(settings(source, target, words), options),
        CANONICAL: settings(None, target, of_canonical),
    }
    functions, stand_ins = _called(options, plans)
    judges = Judges(Judge(source, target, names), Judge(None, target, names))
    parts = [_judged(part, functions, plans, judges, options) for part in PARTS]
    judged = _without_namesakes(list(filter(None, parts)), target)
    absent, raising = _absent(judged), _raising(functions, judged)
    if absent and raising:
        raise _raised(raising, absent, judged, plans, options)
    if not judged:
        raise _nothing_maps(functions, options, source, target, stand_ins)
    notes = [_stand_ins(stand_ins)] if stand_ins else []
    findings = _distinct(judged)
    notes += _notes_on_engines(judged, options, takes)
    notes += _notes_on_direction(findings, options, names)
    notes += _notes_on_functions(judged, functions, options)
    return Mapping(
        file=options.file,
        source=CANONICAL if all(item.function.shape == CANONICAL for item in judged) else options.source,
        engine=options.engine,
        functions={item.part: item.function.name for item in judged},
        settings={item.part: item.settings for item in judged},
        findings=findings,
        left_out=tuple(text for item in judged for text in item.left_out),
        differs=tuple(text for item in judged for text in item.differs),
        notes=tuple(notes),
    )


def mapping_functions(options: Asked, without: Collection[str]) -> dict[str, list[str]]:
    """Function of the file -> the parts that `check` would take it for. `without`: functions that are left out.

    Raises BadInput where the file cannot be called.
    """
    target, source = registry.get(options.engine), registry.get(options.source)
    plans = {"native": settings(source, target), CANONICAL: settings(None, target)}
    functions, _ = _called(options, plans)
    functions = [function for function in functions if function.shape != CANONICAL and function.name not in without]
    parts: dict[str, list[str]] = {}
    for part in PARTS:
        for function in _rivals(part, functions, plans):
            parts.setdefault(function.name, []).append(part)
    return parts


def _notes_on_engines(judged: list[_Part], options: Asked, takes: Takes | None) -> Iterator[str]:
    """Notes on names that cannot be checked, and on two sides that are one engine."""
    target = registry.get(options.engine)
    if takes is not None and not takes.target.engine and not target.embedded:
        yield f"names are not checked: harness env create {target.name} keeps those that {target.title} takes"
    if options.engine == options.source and any(item.function.shape != CANONICAL for item in judged):
        others = " or ".join(f"--engine {name}" for name in registry.names(embedded=False) if name != options.engine)
        yield f"both sides are {target.title}: a mapping to another engine is checked with {others}"


def _notes_on_direction(findings: tuple[Arrival, ...], options: Asked, names: Takes) -> Iterator[str]:
    """A note where several arguments that follow no setting are of the source engine: the mapping may be to that one.
    Names that were copied from one engine to the other follow settings.
    """
    source, of_source = registry.get(options.source), {*names.source.engine, *names.source.sampling}
    unknown = sorted(item.setting for item in findings if item.kind == "unknown" and item.setting in of_source)
    if len(unknown) > 1:
        way = f"a mapping to {source.title} is checked with --engine {source.name} --from {options.engine}"
        yield f"{', '.join(unknown)} are arguments of {source.title}: {way}"


def _notes_on_functions(judged: list[_Part], functions: list[Answers], options: Asked) -> Iterator[str]:
    """Notes on what the functions of the file do not map, read otherwise, or ignore."""
    absent = _absent(judged)
    for part in absent:
        yield f"no function of the file maps settings of the {part}: not checked"
    for item in judged:
        yield from _other_names(item, options)
        yield from item.notes
    for function in _raising(functions, judged):
        yield f"{function.trouble(options.file)}: not checked"
    for function in functions:
        # One that could not be called is of interest only while a part is not mapped: it may be the one that does.
        if absent and function.missing:
            yield f"{function.trouble(options.file)}: {_with(function.missing)}"
    yield from _without_effect(functions, options)


def _with(names: Iterable[str]) -> str:
    """The options that give parameters beside the settings."""
    return shlex.join(word for name in names for word in ("--with", f"{name}=VALUE"))


def _without_effect(functions: list[Answers], options: Asked) -> Iterator[str]:
    """A note on each word of --with without which every function returns the same."""
    for name, value in options.more:
        pairs = [
            (function.calls[f"{part}{_WITH_THE_REST}"][:1], function.calls[f"{part}{_LEFT_OUT}{name}"])
            for function in functions
            for part in PARTS
            if f"{part}{_LEFT_OUT}{name}" in function.calls
        ]
        if all(same(first, left_out) for first, left_out in pairs):
            yield f"--with {name}={value!r} changes nothing: each function returns the same without it"


def _distinct(judged: list[_Part]) -> tuple[Arrival, ...]:
    """The findings of all parts, each once, with what is dropped last."""
    findings = {(finding.part if finding.parameter else "", finding.setting, finding.kind, finding.text): finding
                for item in judged for finding in item.findings}  # fmt: skip
    return tuple(sorted(findings.values(), key=lambda finding: finding.kind == "dropped"))


def installed(engine: str) -> Accepted:
    """The argument names that an engine accepts, as stored when its environment was made; empty without an
    environment."""
    if registry.get(engine).embedded:
        return of_tables(engine)
    environment = find(engine)
    return Accepted() if environment is None else accepted(environment, ask=False)


@dataclass(frozen=True)
class Judges:
    """The judge of a mapping from the source engine's settings, and the judge of one from canonical parameters."""

    native: Judge
    canonical: Judge


@dataclass(frozen=True)
class _Part:
    """The judgement of one part of the settings. `settings`: canonical name -> the source's name."""

    part: str
    function: Answers
    settings: dict[str, str]
    findings: tuple[Arrival, ...]
    left_out: tuple[str, ...]
    differs: tuple[str, ...]
    notes: tuple[str, ...]


def _judged(
    part: str, functions: list[Answers], plans: dict[str, tuple[Setting, ...]], judges: Judges, options: Asked
) -> _Part | None:
    """The judgement of the function that maps this part; None if none does. Raises BadInput if several do."""
    function = _mapping_of(part, functions, plans, options)
    if function is None:
        return None
    judge = judges.canonical if function.shape == CANONICAL else judges.native
    of_part = _of_part(part, _plan(function, plans))
    replies = Replies.of(of_part, function.of(part))
    if varying := replies.varying():
        raise _not_deterministic(function, varying, options)
    trials = _trials(function, replies)
    findings = _arrivals(judge, trials)
    # A setting is reported once: what is wrong with it at its first two values would show at every edge again.
    wrong = {item.parameter for item in findings}
    at_edges, notes = _edges(judge, replies, wrong)
    sound_trials = [trial for trial in trials if trial.setting.parameter.name not in wrong]
    notes += filter(None, map(judge.surplus, sound_trials))
    findings += at_edges
    wrong |= {item.parameter for item in at_edges}
    left_out = [
        judge.left_out(item, answer["native"])
        for item, answer in replies.without
        if "native" in answer and item.parameter.name not in wrong
    ]
    of_samplers = judge.differs(of_part) if part == "sampling" else ()
    return _Part(
        part=part,
        function=function,
        settings={item.parameter.name: item.source.name for item in of_part},
        findings=(*findings, *_of_arguments(judge, cast(Part, part), function.of(part), findings)),
        left_out=tuple(filter(None, left_out)),
        differs=(*of_samplers, *filter(None, map(judge.other_meaning, trials))),
        notes=tuple(notes),
    )


def _arrivals(judge: Judge, trials: list[Trial]) -> list[Arrival]:
    """What is wrong with the settings at their first two values, each once."""
    arrivals = [item for trial in trials for item in judge.arrivals(trial)]
    tied = {item.parameter for item in arrivals if item.kind == "tied"}
    # A setting whose argument follows another one is tied, and counts once.
    arrivals = [item for item in arrivals if item.kind != "dropped" or item.parameter not in tied]
    return list({(item.setting, item.kind, item.text): item for item in arrivals}.values())


def _of_arguments(judge: Judge, part: Part, answers: list[dict[str, Any]], of_settings: list[Arrival]) -> list[Arrival]:
    """What is wrong with arguments, whatever setting they follow, beside what is wrong with settings."""
    arguments = [pair for call in answers for pair in call.get("native", {}).items()]
    native = dict(arguments)
    renamed = {name for item in of_settings if item.kind == "renamed" for name in item.gets}
    unknown = [item for item in judge.unknown(part, native) if item.setting not in renamed]
    # What is dropped is said to be a constant, not that the constant is too large.
    reported = {name for item in (*of_settings, *unknown) if item.kind != "dropped" for name in item.gets}
    unlisted = judge.unlisted(arguments, reported) if part == "engine" else ()
    return [*unknown, *judge.too_large(part, native, reported), *unlisted]


def _without_namesakes(judged: list[_Part], target: EngineSpec) -> list[_Part]:
    """The parts without settings that share their name with the other part, where one function gives the other's alone.

    vLLM names an engine's and a request's seed alike: a dictionary of both parts that has SGLang's `random_seed` gives
    the engine's seed, and says nothing of a request's.
    """
    if len(judged) < 2 or judged[0].function is not judged[1].function:
        return judged
    return [_without_namesakes_of(other, part, target) for part, other in (judged, judged[::-1])]


def _without_namesakes_of(other: _Part, part: _Part, target: EngineSpec) -> _Part:
    """The part without settings that arrive as the other part's of the same name.

    A part of which nothing else arrives is not mapped by this function: then an argument of it is a wrong name.
    """
    wrong = {finding.parameter for finding in other.findings}
    # Argument of the engine -> the setting of the other part that arrives by it.
    arrived = {
        argument: other.settings[parameter.name]
        for (of_part, argument), parameter in owners(target).items()
        if of_part == other.part and parameter.name in other.settings and parameter.name not in wrong
    }
    namesakes = {
        finding.parameter
        for finding in part.findings
        if finding.kind == "renamed"
        and all(arrived.get(name) == finding.setting for name in finding.gets)
        and len(arrived) > len(finding.gets)
    }
    notes = [f"{part.settings[name]} is read as the {other.part}'s: {name.replace('_', ' ')} not checked"
             for name in sorted(namesakes)]  # fmt: skip
    return replace(
        part,
        settings={name: theirs for name, theirs in part.settings.items() if name not in namesakes},
        findings=tuple(finding for finding in part.findings if finding.parameter not in namesakes),
        notes=(*part.notes, *notes),
    )


def _other_names(judged: _Part, options: Asked) -> Iterator[str]:
    """A note on names that a function of canonical parameters looks up and that are none of them, the source engine's
    own among them."""
    function = judged.function
    if function.shape != CANONICAL:
        return
    absent = sorted({name for call in function.of(judged.part) for name in call.get("absent", ())})
    theirs = {parameter.native(options.source): parameter.name for parameter in BY_NAME.values()}
    texts = [f"{name} (here {theirs[name]})" if name in theirs else name for name in absent]
    if texts:
        yield f"{function.name} gets canonical names, and looks up what is none: {', '.join(texts)}"


def _edges(judge: Judge, replies: Replies, wrong: set[str]) -> tuple[list[Arrival], list[str]]:
    """(The first edge at which each setting that is not wrong does not arrive, edges that the mapping refuses)."""
    arrivals: dict[str, Arrival] = {}
    notes = []
    for setting, edge, answer in replies.edges:
        name = setting.parameter.name
        if name in wrong or name in arrivals:
            continue
        if "error" in answer:
            notes.append(f"{setting.source.name}={edge.native!r}, {edge.why}: the mapping raises {answer['error']}")
        elif (arrival := judge.at_edge(setting, edge, answer["native"])) is not None:
            arrivals[name] = arrival
    return list(arrivals.values()), notes


def _absent(judged: list[_Part]) -> list[str]:
    """The parts that no function of the file maps."""
    judged_parts = {item.part for item in judged}
    return [part for part in PARTS if part not in judged_parts]


def _raising(functions: list[Answers], judged: list[_Part]) -> list[Answers]:
    """Functions that map no part, and may because they raised an error."""
    used = {part.function.name for part in judged}
    return [function for function in functions if function.name not in used and any(function.raised())]


def _trials(function: Answers, replies: Replies) -> list[Trial]:
    at_edges: dict[str, list[tuple[Edge, dict[str, Any]]]] = {}
    for item, edge, answer in replies.edges:
        if "native" in answer:
            at_edges.setdefault(item.parameter.name, []).append((edge, answer["native"]))
    base = replies.base["native"]
    return [
        Trial(
            setting=item,
            base=base,
            varied=answer.get("native", base),
            error=answer.get("error", ""),
            accepted=function.takes is None or item.source.name in function.takes or item.parameter.name == "model",
            at_edges=tuple(at_edges.get(item.parameter.name, ())),
        )
        for item, answer in replies.varied
    ]


def _trials_of(part: str, function: Answers, plan: tuple[Setting, ...]) -> list[Trial]:
    """The trials of a part by a function that may not map it: none where it raises on the part's first values."""
    answers = function.of(part)
    if not answers or "native" not in answers[0]:
        return []
    return _trials(function, Replies.of(_of_part(part, plan), answers))


def _mapping_of(
    part: str, functions: list[Answers], plans: dict[str, tuple[Setting, ...]], options: Asked
) -> Answers | None:
    """The function that carries most settings of this part. In a tie, the one that has the engine in its name."""
    own = f"{options.engine}_{part}"  # a function of canonical parameters is called for the part in its name alone
    functions = [function for function in functions if function.shape != CANONICAL or function.name == own]
    rivals = _rivals(part, functions, plans)
    if not rivals:
        return None
    named = [function for function in rivals if options.engine in function.name.lower()]
    if len(rivals) > 1 and len(named) != 1:
        names = ", ".join(function.name for function in rivals)
        fix = f"--function {rivals[0].name}"
        raise BadInput(f"{options.file}: several functions map the {part} alike: {names}", fix=fix)
    return named[0] if len(rivals) > 1 else rivals[0]


def _rivals(part: str, functions: list[Answers], plans: dict[str, tuple[Setting, ...]]) -> list[Answers]:
    """The functions that carry most settings of this part; [] where none carries any."""
    functions = [function for function in functions if not _passed_on(part, function, _plan(function, plans))]
    scores = {function.name: _carried(part, function, _plan(function, plans)) for function in functions}
    best = max(scores.values(), default=(0, 0))
    return [function for function in functions if scores[function.name] == best] if best[1] else []


def _carried(part: str, function: Answers, plan: tuple[Setting, ...]) -> tuple[int, int]:
    """(number of settings whose own argument follows them, number of settings that any argument follows).

    Engines have names that are settings of both parts, as vLLM's `seed`. What follows such a setting says nothing of a
    part, unless it is an argument that only this part has.
    """
    others = [item for item in plan if item.part != part]
    shared = {item.source.name for item in others}
    elsewhere = {item.target.name for item in others if item.target is not None}
    own = carried = 0
    for trial in _trials_of(part, function, plan):
        target, followers = trial.setting.target, trial.followers
        own_name = "" if target is None else target.name
        own_follows = own_name in followers
        tells_of_part = trial.setting.source.name not in shared or (own_follows and own_name not in elsewhere)
        if followers and tells_of_part:
            carried += 1
            own += own_follows
    return own, carried


def _passed_on(part: str, function: Answers, plan: tuple[Setting, ...]) -> bool:
    """Whether a function translates names of the other part, and hands this part's on under the names that it got."""
    other_part = PARTS[0] if part == PARTS[1] else PARTS[1]
    translated, passed = _by_name(part, function, plan)
    return bool(passed and not translated and _by_name(other_part, function, plan)[0])


def _by_name(part: str, function: Answers, plan: tuple[Setting, ...]) -> tuple[int, int]:
    """Of settings that the target engine names otherwise: (number with the target's name, with the source's)."""
    translated = passed = 0
    for trial in _trials_of(part, function, plan):
        source, target = trial.setting.source, trial.setting.target
        if target is not None and target.name != source.name:
            translated += target.name in trial.followers
            passed += source.name in trial.followers
    return translated, passed


def _plan(function: Answers, plans: dict[str, tuple[Setting, ...]]) -> tuple[Setting, ...]:
    return plans[CANONICAL if function.shape == CANONICAL else "native"]


def _of_part(part: str, plan: tuple[Setting, ...]) -> tuple[Setting, ...]:
    return tuple(item for item in plan if item.part == part)


def _without(plan: tuple[Setting, ...], options: Asked) -> tuple[Setting, ...]:
    """The settings without those that are never set. Raises BadInput for an unknown name."""
    names = [item.source.name for item in plan]
    for name in options.ignored:
        if name not in names:
            raise BadInput(
                f"--ignore {name}: {options.source} has no such setting here{closest(name, names)}",
                fix=nearest(name, names),  # empty where none is near: the word is left out
                instead=name,
            )
    return tuple(item for item in plan if item.source.name not in options.ignored)


# --- the calls


def _called(options: Asked, plans: dict[str, tuple[Setting, ...]]) -> tuple[list[Answers], list[str]]:
    """The answers of every function of the file, and the packages that were replaced by stand-ins."""
    file = Path(options.file)
    check_file(options.file)
    answer = _result(options, plans)
    if answer["error"]:
        place = f"{file}:{answer['line']}" if answer["line"] else str(file)
        raise BadInput(f"{place} cannot be imported: {answer['error']}", fix=_import_fix(options, answer))
    called_names = [entry["name"] for entry in answer["functions"]]
    missing = [name for name in options.functions if name not in called_names]
    if missing:
        names = answer["names"]
        message = f"{file} has no function {missing[0]}{closest(missing[0], names)}"
        fix = nearest(missing[0], names) if names else _ADVICE
        raise BadInput(message, fix=fix, instead=missing[0])
    functions = [
        Answers(
            entry["name"], entry["shape"], entry["answers"], entry["takes"], entry["error"], tuple(entry["missing"])
        )
        for entry in answer["functions"]
    ]
    return functions, answer["stand_ins"]


def _result(options: Asked, plans: dict[str, tuple[Setting, ...]]) -> dict[str, Any]:
    """What `call_program` wrote about the file. Raises BadInput where it wrote nothing."""
    file = Path(options.file)
    with tempfile.TemporaryDirectory(prefix="harness-mapping-") as folder:
        request, result = Path(folder) / "request.json", Path(folder) / "result.json"
        request.write_text(json.dumps(_request(options, plans)), encoding="utf-8")
        try:
            done = bounded.run(
                [options.python or sys.executable, call_program.__file__, str(request), str(result)], options.timeout_s
            )
        except OSError as error:
            message = f"--python {options.python}: {error.strerror}"
            raise BadInput(message, fix=_another_python(options), instead="--python") from error
        if done.code is None:
            fix = "--timeout 600   # if it waits for nothing; better, import less in that file"
            raise BadInput(f"{file} did not answer within {options.timeout_s:g} s", fix=fix)
        if not result.exists() and options.python and import_failure(options.python, "import sys", {}):
            message = f"--python {options.python} is no interpreter of Python"
            raise BadInput(message, fix=_another_python(options), instead="--python")
        if not result.exists():
            last = "".join(f": {line}" for line in done.err.strip().splitlines()[-1:])
            fix = _line(options, file, "-X", "faulthandler")
            raise BadInput(f"{file} ends the process that executes it, with {exit_text(done.code)}{last}", fix=fix)
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return answer


def check_file(name: str) -> None:
    """Raise BadInput if it is not a Python file."""
    file = Path(name)
    if file.is_dir():
        raise BadInput(
            f"{file} is a directory, and a mapping is a file", fix=f"ls {shlex.quote(str(file))}   # and name the file"
        )
    if not file.is_file():
        message, fix = f"{file}: there is no such file", f"ls {shlex.quote(str(nearest_folder(file)))}"
    elif file.suffix not in importlib.machinery.all_suffixes():
        message = f"{file} is no file of Python: its name does not end in .py"
        copy = shlex.join(["cp", "--", str(file), str(free_path(file.with_suffix(".py")))])
        fix = f"{copy}   # then name the copy" if _is_python(file) else "harness help mapping   # what a mapping is"
        raise BadInput(message, fix=fix)
    else:
        return
    if near := similar_path(file, file.parent.glob("*.py")):
        raise BadInput(f"{message}; did you mean {near.name}?", fix=shlex.quote(str(near)), instead=name)
    raise BadInput(message, fix=fix)


def _is_python(file: Path) -> bool:
    """Whether a file of another name is the source of a module that defines something."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    return any(isinstance(node, (ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Assign)) for node in tree.body)


def _request(options: Asked, plans: dict[str, tuple[Setting, ...]]) -> dict[str, Any]:
    native, canonical = ({part: _of_part(part, plan) for part in PARTS} for plan in plans.values())
    requests = {part: asked_for(of_part) for part, of_part in native.items()}
    more = dict(options.more)
    for part, other_part in (PARTS, PARTS[::-1]):
        requests[f"{part}{_WITH_THE_REST}"] = [requests[other_part][0] | each for each in requests[part]]
    natives = {part: [more | each for each in part_requests] for part, part_requests in requests.items()}
    for part in PARTS:
        # With the rest: a function of both parts may fail without it.
        first = requests[f"{part}{_WITH_THE_REST}"][0]
        for name in more:
            other_words = {key: value for key, value in more.items() if key != name}
            natives[f"{part}{_LEFT_OUT}{name}"] = [other_words | first]
    names = {item.source.name for plan in plans.values() for item in plan}
    named = next((item.source.name for item in native["engine"] if item.parameter.name == "model"), "")
    return {
        "file": options.file,
        "real": bool(options.python),
        "stand_ins": sorted(_packages()),
        "functions": list(options.functions),
        "settings": sorted(names | set(more)),
        "defaults": {item.source.name: item.source.default for item in plans["native"]},
        "canonical_names": [f"{options.engine}_{part}" for part in PARTS],
        "model": {"name": named, "value": MODEL},
        "native": natives,
        "more": sorted(set(more) - names),
        "canonical": {
            part: [
                {"asked": {"device": "cuda"} | each, "ours": harness_gives(of_part, each)}
                for each in asked_for(of_part)
            ]
            for part, of_part in canonical.items()
        },
    }


def _packages() -> set[str]:
    """Of engines and of frameworks, and what they stand on: what the file of a framework may import."""
    engines = {name for spec in registry.specs().values() for name in (spec.name, *spec.distributions)}
    triggers = {name for framework in frameworks().values() for name in framework.adapter.triggers}
    return {"torch", "ray", "transformers", "accelerate", "deepspeed", *engines, *triggers}


# --- what is said of a file that maps nothing


def _import_fix(options: Asked, answer: dict[str, Any]) -> str:
    if answer["module"]:
        return _another_python(options, answer["module"]) or (
            f"harness env list   # none of these has {answer['module']}: --python takes the interpreter that has it"
        )
    if answer["ended"]:  # typed alone, it would end as silently
        return f"sed -n {answer['line']}p {shlex.quote(options.file)}   # ends the process: a mapping only defines"
    return f"{_line(options, Path(options.file))}   # shows where; it must be importable"


def _another_python(options: Asked, module: str = "") -> str:
    """The option with the interpreter of an environment, of the engine's first, that has the module; empty without
    one."""
    environments = sorted(all_environments(), key=lambda each: each.engine != options.engine)
    usable = (
        each.python
        for each in environments
        if os.access(each.python, os.X_OK) and not import_failure(each.python, f"import {module or 'sys'}", each.env)
    )
    python = next(usable, "")
    return f"--python {shlex.quote(python)}" if python else ""


def _line(options: Asked, file: Path, *words: str) -> str:
    return shlex.join([options.python or sys.executable, *words, str(file)])


def _stand_ins(names: list[str]) -> str:
    return f"{', '.join(names)}: not imported, stand-ins took their places; --python PATH imports them"


def _raised(
    raising: list[Answers],
    absent: list[str],
    judged: list[_Part],
    plans: dict[str, tuple[Setting, ...]],
    options: Asked,
) -> BadInput:
    """The error for functions that raised, where a part is mapped by no other function."""
    first, used = raising[0], dict.fromkeys(part.function.name for part in judged)
    line, error = first.raised()
    missing = re.fullmatch(r"KeyError: '([\w.-]+)'", error)
    names = {item.source.name for item in _plan(first, plans)} | {name for name, _ in options.more}
    hint = closest(missing[1], sorted(names)) if missing else ""
    troubles = [f"{first.trouble(options.file)}{hint}", *(other.trouble(options.file) for other in raising[1:])]
    unchecked = [f"{' and '.join(absent)} not checked"]
    unchecked += [f"--function {name} checks it alone" for name in used]
    if missing and not hint and first.shape != CANONICAL:  # a setting that the function reads, and that can be given
        fix = f"--with {missing[1]}=VALUE"
    else:
        fix = f"sed -n {line}p {shlex.quote(options.file)}   # the line to correct"
    mistakes = [BadInput("; ".join(troubles + unchecked), fix=fix)]
    mistakes += [
        BadInput(f"{options.file}: {finding.setting} is {finding.kind}: {finding.text}", fix=fix)
        for finding in _distinct(judged)
        if finding.kind != "dropped"
    ]
    return mistakes[0] if len(mistakes) == 1 else Mistakes(mistakes)


def _not_deterministic(function: Answers, varying: dict[str, list[Any]], options: Asked) -> BadInput:
    """The error for a function that answers the same settings differently: nothing tells what follows a setting."""
    name, values = next(iter(varying.items()))
    first = values[0]
    other = next(value for value in values if not same(value, first))
    also = f", and {', '.join([*varying][1:])}" if len(varying) > 1 else ""
    return BadInput(
        f"{options.file}: {function.name} is not deterministic: for the same settings it gives {name}={first!r}, then "
        f"{name}={other!r}{also}; so nothing was checked",
        fix=f"grep -nF {shlex.quote(name)} {shlex.quote(options.file)}   # give it a value that the settings decide",
    )


def _nothing_maps(
    functions: list[Answers], options: Asked, source: EngineSpec, target: EngineSpec, stand_ins: list[str]
) -> BadInput:
    troubles = "; ".join(function.trouble(options.file) for function in functions)
    way = f"settings of {source.title} to arguments of {target.title}"
    notes = [_stand_ins(stand_ins)] if stand_ins else []
    methods = ", ".join(_methods(Path(options.file)))
    if methods and not functions:
        troubles = f"a method is not called, such as {methods}: copy what it returns into a function"
    text = f"{options.file}: no function maps {way}" + (f" ({troubles})" if troubles else "")
    missing = [name for function in functions for name in function.missing]
    return BadInput("; ".join([text, *notes]), fix=_with(dict.fromkeys(missing)) or _ADVICE)


def _methods(file: Path) -> Iterator[str]:
    """The methods of the file's classes that return something, as CLASS.NAME; without those of Python itself."""
    classes = (node for node in ast.parse(limits.read_text(file)).body if isinstance(node, ast.ClassDef))
    for owner in classes:
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            returns = any(isinstance(node, ast.Return) and node.value for node in ast.walk(method))
            if returns and not method.name.startswith("__"):
                yield f"{owner.name}.{method.name}"
