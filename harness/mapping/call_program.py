"""Calls the functions of a user's file: a program of its own, `python call_program.py REQUEST RESULT`.

It uses the standard library only, and runs in a process that the harness can kill, in any Python from 3.8 on. REQUEST
and RESULT are JSON files: see `harness.mapping.file`. Packages of engines and frameworks take half a minute to
import, so they are replaced by stand-ins unless REQUEST wants the real ones. The stand-ins' classes keep the
arguments that they are called with.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import traceback
import types
from typing import Any, Callable, ClassVar, Iterator  # noqa: UP035  # as Python 3.8 subscripts them


class Settings(dict):  # type: ignore[type-arg]  # dict[str, Any] is no base class in Python 3.8
    """Settings that can be read as items of a dictionary or as attributes of an object."""

    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.__dict__ = self  # so that vars(args) has them too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name] if name in self else Settings.defaults.get(name)


class Requested(dict):  # type: ignore[type-arg]
    """Canonical parameters. `absent`: names that were looked up and are none of them."""

    def __init__(self, *parameters: Any) -> None:
        super().__init__(*parameters)
        self.absent: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default

    def __missing__(self, name: str) -> Any:
        self.absent.add(str(name))
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.absent.add(str(name))
            return False
        return True


class _StandIn(types.ModuleType):
    """A module of a package that is not imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (_Kept,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _KeptType(type):
    def __str__(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Kept,), {"__module__": str(cls)})


class _Kept(metaclass=_KeptType):
    """Keeps its keyword arguments as attributes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.__dict__.update(settings)


class _Finder:
    """Finds stand-ins."""

    packages: ClassVar[list[str]] = []
    imported: ClassVar[list[str]] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in _Finder.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # no part of a loader

    def create_module(self, spec: Any) -> types.ModuleType:
        if "." not in spec.name:
            _Finder.imported.append(spec.name)
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def plain(value: Any) -> Any:
    """Native arguments in JSON's types. A type of torch becomes its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [plain(item) for item in value]
        return sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
    return str(value).replace("torch.", "", 1) if str(value).startswith("torch.") else str(value)


def arguments(result: Any) -> dict[str, Any]:
    """The native arguments that a function returned: a dictionary, an object's attributes, or several of them."""
    if isinstance(result, (list, tuple)) and not hasattr(result, "_asdict"):
        merged: dict[str, Any] = {}
        if any(isinstance(part, str) for part in result):
            raise TypeError(f"it returned a {type(result).__name__} of words, not a dictionary of arguments")
        for part in result:
            merged.update(arguments(part))
        return merged
    if hasattr(result, "_asdict"):
        result = result._asdict()
    elif not isinstance(result, dict) and not dataclasses.is_dataclass(result) and hasattr(result, "__dict__"):
        result = vars(result)
    native = plain(result)
    if not isinstance(native, dict):
        raise TypeError(f"it returned {type(result).__name__}, not a dictionary of arguments")
    for nested in ("sampling_params", "sampling", "engine", "engine_args"):
        if isinstance(native.get(nested), dict):
            native.update(native.pop(nested))
    return {name: value for name, value in native.items() if value is not None}


def shape(name: str, function: Callable[..., Any], request: dict[str, Any]) -> tuple[str, list[str] | None]:
    """How a function is called, and the settings that it accepts by name (None: all). Raises TypeError if it cannot
    be called."""
    parameters = inspect.signature(function).parameters.values()
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    keywords = [item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    anything = any(item.kind == item.VAR_KEYWORD for item in parameters)
    if name in request["canonical_names"] and len(positional) == 2:
        return "canonical", None
    beside = [item for item in keywords if item in request["more"]]
    setting_names = [item for item in keywords if item in request["settings"] and item not in beside]
    first = positional[0].name if positional else ""  # may take all settings, or the model
    if wanted := [item for item in required(function) if item not in (first, *setting_names, *beside)]:
        raise Missing(wanted)
    if anything:  # (**settings)
        return "keywords", None
    if setting_names:  # (dtype, seed)
        return "keywords", setting_names + beside
    if first and first not in beside:  # (settings)
        return "dictionary", None
    raise TypeError("it takes neither settings by name nor a dictionary of them")


class Missing(TypeError):
    """A function wants parameters for which nothing is given. `names`: theirs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"it also takes {', '.join(names)}")
        self.names = names


def required(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters without a default."""
    return [
        item.name
        for item in inspect.signature(function).parameters.values()
        if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY) and item.default is item.empty
    ]


