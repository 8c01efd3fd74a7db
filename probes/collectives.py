"""Records process groups: which collective group was made, on which backend, with which members.

torch.distributed is hooked where it is loaded, never imported. `record_group` records groups that are made by other
means (an engine's own constructor, a copy of torch's private one). A group is recorded, with its members, once it
exists. While it is being made there is an open span with the maker's name; a group that never forms leaves nothing
else.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from probes.errors import of_a_signal
from probes.spans import error_text

if TYPE_CHECKING:
    from probes.install import Recorder

MODULE = "torch.distributed.distributed_c10d"
MAKERS = ("init_process_group", "new_group", "split_group")
# Engines and trainers copy init_process_group from these two functions. Their spans are shown while they run; the
# groups they make are recorded by hand.
HELPER, MEETING = "_new_process_group_helper", "rendezvous"
_SHOWN = (
    "world_size", "rank", "backend", "init_method", "group_name", "group_desc", "ranks", "group_size", "group_rank",
)  # fmt: skip

_watching: list[Recorder] = []
_originals: dict[str, Callable[..., Any]] = {}
_making = threading.local()


def record_group(
    recorder: Recorder,
    *,
    name: str,
    backend: str,
    rank: int,
    world_size: int,
    members: Iterable[int],
    **more: Any,
) -> None:
    """Record one `group` event. `rank`: this process's rank in the group. `members`: the global ranks, in the group's
    order.
    """
    recorder.event("group", name=name, backend=backend, rank=rank, world_size=world_size, members=list(members), **more)


def watch(recorder: Recorder) -> bool:
    """Record the default group, if there is one, and every later group. Return False where torch.distributed is not
    loaded.
    """
    c10d: Any = sys.modules.get(MODULE)
    if c10d is None:
        return False
    if recorder in _watching:
        return True
    _watching.append(recorder)
    if not _originals:
        _hook_makers(c10d)
    if c10d.is_initialized():
        _record(c10d, c10d.group.WORLD, [recorder])
    return True


def _hook_makers(c10d: Any) -> None:
    for maker in (*MAKERS, HELPER, MEETING):
        if hasattr(c10d, maker):  # split_group is of newer versions of torch
            original = _originals[maker] = getattr(c10d, maker)
            _replace(maker, original, _meeting(original) if maker == MEETING else _recording(maker, original))


def unwatch(recorder: Recorder) -> None:
    """Record no more groups for this recorder. After the last recorder, torch's own functions are restored."""
    if recorder not in _watching:
        return
    _watching.remove(recorder)
    if not _watching:
        c10d = sys.modules[MODULE]
        for maker, original in _originals.items():
            _replace(maker, getattr(c10d, maker), original)
        _originals.clear()


