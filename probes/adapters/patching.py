"""Puts hooks on symbols of a module that has just been imported: plain functions, classes, Ray's actor classes.

A wrapper keeps the kind of its original (coroutine, generator, static method), its `__dict__` and its signature, and
refers to nothing but its symbol. The reason: Ray pickles the methods of an actor class by value, into processes where
this package may not be importable. So a wrapper looks for the machinery in `sys.modules` at each call, and without it
only calls the original.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from probes.adapters.table import Hook

MACHINERY = "_rlhf_harness_hooks"  # a module in sys.modules that has begin(symbol, original, args, kwargs)
MARK = "__rlhf_harness_hook__"


class Moved(Exception):
    """The symbol is not where the table says."""


def patch(module: ModuleType, hook: Hook) -> None:
    """Hook one symbol of a module, once. Raises Moved where the symbol is missing or is not a function."""
    *parents, name = hook.path
    holder: Any = module
    for parent in parents:
        holder = _attribute(holder, parent, hook)
        actor = getattr(holder, "__ray_metadata__", None)  # a @ray.remote class: Ray has copied its methods
        holder = getattr(actor, "modified_class", holder)
    if inspect.isclass(holder) and name not in vars(holder) and not hasattr(holder, name):
        raise Moved(f"{_called(holder)} has no {name}")
    # `vars` gives a static or class method as it was written, `getattr` only the function in it.
    raw = vars(holder)[name] if name in vars(holder) else _attribute(holder, name, hook)
    kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
    function = raw.__func__ if kind else raw
    if not callable(function) or inspect.isclass(function):
        raise Moved(f"{hook.symbol} is no function any more, but {type(function).__name__}")
    if getattr(function, MARK, "") == hook.symbol:
        return
    wrapped = wrap(function, hook.symbol)
    setattr(holder, name, kind(wrapped) if kind else wrapped)


def wrap(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    """Return the original with calls to the machinery before and after it."""
    if inspect.isasyncgenfunction(original):
        made = _async_generator(original, symbol)
    elif inspect.iscoroutinefunction(original):
        made = _coroutine(original, symbol)
    elif inspect.isgeneratorfunction(original):
        made = _generator(original, symbol)
    else:
        made = _function(original, symbol)
    setattr(made, MARK, symbol)
    return made


# The wrappers below use no global but `sys`, because what a wrapper refers to is pickled with it.


def _function(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        machinery: Any = sys.modules.get("_rlhf_harness_hooks")
        running = machinery.begin(symbol, original, args, kwargs) if machinery is not None else None
        if running is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            running.failed(error)
            raise
        running.returned(result)
        return result

    return hooked


def _coroutine(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    @functools.wraps(original)
    async def hooked(*args: Any, **kwargs: Any) -> Any:
        machinery: Any = sys.modules.get("_rlhf_harness_hooks")
        running = machinery.begin(symbol, original, args, kwargs) if machinery is not None else None
        if running is None:
            return await original(*args, **kwargs)
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            running.failed(error)
            raise
        running.returned(result)
        return result

    return hooked


def _generator(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        machinery: Any = sys.modules.get("_rlhf_harness_hooks")
        running = machinery.begin(symbol, original, args, kwargs) if machinery is not None else None
        if running is None:
            return (yield from original(*args, **kwargs))
        try:
            result = yield from original(*args, **kwargs)
        except BaseException as error:
            running.failed(error)
            raise
        running.returned(result)
        return result

    return hooked


def _async_generator(original: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    """Values that are sent or thrown into the generator do not reach the original; no framework does that to what is
    hooked here.
    """

    @functools.wraps(original)
    async def hooked(*args: Any, **kwargs: Any) -> Any:
        machinery: Any = sys.modules.get("_rlhf_harness_hooks")
        running = machinery.begin(symbol, original, args, kwargs) if machinery is not None else None
        items = original(*args, **kwargs)
        try:
            async for item in items:
                yield item
        except BaseException as error:
            await items.aclose()
            if running is not None:
                running.failed(error)
            raise
        if running is not None:
            running.returned(None)

    return hooked


def _attribute(holder: Any, name: str, hook: Hook) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        raise Moved(f"{_called(holder)} has no {name}") from None


def _called(holder: Any) -> str:
    return str(getattr(holder, "__qualname__", None) or getattr(holder, "__name__", holder))
