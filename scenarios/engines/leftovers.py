"""Finds what an engine that stays up carries from one comparison to the next, besides the weights, which are synced.

Runs in the engine's own processes. The first look at a process, a model or an object notes its state; each later look
compares with it. Code is compared by the code objects of functions, so a patched function, method or hook is found
wherever it is. Modules that were imported since the first look are only noted.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import types
from typing import Any

from probes.weights import digest

# Packages whose functions take part in a rollout, besides the engine's own.
CODE = ("scenarios", "probes", "transformers", "torch.nn", "torch.functional", "torch._tensor")
PROBE_TOKENS = 48  # of the prompt that tests for an empty cache: several blocks of a GPU's caches
MOST_NAMED = 3  # most names of changes in one sentence
_noted: dict[str, dict[str, Any]] = {}
_random: list[Any] = []


def of_process(*packages: str) -> list[str]:
    """Return what has changed in this process: code of `CODE` and `packages`, environment variables, switches of
    torch.

    Resets the random number generators to their states at the first look.
    """
    import torch

    changes = _changed("code", _code((*CODE, *packages)), grows=True)
    changes += _changed("the variable", dict(os.environ))
    changes += _changed("torch's", {
        "default dtype": torch.get_default_dtype(), "number of threads": torch.get_num_threads(),
        "precision of products": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "oneDNN": torch.backends.mkldnn.enabled, "TF32": torch.backends.cuda.matmul.allow_tf32,
    })  # fmt: skip
    if not _random:
        _random[:] = random.getstate(), torch.get_rng_state()
    random.setstate(_random[0])
    torch.set_rng_state(_random[1])
    return changes


def of_model(model: Any) -> list[str]:
    """Return what has changed in a model besides its parameters' values: modules, hooks, replaced methods, buffers."""
    parts: dict[str, Any] = {}
    for name, module in model.named_modules():
        attributes = vars(module)
        hooks = {
            key: [codes(hook) for hook in value.values()] for key, value in attributes.items() if key.endswith("_hooks")
        }
        methods = {key: codes(value) for key, value in attributes.items() if isinstance(value, _FUNCTIONS)}
        parts[f"module {name or 'itself'}"] = type(module), hooks, methods
    parts |= {
        f"parameter {name}": (tuple(parameter.shape), parameter.dtype) for name, parameter in model.named_parameters()
    }
    parts |= {f"buffer {name}": digest(buffer.detach().cpu()) for name, buffer in model.named_buffers()}
    return _changed("the model's", parts)


def of_settings(what: str, thing: Any, model_path: str) -> list[str]:
    """Return what has changed in an object's plain settings, ignoring the directory of the weights."""
    settings = {name: repr(value).replace(model_path, "") for name, value in vars(thing).items() if _plain(value)}
    return _changed(f"{what}'s setting", settings, grows=True)


def of_methods(what: str, thing: Any) -> list[str]:
    """Return methods of the object itself that replaced those of its class, where they changed."""
    methods = {name: codes(value) for name, value in vars(thing).items() if isinstance(value, _FUNCTIONS)}
    return _changed(f"{what}'s method", methods)


def probe_prompt(vocabulary: int) -> tuple[int, ...]:
    """Return the prompt that is drawn from at each look at the engine: a cache that was not emptied knows it."""
    return tuple(random.Random(0).choices(range(vocabulary), k=PROBE_TOKENS))


def codes(function: Any, depth: int = 3) -> tuple[Any, ...]:
    """Return the code objects of a function, and of those that it wraps or closes over."""
    if isinstance(function, (staticmethod, classmethod, types.MethodType)):
        return codes(function.__func__, depth)
    if isinstance(function, property):
        return tuple(codes(accessor, depth) for accessor in (function.fget, function.fset))
    if isinstance(function, functools._lru_cache_wrapper):
        return codes(function.__wrapped__, depth)
    if isinstance(function, functools.partial):
        return codes(function.func, depth)
    if not isinstance(function, types.FunctionType):
        return (type(function),)
    # A patch that wraps a function keeps it in a closure. Closures can refer to each other, hence the depth.
    inside = []
    cells = (function.__closure__ or ()) if depth else ()
    for cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # the variable is not bound yet
            continue
        if isinstance(value, _FUNCTIONS):
            inside.append(codes(value, depth - 1))
    return (function.__code__, *inside)


_FUNCTIONS = (
    types.FunctionType, types.MethodType, staticmethod, classmethod, property, functools.partial,
    functools._lru_cache_wrapper,
)  # fmt: skip


def _code(packages: tuple[str, ...]) -> dict[str, Any]:
    code_by_name: dict[str, Any] = {}
    heads = tuple(f"{package}." for package in packages)
    for name, module in list(sys.modules.items()):
        is_wanted = name in packages or name.startswith(heads)
        if not is_wanted or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, type):
                code_by_name[f"{name}.{key}"] = value
                if value.__module__ == name:  # a class that was imported is read in its own module
                    code_by_name |= _code_of_class(f"{name}.{key}", value)
            elif isinstance(value, _FUNCTIONS):
                code_by_name[f"{name}.{key}"] = codes(value)
    return code_by_name


def _code_of_class(name: str, value: type) -> dict[str, Any]:
    """Return the code of each method of a class, under the class's name."""
    members = list(vars(value).items())
    return {f"{name}.{method}": codes(member) for method, member in members if isinstance(member, _FUNCTIONS)}


def _changed(what: str, now: dict[str, Any], *, grows: bool = False) -> list[str]:
    """Return a phrase about what differs from the first look, as a list of none or one.

    `grows`: new and missing names do not count.
    """
    before = _noted.setdefault(what, now)
    names = before.keys() & now.keys() if grows else before.keys() | now.keys()
    absent = object()
    changed = sorted(name for name in names if before.get(name, absent) != now.get(name, absent))
    if grows:
        _noted[what] = now | before
    if not changed:
        return []
    more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return [f"{what} {', '.join(changed[:MOST_NAMED])}{more} changed"]


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(key) and _plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes))