def _replace(maker: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Replace a function in every module of torch.distributed that holds it: device_mesh, for one, imported it by
    name.
    """
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith("torch.distributed.") and getattr(module, "__dict__", {}).get(maker) is old:
            setattr(module, maker, new)


def _recording(maker: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        # The helper is called by torch's own makers, which record what it made. Called by itself, it is a framework's
        # copy of init_process_group that calls it, and nobody else would record the group.
        recorders, beside = list(_watching), maker == HELPER and not getattr(_making, "name", None)
        with _open(maker, original, args, kwargs, recorders):
            made = original(*args, **kwargs)
        if beside:
            _record_beside(_expected(original, args, kwargs), recorders)
        if maker in MAKERS:
            c10d: Any = sys.modules[MODULE]
            _record(c10d, c10d.group.WORLD if maker == "init_process_group" else made, recorders)
        return made

    return make


def _meeting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def meet(*args: Any, **kwargs: Any) -> Any:
        return _steps(original, original(*args, **kwargs), args, kwargs)

    return meet


def _steps(original: Callable[..., Any], steps: Iterator[Any], args: Any, kwargs: Any) -> Iterator[Any]:
    """Put a span around each item of the generator: the first item makes the store and waits for all members."""
    while True:
        with _open(MEETING, original, args, kwargs, list(_watching)):
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step


@contextmanager
def _open(
    maker: str, original: Callable[..., Any], args: Any, kwargs: Any, recorders: list[Recorder]
) -> Iterator[None]:
    """Open a span for as long as the outermost maker runs: init_process_group calls the helper itself."""
    if getattr(_making, "name", None):
        yield
        return
    _making.name = maker
    try:
        with ExitStack() as spans:
            for recorder in recorders:
                spans.enter_context(recorder.span(maker, **_expected(original, args, kwargs)))
            yield
    finally:
        _making.name = None


def _expected(original: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expected members, as far as the call and the environment show them."""
    try:
        bound_arguments = inspect.signature(original).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call is wrong, and the original will say so
        return {}
    fields: dict[str, Any] = {}
    for name in _SHOWN:
        value = bound_arguments.get(name)
        if name == "ranks":
            if isinstance(value, (list, tuple, range)):  # reading an iterator would consume it
                fields[name] = list(value)
        elif isinstance(value, (int, str)) and value not in (-1, "", "undefined"):
            fields[name] = value
    # The method env://, the default, takes what was not passed from these variables.
    if original.__name__ == "init_process_group":
        for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
            setting = os.environ.get(variable, "")
            if name not in fields and setting.isdigit():
                fields[name] = int(setting)
    return fields


def _record(c10d: Any, group: Any, recorders: list[Recorder]) -> None:
    """Record a group that exists. A group that cannot be described, say with another torch, must not break its
    maker.
    """
    if group is None or group is c10d.GroupMember.NON_GROUP_MEMBER:
        return
    try:
        fields = _described(c10d, group)
    except Exception as error:
        if of_a_signal(error):
            raise
        for recorder in recorders:
            recorder.event("note", text=f"a process group was made that cannot be described: {error_text(error)}")
        return
    for recorder in recorders:
        record_group(recorder, **fields)


def _record_beside(fields: Mapping[str, Any], recorders: list[Recorder]) -> None:
    """Record a group that was made outside torch's registry, as frameworks make those of their weight syncs.

    Each side knows its own rank in the group and the size, but no members. The name tells which sides belong
    together.
    """
    name, rank, size = (fields.get(key) for key in ("group_name", "group_rank", "group_size"))
    if isinstance(name, str) and isinstance(rank, int) and isinstance(size, int):
        for recorder in recorders:
            record_group(
                recorder, name=name, backend=str(fields.get("backend", "")), rank=rank, world_size=size, members=(),
                torch_name=name,
            )  # fmt: skip


def _described(c10d: Any, group: Any) -> dict[str, Any]:
    description = getattr(group, "group_desc", "undefined")  # torch's value for a group without a description
    name = group.group_name if description in ("", "undefined") else description
    fields = {
        "name": name, "backend": str(c10d.get_backend(group)), "rank": c10d.get_rank(group),
        "world_size": c10d.get_world_size(group), "members": c10d.get_process_group_ranks(group),
        "torch_name": group.group_name,
    }  # fmt: skip
    seconds = timeout_s(group)
    return fields if seconds is None else {**fields, "timeout_s": seconds}


def timeout_s(group: Any) -> float | None:
    """Return the timeout of this group's collectives in seconds; None where torch does not tell."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return min(float(backend.options._timeout.total_seconds()) for backend in backends)
    except Exception:  # private API of torch: another version, or a backend in Python, must not end the run
        return None


def sequences() -> dict[str, int]:
    """Return, for each group, how many collectives this process has enqueued. Never blocks.

    The keys are the flight recorder's names of the groups. It takes 0.5 µs per group with torch 2.13 on gloo. A
    backend that does not count is left out.
    """
    c10d: Any = sys.modules.get(MODULE)
    counts: dict[str, int] = {}
    for group, name in list(getattr(getattr(c10d, "_world", None), "pg_names", {}).items()):
        try:
            counts[str(name)] = int(group._get_sequence_number_for_group())
        except Exception:  # destroyed meanwhile, or not counted by its backend: torch raises RuntimeError and others
            continue
    return counts


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watching.clear)  # a forked child is not the process of these recorders
