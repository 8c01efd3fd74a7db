"""Resolves a scenario from TOML and the command line into frozen settings. Every key is checked before anything
starts."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import shlex
import tomllib
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scenarios
from harness import model_shape, pydantic_errors
from harness.amended_command import COMMENT
from harness.errors import BadInput, HarnessError, mistakes_of, nearest, refuse
from harness.other_paths import free_path
from harness.similar_names import similar
from probes import limits
from scenarios.engines import canonical_request, registry
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.settings import Sampling, Scenario

if TYPE_CHECKING:
    import pydantic


def catalog() -> list[str]:
    """Names of the scenarios that come with the harness."""
    return sorted(path.stem for path in catalog_folder().glob("*.toml"))


class NeedsMapping(BadInput):
    """An argument of `engine` was given, as `value` for its `name`, that no setting of a scenario is.

    Its fix writes a mapping, which `harness.parity.runs.own_arguments` gives to the sides that run the engine.
    """

    def __init__(self, message: str, *, instead: str, engine: str, name: str, value: Any) -> None:
        super().__init__(message, instead=instead)
        self.engine, self.name, self.value = engine, name, value
        self.fix = self.mapped(["--mapping"])

    def mapped(self, options: Sequence[str]) -> str:
        """Return the fix that writes a mapping with the argument and gives it to the sides of these options."""
        function = f"def {self.engine}_engine(asked, ours): return {{**ours, {self.name!r}: {self.value!r}}}"
        file = shlex.quote(os.path.join(".", free_path(Path("mapping.py"))))
        return f"printf %s {shlex.quote(function)} > {file} && " + " ".join(f"{option} {file}" for option in options)

    def named(self, name: str) -> str:
        """Return the fix that names another argument of the engine."""
        return _set(f"engine.{self.engine}.{name}", self.value)


def load(scenario: str, overrides: Iterable[str] = (), **top_level: Any) -> Scenario:
    """The scenario named `scenario` (from the catalog, or a TOML file), with `section.key=value` overrides applied in
    order.

    `top_level` replaces fields of Scenario itself that are not None. Raises BadInput for anything unknown or of the
    wrong type.
    """
    data = _read(scenario)
    _check_keys(data, Scenario, scenario, "", in_file=True)
    mistakes = _applied(data, overrides)
    replaced = {key: value for key, value in top_level.items() if value is not None}
    data |= replaced
    try:
        return _validated(data, scenario, mistakes)
    except BadInput as error:
        for mistake in mistakes_of(error):
            key, _, value = (mistake.fix or "").removeprefix("--set ").partition("=")
            if key in replaced:  # an option set it, so a --set beside it would change nothing
                mistake.fix = {"steps": f"--steps {value}", "seed": f"--seed {value}"}.get(key, mistake.fix)
        raise


def changed(scenario: Scenario, overrides: Iterable[str]) -> Scenario:
    """`scenario` with overrides, which make the candidate of a comparison differ on purpose.

    Raises BadInput as `load` does; its fix has the form `--set ...`.
    """
    data = scenario.to_json()
    return _validated(data, "candidate", _applied(data, overrides))


def validate(data: dict[str, Any], *, where: str) -> Scenario:
    """Check every key and type. Raises BadInput that names each wrong key and the nearest known one."""
    return _validated(copy.deepcopy(data), where, [])


def _applied(data: dict[str, Any], overrides: Iterable[str]) -> list[HarnessError]:
    """Apply the overrides in order. Returns the errors of those that are no settings."""
    mistakes: list[HarnessError] = []
    for override in overrides:
        try:
            _apply(data, override)
        except BadInput as error:
            mistakes.append(error)
    return mistakes


def _validated(data: dict[str, Any], where: str, mistakes: list[HarnessError]) -> Scenario:
    """Check `data`, which is changed: each mistake is mended in it as its fix says, so that the next one is found, also
    one of a fix. Raises all, besides `mistakes`; where one fix after the other sets the same key, the first and the
    last.
    """
    while True:
        try:
            scenario = _checked(data, where)
        except BadInput as error:
            of_fixes = [mistake for mistake in mistakes if _settings(mistake) == _settings(error) != []][1:]
            mistakes[:] = [mistake for mistake in mistakes if mistake not in of_fixes] + [error]
            if len(mistakes) < MOST_MISTAKES and _mended(data, error):
                continue
            refuse(mistakes)
            raise
        refuse(mistakes)
        return scenario


def _mended(data: dict[str, Any], error: BadInput) -> bool:
    """Change `data` as the error's fix says: a wrong key is taken out, and settings are set. Whether it changed."""
    before = copy.deepcopy(data)
    _taken_out(data, error.instead.split("."))
    words = shlex.split((error.fix or "").partition(COMMENT)[0])
    for option, setting in itertools.pairwise(words):
        if option == "--set" and "KEY" not in setting:
            _apply(data, setting)
    return data != before


