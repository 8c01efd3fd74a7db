"""Process groups: which collective group was made, on which backend, with whom.

torch.distributed is hooked where it is already loaded, never imported. Groups that are made by other means (an
engine's own constructor, a copy of torch's private one) are recorded by hand with `record_group`. A group is recorded
by its members.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.install import Recorder

MODULE = "torch.distributed.distributed_c10d"
MAKERS = ("init_process_group", "new_group", "split_group")

_watching: list[Recorder] = []
_originals: dict[str, Callable[..., Any]] = {}


def record_group(
    recorder: Recorder, *, name: str, backend: str, rank: int, world_size: int, members: Iterable[int]
) -> None:
    """Write one `group` event: `rank` is this process's rank in the group, `members` the global ranks in order."""
    recorder.event("group", name=name, backend=backend, rank=rank, world_size=world_size, members=list(members))


def watch(recorder: Recorder) -> bool:
    """Record the default group, if there is one, and every later group; False when torch.distributed is not loaded."""
    c10d: Any = sys.modules.get(MODULE)
    if c10d is None:
        return False
    if recorder in _watching:
        return True
    _watching.append(recorder)
    if not _originals:
        for maker in MAKERS:
            if hasattr(c10d, maker):
                _originals[maker] = getattr(c10d, maker)
                _replace(maker, _originals[maker], _recording(maker, _originals[maker]))
    if c10d.is_initialized():
        _record(c10d, c10d.group.WORLD, [recorder])
    return True


def unwatch(recorder: Recorder) -> None:
    """Record no more groups for this recorder; with the last one, torch gets its own functions back."""
    if recorder not in _watching:
        return
    _watching.remove(recorder)
    if not _watching:
        c10d = sys.modules[MODULE]
        for maker, original in _originals.items():
            _replace(maker, getattr(c10d, maker), original)
        _originals.clear()


def _replace(maker: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """In every module of torch.distributed that holds it: device_mesh, for one, imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[:2] == ["torch", "distributed"] and getattr(module, "__dict__", {}).get(maker) is old:
            setattr(module, maker, new)


def _recording(maker: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        c10d: Any = sys.modules[MODULE]
        _record(c10d, c10d.group.WORLD if maker == "init_process_group" else made, list(_watching))
        return made

    return make


def _record(c10d: Any, group: Any, recorders: list[Recorder]) -> None:
    if group is None or group is c10d.GroupMember.NON_GROUP_MEMBER:
        return
    given = getattr(group, "group_desc", "undefined")  # torch's word for a group without a description
    name = group.group_name if given in ("", "undefined") else given
    for recorder in recorders:
        record_group(
            recorder, name=name, backend=str(c10d.get_backend(group)), rank=c10d.get_rank(group),
            world_size=c10d.get_world_size(group), members=c10d.get_process_group_ranks(group),
        )  # fmt: skip
