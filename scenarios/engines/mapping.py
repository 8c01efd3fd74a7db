"""From the requested parameters to an engine's arguments: our mapping, ours with edits, or a user's own.

The way is: requested (canonical) -> native arguments by `parameters` -> edited, or replaced by a user's file -> the
engine. A file is Python and defines any of `vllm_engine, vllm_sampling, sglang_engine, sglang_sampling, hf_engine,
hf_sampling`, each `(asked, ours) -> native arguments`. It runs in the engine's own process. Where it is unfaithful,
the comparison finds out; it is not refused (docs/reference/parameters.md).
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes import limits
from scenarios.engines import native_arguments, registry
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.canonical_request import canonical_engine
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.native import same, type_text
from scenarios.settings import Mode, Sampling

PARTS = ("engine", "sampling")
NEAR = 0.6  # difflib's default for similar names
NAMES = tuple(f"{backend}_{part}" for backend in registry.names() for part in PARTS)


@dataclass(frozen=True)
class Mapped:
    """Sampling parameters for one engine.

    `native`: what its own sampler is called with. `canonical`: the same in canonical terms, from which a coupled draw
    is made. `end_ids`: ids that end a sample under them.
    """

    native: dict[str, Any]
    canonical: Sampling
    end_ids: frozenset[int]


@dataclass(frozen=True)
class ParameterMap:
    """A mapping from canonical to native parameters.

    `edits`: {"engine" | "sampling": {native name: value, or None to leave it out}}. `file`, `source`: a user's own
    mapping: its path and its text. `restored`: canonical engine parameters that reach the engine as our own mapping
    passes them, whatever the rest does.
    """

    edits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    file: str = ""
    source: str = ""
    restored: tuple[str, ...] = ()

    @staticmethod
    def of(spec: Mapping[str, Any] | None) -> ParameterMap:
        """Return the mapping of plain data: {} or None (ours), {"edits": ...}, {"file": path, "source": text}.

        A file may also have "uncalled", functions that are none of this mapping: only the judge reads them. Raises
        ParameterRefused for anything else.
        """
        spec = spec or {}
        unknown = set(spec) - {"edits", "file", "source", "uncalled"} or set(spec.get("edits", {})) - set(PARTS)
        if unknown:
            raise ParameterRefused(
                f"a mapping is edits of engine and sampling, or a file, not {', '.join(unknown)}",
                fix="--mapping FILE.py",
            )
        file, source = str(spec.get("file", "")), str(spec.get("source", ""))
        if file and not source:
            try:
                source = limits.read_text(file)
            except OSError as error:
                raise ParameterRefused(
                    f"the mapping {file} cannot be read: {error.strerror}",
                    fix=f"ls -ld {shlex.quote(file)}   # a mapping is a file of Python that you may read",
                ) from error
        return ParameterMap(spec.get("edits", {}), file, source)

    def ours(self, backend: str, part: str) -> bool:
        """Whether this part of the mapping is our own, which either translates faithfully or refuses."""
        return not self.edits.get(part) and self._function(backend, part) is None

    def name(self, backend: str, part: str) -> str:
        if self._function(backend, part) is not None:
            return self.file or "a user's mapping"
        return "edited" if self.edits.get(part) else "ours"

    def apply(self, backend: str, part: str, requested: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return the native arguments for what was `requested`. `ours`: those of our own mapping.

        Raises ParameterRefused for a user's mapping that fails.
        """
        function = self._function(backend, part)
        native = dict(ours) if function is None else self._by_user(function, backend, part, requested, ours)
        for key, value in self.edits.get(part, {}).items():
            if value is None and key not in native:
                raise ParameterRefused(
                    f"an edit leaves out {key!r}, which {backend} is not given: {', '.join(native)}",
                    fix=f"leave the edit of {key} out",
                )
            native[key] = value
        restored = self.restored if part == "engine" else ()
        for name in restored:
            key = native_arguments.table("engine", backend)[name].name
            native[key] = ours.get(key)
        return {key: value for key, value in native.items() if value is not None}

    def _by_user(
        self,
        function: Callable[..., Any],
        backend: str,
        part: str,
        requested: Mapping[str, Any],
        ours: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what the user's function makes of what was requested. Raises ParameterRefused where it fails."""
        where, fix = f"{self.file}: {backend}_{part}", self.check(backend)
        try:  # it gets copies, so that it cannot change what others read
            native = function(copy.deepcopy(dict(requested)), copy.deepcopy(dict(ours)))
        except KeyError as error:
            text = f"{where}{self._line(error)} {_absent(error, requested, ours)}"
            raise ParameterRefused(text, fix=fix) from error
        except (Exception, SystemExit) as error:  # a user's code may raise anything; the user needs its text
            text = f"{where}{self._line(error)} raised {type(error).__name__}: {error}"
            raise ParameterRefused(text, fix=fix) from error
        if not isinstance(native, dict) or not all(isinstance(key, str) for key in native):
            raise ParameterRefused(f"{where} returned {type(native).__name__}, not a dict of native arguments", fix=fix)
        if other_types := "; ".join(_other_types(backend, part, native, ours)):
            raise ParameterRefused(f"{where} gives {other_types}", fix=fix)
        return native

    def moves(
        self,
        backend: str,
        part: str,
        requested: Mapping[str, Any],
        ours: Callable[[Any], Mapping[str, Any]],
        machine: Callable[[Any], Mapping[str, Any]] = lambda requested: {},
    ) -> dict[str, list[str]]:
        """Return canonical parameter -> native arguments that change when only this parameter is requested
        differently.

        A parameter that changes nothing is not passed on, whatever its value is now. One that changes another
        parameter's argument is tied to it.
        """
        base = {**machine(requested), **self.apply(backend, part, requested, ours(requested))}
        moved = {}
        # One parameter at a time is asked otherwise. What changes in the arguments then follows that parameter alone.
        for name in native_arguments.table(part, backend):
            if name not in requested:
                continue
            varied = {**requested, name: BY_NAME[name].variant(requested[name])}
            native = {**machine(varied), **self.apply(backend, part, varied, ours(varied))}
            moved[name] = sorted(key for key in {*base, *native} if not same(base.get(key), native.get(key)))
        return moved

    def _line(self, error: BaseException) -> str:
        """Return the line in the user's file that raised; empty where the source has no file."""
        steps = traceback.extract_tb(error.__traceback__)
        lines = [step.lineno for step in steps if step.filename == (self.file or "<mapping>")]
        return f", line {lines[-1]}," if lines else ""

    def check(self, backend: str) -> str:
        """The command that calls the file's functions without a run."""
        return (
            f"harness mapping {shlex.quote(self.file)} --engine {backend}   # checks the file in seconds, without a run"
        )

    def _function(self, backend: str, part: str) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None:
        return self._namespace.get(f"{backend}_{part}")

    @property
    def _namespace(self) -> dict[str, Any]:
        if not self.source:
            return {}
        if self.source not in _EXECUTED:
            namespace: dict[str, Any] = {"__name__": "parameter_mapping", "__file__": self.file}
            try:
                exec(compile(self.source, self.file or "<mapping>", "exec"), namespace)  # the user's own file
            except (Exception, SystemExit) as error:  # it may raise anything; the user needs its text
                raise ParameterRefused(
                    f"the mapping {self.file}{self._line(error)} raised {type(error).__name__}: {error}",
                    fix=f"python {shlex.quote(self.file)}   # shows its traceback, if it does not end by itself",
                ) from error
            _EXECUTED[self.source] = namespace
        return _EXECUTED[self.source]


def _other_types(backend: str, part: str, native: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence about each argument with a value of a type that the engine does not take: not that of `ours`."""
    title = registry.get(backend).title
    for argument in native_arguments.table(part, backend).values():
        example = ours.get(argument.name)
        if example is not None and (type_name := argument.another_type(native, example)):
            yield (f"{argument.name}={native[argument.name]!r}, {type_name} where {title} takes {type_text(example)}")


def _absent(error: KeyError, requested: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return what a mapping asked for that does not exist, with what does."""
    name = str(error.args[0]) if error.args else ""
    near = difflib.get_close_matches(name, [*requested, *ours], n=2, cutoff=NEAR)
    meant = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return f"asks for {name!r}, which is not there{meant} (asked: {', '.join(requested)}; ours: {', '.join(ours)})"


_EXECUTED: dict[str, dict[str, Any]] = {}  # a file runs once per process


def map_engine(
    mapping: ParameterMap,
    backend: str,
    requested: dict[str, Any],
    ours: Callable[[Any], dict[str, Any]],
    machine: Callable[[Any], dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the arguments with which an engine is started, what its `EngineInfo` says about the mapping).

    `requested`: canonical parameters, as `canonical_request.engine_asked` gives them. `ours`: our own mapping of them.

    `machine`: arguments that the harness needs for the request; the mapping's own values take precedence.
    """
    arguments = {**machine(requested), **mapping.apply(backend, "engine", requested, ours(requested))}
    described = {
        "canonical": canonical_engine(requested),
        "given": native_arguments.engine_given(backend, arguments),
        "mapping": mapping.name(backend, "engine"),
        "moves": {} if mapping.ours(backend, "engine") else mapping.moves(backend, "engine", requested, ours, machine),
    }
    return arguments, described


def map_sampling(
    mapping: ParameterMap,
    backend: str,
    sampling: Sampling,
    *,
    defaults: Mapping[str, Any],
    model_ends: Iterable[int],
) -> Mapped:
    """Return the sampling parameters with which one engine draws.

    `defaults`: native ones that the engine fills in by itself. `model_ends`: ids that end a sample by the model's own
    files.
    """
    native = {
        **defaults,
        **mapping.apply(
            backend, "sampling", dataclasses.asdict(sampling), native_arguments.sampling_arguments(backend, sampling)
        ),
    }
    canonical = native_arguments.as_sampling(native_arguments.sampling_given(backend, native))
    ends = {*canonical.stop_token_ids, *(() if canonical.ignore_eos else model_ends)}
    return Mapped(native, canonical, frozenset(ends))


def sampling_event(
    mapping: ParameterMap, backend: str, sampling: Sampling, mapped: Mapped, mode: Mode
) -> dict[str, Any]:
    """Return the `sampling` event of a recording."""
    requested = dataclasses.asdict(sampling)
    follows = {}
    if not mapping.ours(backend, "sampling"):
        follows = mapping.moves(
            backend,
            "sampling",
            requested,
            lambda varied: native_arguments.sampling_arguments(backend, native_arguments.as_sampling(varied)),
        )
    canonical = dataclasses.asdict(mapped.canonical)
    return {
        "canonical": requested,
        "native": mapped.native,
        "given": canonical | {"end_ids": sorted(mapped.end_ids)},
        "unlike": native_arguments.unlike(backend, canonical) if mode == "native" else {},
        "mode": mode,
        "mapping": mapping.name(backend, "sampling"),
        "moves": follows,
    }