def _taken_out(data: dict[str, Any], names: list[str]) -> None:
    """Remove a key, and its section where nothing else is in it."""
    name, *inner = names
    section = data.get(name)
    if inner and isinstance(section, dict):
        _taken_out(section, inner)
    if not inner or section == {}:
        data.pop(name, None)


def _settings(error: HarnessError) -> list[str]:
    """The keys that the error's fix sets."""
    return re.findall(r"--set '?([\w.]+)=", error.fix or "")


def _checked(data: dict[str, Any], where: str) -> Scenario:
    """Check every key and type. Raises BadInput for the first that is wrong."""
    import pydantic

    _check_keys(data, Scenario, where, "")
    try:
        scenario = _adapter().validate_python(data)
    except pydantic.ValidationError as error:
        raise BadInput(pydantic_errors.sentence(error, where), fix=_restored(pydantic_errors.key(error))) from error
    _check_numbers(data, Scenario, where, "")
    _check_ranges(scenario, where)
    return scenario


@functools.cache
def _adapter() -> pydantic.TypeAdapter[Scenario]:
    """Making one takes 10 ms, and a matrix checks each of its cells."""
    import pydantic

    return pydantic.TypeAdapter(Scenario)


def _read(scenario: str) -> dict[str, Any]:
    path = Path(scenario)
    if path.suffix != ".toml":
        path = catalog_folder() / f"{scenario}.toml"
        if not path.exists():
            near = nearest(scenario, catalog())
            hint = f"; did you mean {near}?" if near else ";"
            known = ", ".join(catalog())
            raise BadInput(
                f"there is no scenario {scenario!r}{hint} known: {known}, or the path of a .toml file",
                fix=near or _of_the_catalog(),
                instead=scenario,
            )
    try:
        return tomllib.loads(limits.read_file(path).decode())
    except FileNotFoundError as error:
        message = f"the scenario file {path} does not exist"
        raise BadInput(message, fix=_of_the_catalog(), instead=scenario) from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"the scenario file {path} cannot be read: {why}"
        raise BadInput(message, fix=_of_the_catalog(), instead=scenario) from error
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits, or too deep nesting
        raise BadInput(f"{path} is not TOML: {error}", fix=f"correct {path}: KEY = VALUE, below [SECTION]") from error


def _of_the_catalog() -> str:
    first, *others = catalog()
    return f"{first}   # or another of the catalog: {', '.join(others)}"


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise BadInput(
            f"{override!r} is not section.key=value",
            fix=EXAMPLE if equals else _example(key.strip()),
            instead=override,
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is read as a string
    target, default = data, Scenario().to_json()
    *sections, last = key.strip().split(".")
    for section in sections:
        default = default.get(section, {})
        target = target.setdefault(section, {}) if isinstance(default, dict) else default
        if not isinstance(target, dict):
            listed = ", ".join(name for name, value in Scenario().to_json().items() if isinstance(value, dict))
            raise BadInput(f"{override!r}: {section!r} is no section; sections: {listed}", fix="", instead=override)
    target[last] = value


def _check_keys(data: dict[str, Any], kind: Any, where: str, prefix: str, *, in_file: bool = False) -> None:
    """Refuse an unknown key. `in_file`: the keys are those of the file `where`, in which a wrong one stays until it is
    corrected there."""
    hints = typing.get_type_hints(kind)
    for key, value in data.items():
        if key not in hints:
            if not in_file and (error := _of_an_engine(where, f"{prefix}{key}", value)):
                raise error
            engine_key, inner_value = _meant_of_an_engine(f"{prefix}{key}", value)
            near = engine_key or _meant(key, hints, prefix)
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(hints)}"
            fix = _moved(near, value) if near else _another(prefix or "SECTION.")
            if engine_key:
                fix = _set(engine_key, inner_value)
            if in_file:
                fix = _corrected(where, f"{prefix}{key}", near, value)
            wrong_key = "" if in_file else f"{prefix}{key}"
            raise BadInput(f"{where}: unknown key {prefix}{key}; {hint}", fix=fix, instead=wrong_key)
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                message = f"{where}: {prefix}{key} is a section, not a value"
                if in_file:
                    raise BadInput(message, fix=f"[{prefix}{key}]   # in {where}, with its keys below")
                raise BadInput(message, fix=_another(f"{prefix}{key}."), instead=f"{prefix}{key}")
            _check_keys(value, hints[key], where, f"{prefix}{key}.", in_file=in_file)