def call(
    function: Callable[..., Any], kind: str, takes: list[str] | None, settings: dict[str, Any], request: dict[str, Any]
) -> dict[str, Any]:
    """The native arguments for these settings. REQUEST has the model's name among them, empty where they have none, and
    a value for a function that wants one."""
    model = request["model"]
    if kind == "dictionary":  # of all settings; what is no setting may be taken by name beside it
        names = [name for name in inspect.signature(function).parameters if name in request["more"]]
        return arguments(function(Settings(settings), **{name: settings[name] for name in names if name in settings}))
    accepted = {name: value for name, value in settings.items() if takes is None or name in takes}
    parameters = inspect.signature(function).parameters.values()
    unnamed = [
        item for item in parameters
        if item.kind == item.VAR_POSITIONAL
        or (item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
            and item.default is item.empty and item.name not in accepted)
    ]  # fmt: skip
    if unnamed:  # for (pretrain, **settings) and (*args, **settings): the model comes first
        return arguments(function(accepted.pop(model["name"], model["value"]), **accepted))
    return arguments(function(**accepted))


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def answered(
    function: Callable[..., Any], kind: str, takes: list[str] | None, request: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Part -> for each of its requests the native arguments, or the error; of canonical ones also the names that were
    looked up and are none."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for part, requests in request["canonical" if kind == "canonical" else "native"].items():
        answers[part] = []
        for item in requests:
            requested = Requested(item["asked"] if kind == "canonical" else ())
            try:
                if kind == "canonical":
                    native = arguments(function(requested, dict(item["ours"])))
                else:
                    native = call(function, kind, takes, item, request)
                answers[part].append({"native": native, "absent": sorted(requested.absent)})
            except (Exception, SystemExit) as error:
                answers[part].append({"error": described(error), "line": where(error, request["file"])})
    return answers


def table(names: dict[str, str | None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that renames settings by a dictionary of names."""
    return lambda settings: {new: value for name, value in settings.items() if (new := names.get(name))}


def used_by(function: Callable[..., Any], module: types.ModuleType) -> set[str]:
    """The names of the file that a function reads, and those that the functions of the file read which it calls."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        fresh = {name for name in code.co_names if name in vars(module)} - names
        names |= fresh
        codes += [vars(module)[name].__code__ for name in fresh if inspect.isfunction(vars(module)[name])]
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names


def candidates(module: types.ModuleType, request: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, function) for each function of the file, and for each table of names that no such function uses."""
    wanted = request["functions"]
    own = [
        value for value in vars(module).values() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    public = [function for function in own if not function.__name__.startswith("_")]
    used = set() if wanted else {name for function in public for name in used_by(function, module)}
    for name, value in list(vars(module).items()):
        is_wanted = name in wanted if wanted else not name.startswith("_")
        if not is_wanted:
            continue
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            yield name, value
        elif name not in used and is_table(value, request["settings"]):
            yield name, table(value)


def is_table(value: Any, settings: list[str]) -> bool:
    """Whether a value of the file renames settings, more than one: a dictionary of names, None where there is none."""
    if not isinstance(value, dict) or len(set(value) & set(settings)) < 2:
        return False
    return all(target is None or isinstance(target, str) for target in value.values())


def leaving(leave: Callable[[int], Any]) -> Any:
    """os._exit with a traceback, which says where it was called. Children that are forked end as they do."""
    here = os.getpid()
    return lambda status: sys.exit(status) if os.getpid() == here else leave(status)


def loaded(file: str, real: bool) -> types.ModuleType:
    os._exit = leaving(os._exit)
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    sys.meta_path.insert(len(sys.meta_path) if real else 0, _Finder())
    spec = importlib.util.spec_from_file_location("users_mapping", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.dont_write_bytecode = True  # nothing is left beside the user's file
    spec.loader.exec_module(module)
    return module


def where(error: BaseException, file: str) -> int:
    """The line of the file in which it was raised; 0 where it was not."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(file)]
    return int((lines[-1] if lines else getattr(error, "lineno", 0)) or 0)


def main(request_file: str, result_file: str) -> None:
    with open(request_file, encoding="utf-8") as stream:
        request = json.load(stream)
    Settings.defaults, _Finder.packages = request["defaults"], request["stand_ins"]
    result: dict[str, Any] = {"functions": [], "names": [], "stand_ins": [], "error": "", "line": 0, "module": "",
                              "ended": False}  # fmt: skip
    try:
        module = loaded(request["file"], request["real"])
    except (Exception, SystemExit) as error:
        result["error"], result["line"] = described(error), where(error, request["file"])
        result["ended"] = isinstance(error, SystemExit)
        result["module"] = getattr(error, "name", "") if isinstance(error, ModuleNotFoundError) else ""
    else:
        result["names"] = [name for name, _ in candidates(module, {**request, "functions": []})]
        for name, function in candidates(module, request):
            entry: dict[str, Any] = {
                "name": name,
                "shape": "",
                "answers": {},
                "error": "",
                "takes": None,
                "missing": [],
            }
            try:
                kind, takes = shape(name, function, request)
                entry.update(shape=kind, takes=takes, answers=answered(function, kind, takes, request))
            except (TypeError, ValueError) as error:
                entry.update(error=str(error), missing=getattr(error, "names", []))
            result["functions"].append(entry)
    result["stand_ins"] = _Finder.imported
    with open(result_file, "w", encoding="utf-8") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