def _of_an_engine(where: str, key: str, value: Any) -> BadInput | None:
    """The error for a key that names an engine's own argument, as `engine_args.vllm.foo`: the setting of that meaning
    or, without one, the mapping that gives the argument. None for any other key."""
    while isinstance(value, dict) and len(value) == 1:
        [(inner, value)] = value.items()
        key = f"{key}.{inner}"
    *sections, name = key.split(".")
    named = [engine for engine in registry.names() if engine in sections]
    # Without a section the key is one of the scenario's own that is misspelled, such as `seeds`, and no engine's.
    engines = named or (registry.names() if sections else ())
    for engine in engines:
        for parameter in BY_NAME.values():
            argument = parameter.argument(engine)
            if argument is None or argument.name != name or not parameter.requested:
                continue
            if not named and name == parameter.name:  # the canonical name itself, in another section
                continue
            canonical = argument.read(value, {name: value})
            setting = f"{parameter.part}.{parameter.name}"
            fix = _set(setting, canonical)
            message = f"{where}: {key} is {registry.get(engine).title}'s own {name}, here {setting}"
            return BadInput(message, fix=fix, instead=key)
    if not named:
        return None
    title = registry.get(named[0]).title
    message = f"{where}: {key}: no setting of a scenario is {title}'s own {name}; a mapping gives it"
    return NeedsMapping(message, instead=key, engine=named[0], name=name, value=value)


def _corrected(file: str, key: str, near: str, value: Any) -> str:
    """The fix for a wrong key in a file: the line that replaces it, or its removal."""
    section, _, name = near.rpartition(".")
    if not near:
        return f"remove {key} from {file}"
    text = json.dumps(value) if isinstance(value, str | int | float) else "VALUE"
    return f"{name} = {text}   # in {file}{f', below [{section}]' if section else ''}, in place of {key}"


def _another(section: str) -> str:
    return f"--set {section}KEY=VALUE   # with one of these keys"


def _meant_of_an_engine(key: str, value: Any) -> tuple[str, Any]:
    """The key of an engine's own argument that a misspelled one probably means, engine.vllm.X of engine.vlm.X, and its
    value; an empty key if it is none."""
    section, _, name = key.rpartition(".")
    near = nearest(name, registry.names()) if section and isinstance(value, dict) and len(value) == 1 else ""
    if not near:
        return "", value
    [(argument, inner_value)] = value.items()
    return f"{section}.{near}.{argument}", inner_value


def _meant(key: str, hints: dict[str, Any], prefix: str) -> str:
    """The setting that an unknown key probably means: one of its section, or one of another section that was left
    out."""
    sections = {name: typing.get_type_hints(hint) for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    exact = [f"{section}.{key}" for section, keys in sections.items() if key in keys]
    if len(exact) == 1:
        return exact[0]
    near = nearest(key, hints)
    return f"{prefix}{near}" if near else ""


def _moved(key: str, value: Any) -> str:
    """The fix that gives a setting this value, or its default if the value has another type."""
    default = _default(key)
    if isinstance(value, dict) and dataclasses.is_dataclass(default):  # a section, misspelled
        known = [name for name in value if hasattr(default, name)]
        return _moved(f"{key}.{known[0]}", value[known[0]]) if known else _another(f"{key}.")
    same_type = type(value) is type(default) or (type(value) is int and type(default) is float)
    if not same_type or not isinstance(value, str | int | float):
        return _restored(key)
    return _set(key, value)


def _set(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"--set {shlex.quote(f'{key}={text}')}"


# key -> (lowest, highest) allowed value; None: no limit
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "steps": (1, None),
    "seed": (0, 2**62),
    "prompts.max_tokens": (1, None),
    "rollout.prompts_per_step": (1, None),
    "rollout.samples_per_prompt": (1, None),
    **{
        f"{parameter.part}.{parameter.name}": (parameter.low, parameter.high)
        for parameter in BY_NAME.values()
        if parameter.low is not None
    },
    "engine.engines": (1, None),
    "engine.sleep_level": (0, 2),
    "ppo.world_size": (1, None),
    "ppo.epochs": (1, None),
    "ppo.train_batch_size": (1, None),
    "ppo.micro_batch_size": (1, None),
    "ppo.kl_coef": (0, None),
    "ppo.entropy_coef": (0, None),
    "ppo.value_coef": (0, None),
    "ppo.gamma": (0, 1),
    "ppo.gae_lambda": (0, 1),
    "ppo.checkpoint_every": (0, None),
    "native.samples": (0, None),
    "native.further": (1, None),
    "native.draws": (1, 20),
    "native.alpha": (1e-9, 0.5),
    "native.margin": (0.01, 2.0),
    "lifted.samples": (0, None),
    "lifted.max_tokens": (1, None),
}
_POSITIVE = (
    *(f"{parameter.part}.{parameter.name}" for parameter in BY_NAME.values() if parameter.positive),
    "ppo.actor_lr",
    "ppo.critic_lr",
    "ppo.max_grad_norm",
    "ppo.clip",
    "ppo.value_clip",
)
_NAME = re.compile(r"[A-Za-z0-9._-]+")  # name of a scenario, which becomes part of a directory's name


EXAMPLE = "--set sampling.temperature=0.9"
MOST_MISTAKES = 8  # a choice: more than one line of advice mends


def _restored(key: str) -> str:
    """The fix that gives a setting its default."""
    value = _default(key)
    return f"--set {key}={json.dumps(value)}" if isinstance(value, str | int | float | tuple) else EXAMPLE


def _example(key: str) -> str:
    """The fix that gives a setting, whose section may be missing, another value than its default."""
    section, _, name = key.rpartition(".")
    if _default(key) is None:  # there is no such setting: perhaps its section is missing, or its name is misspelled
        names = [parameter.name for parameter in BY_NAME.values() if section in ("", parameter.part)]
        if near := similar(name, names):
            key = f"{BY_NAME[near[0]].part}.{near[0]}"
    default, parameter = _default(key), BY_NAME.get(key.rpartition(".")[2])
    if default is None or parameter is None or key != f"{parameter.part}.{parameter.name}":
        return _restored(key)
    value, data = json.dumps(parameter.variant(default)), Scenario().to_json()
    try:
        _apply(data, f"{key}={value}")
        _checked(data, "")
    except BadInput:  # it fits with other settings only
        return _restored(key)
    return f"--set {shlex.quote(f'{key}={value}')}"


def _default(key: str) -> Any:
    """The default of a setting; None if there is no such setting."""
    value: Any = Scenario()
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _check_numbers(data: dict[str, Any], kind: Any, where: str, prefix: str) -> None:
    """Refuse true and false as numbers: pydantic reads them as 1 and 0."""
    hints = typing.get_type_hints(kind)
    for key, value in data.items():
        if isinstance(value, dict):
            _check_numbers(value, hints[key], where, f"{prefix}{key}.")
        elif isinstance(value, bool) and hints[key] in (int, float):
            raise BadInput(
                f"{where}: {prefix}{key} = {str(value).lower()} is not a number", fix=_restored(f"{prefix}{key}")
            )


def _check_ranges(scenario: Scenario, where: str) -> None:
    _check_finite(scenario, where)
    for key, (low, high) in _RANGES.items():
        value = _value(scenario, key)
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            nearest = low if low is not None and value < low else high
            raise BadInput(f"{where}: {key} = {value} must be {bounds}", fix=f"--set {key}={nearest}")
    for key in _POSITIVE:
        if _value(scenario, key) <= 0:
            raise BadInput(f"{where}: {key} = {_value(scenario, key)} must be above 0", fix=_restored(key))
    if not _NAME.fullmatch(scenario.name):
        raise BadInput(
            f"{where}: name = {scenario.name!r} may hold letters, digits, '.', '_' and '-' only",
            fix='name = "mine"   # at the top of the scenario file',
        )
    _check_sampling(scenario.sampling, where)
    try:
        canonical_request.check_room(None, scenario)
    except ParameterRefused as error:
        fix = canonical_request.with_room(None, scenario, model_shape.longest(scenario.model.path))
        raise BadInput(f"{where}: {error}", fix=fix) from error
    if scenario.train:
        _check_batches(scenario, where)


def _check_finite(scenario: Scenario, where: str) -> None:
    for section in dataclasses.fields(scenario):
        settings = getattr(scenario, section.name)
        for key, number in vars(settings).items() if dataclasses.is_dataclass(settings) else ():
            if isinstance(number, float) and not math.isfinite(number):
                raise BadInput(
                    f"{where}: {section.name}.{key} = {number} must be a finite number",
                    fix=_restored(f"{section.name}.{key}"),
                )


def _check_sampling(s: Sampling, where: str) -> None:
    if any(token < 0 for token in s.stop_token_ids):
        raise BadInput(
            f"{where}: sampling.stop_token_ids = {list(s.stop_token_ids)}: a token id is at least 0",
            fix=_restored("sampling.stop_token_ids"),
        )
    if s.top_k != -1 and s.top_k < 1:
        raise BadInput(
            f"{where}: sampling.top_k = {s.top_k}: -1 switches it off, else at least 1", fix=_restored("sampling.top_k")
        )
    if s.min_tokens > s.max_tokens:
        raise BadInput(
            f"{where}: sampling.min_tokens = {s.min_tokens} exceeds sampling.max_tokens = {s.max_tokens}",
            fix=f"--set sampling.min_tokens={s.max_tokens}",
        )


def _check_batches(scenario: Scenario, where: str) -> None:
    batch = scenario.rollout.prompts_per_step * scenario.rollout.samples_per_prompt
    ppo = scenario.ppo
    together = ppo.micro_batch_size * ppo.world_size
    fitting = [size for size in range(together, batch + 1, together) if batch % size == 0]
    nearest = min(fitting, key=lambda size: abs(size - ppo.train_batch_size), default=None)
    ranks = [n for n in range(1, ppo.world_size) if divides(scenario, n)]
    fewer = f"--set ppo.world_size={ranks[-1]}" if ranks else "--set ppo.micro_batch_size=1 --set ppo.world_size=1"
    fix = f"--set ppo.train_batch_size={nearest}" if nearest else fewer
    if batch % ppo.train_batch_size:
        raise BadInput(
            f"{where}: a step draws {batch} samples (rollout.prompts_per_step x rollout.samples_per_prompt), which is "
            f"no multiple of ppo.train_batch_size = {ppo.train_batch_size}",
            fix=fix,
        )
    if ppo.train_batch_size % together:
        raise BadInput(
            f"{where}: ppo.train_batch_size = {ppo.train_batch_size} is no multiple of "
            f"ppo.micro_batch_size x ppo.world_size = {together}",
            fix=fix,
        )


def divides(scenario: Scenario, ranks: int) -> bool:
    """Whether `ranks` ranks can share a mini-batch of the scenario in whole micro-batches."""
    return scenario.ppo.train_batch_size % (scenario.ppo.micro_batch_size * ranks) == 0


def _value(scenario: Scenario, key: str) -> Any:
    value: Any = scenario
    for part in key.split("."):
        value = getattr(value, part)
    return value


def catalog_folder() -> Path:
    """The folder of the scenarios that come with the harness."""
    root = scenarios.__file__
    assert isinstance(root, str) and isinstance(scenarios, types.ModuleType)
    return Path(root).parent / "catalog"
