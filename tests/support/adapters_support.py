"""A framework of a few lines, written into a directory: what the adapters' machinery is tested on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from probes import attach
from probes.adapters.calls import Call
from probes.adapters.machinery import Machinery
from probes.adapters.patching import MACHINERY
from probes.adapters.table import Adapter, Hook

NAME = "little_rlhf"
SOURCES = {
    "__init__.py": "from little_rlhf import early\nfrom little_rlhf.early import helper\n",
    "early.py": "def helper(value):\n    'Helps.'\n    return value + 1\n",
    "base.py": "class Base:\n    def inherited(self, value):\n        return ('inherited', value)\n",
    "trainer.py": """
import contextlib
import functools
from little_rlhf.base import Base

class State:
    step = 3

class Local:
    pass

class Unspeakable(Exception):
    def __str__(self):
        raise LookupError("no text")

def profiled(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner

class Trainer(Base):
    state = State()

    def generate(self, prompts, n=2):
        return [[prompt] * n for prompt in prompts]
    generate.marked = "by the framework"

    @profiled
    def score(self, rows):
        return len(rows)

    async def agenerate(self, prompt):
        return prompt * 2

    def stream(self):
        got = yield 1
        yield got
        return "end"

    async def astream(self):
        yield 1
        yield 2

    @staticmethod
    def static(value):
        return value

    @classmethod
    def clsm(cls, value):
        return (cls.__name__, value)

    @contextlib.contextmanager
    def held(self):
        yield self

    def fails(self):
        raise ValueError("its own error")

    def raises(self, note):
        local = Local()
        note(local)
        raise ValueError("its own error")

    def raises_in_stream(self, note):
        yield 1
        self.raises(note)

    async def raises_later(self, note):
        self.raises(note)

    async def raises_in_astream(self, note):
        yield 1
        self.raises(note)

    def raises_unspeakably(self):
        raise Unspeakable

    def never(self):
        return None
""",
    "actor.py": '''
class Metadata:
    def __init__(self, modified_class):
        self.modified_class = modified_class

class ActorClass:
    """As @ray.remote leaves a class: no method of its own, the real class inside."""
    def __init__(self, cls):
        self.__ray_metadata__ = Metadata(cls)

class _Rollout:
    def rollout(self, prompt):
        return prompt + [7]

Rollout = ActorClass(_Rollout)
''',
}


def write(directory: Path) -> Path:
    """The package's source below `directory`."""
    package = directory / NAME
    package.mkdir(parents=True)
    for name, text in SOURCES.items():
        (package / name).write_text(text, encoding="utf-8")
    return directory


def adapter(*hooks: Hook, **more: Any) -> Adapter:
    given: dict[str, Any] = {
        "framework": NAME, "distribution": NAME, "versions": ("1.0", "2"),
        "hooks": hooks, **more,
    }  # fmt: skip
    return Adapter(**given)


@contextmanager
def at_work(directory: Path, recording: Path, *hooks: Hook, version: str = "1.5") -> Iterator[Machinery]:
    """The machinery in this process, recording into `recording`; `little_rlhf` can be imported meanwhile."""
    write(directory)
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    journal = attach.Quiet(recording)
    machinery = Machinery(adapter(*hooks), version, lambda: journal)
    attach.greetings.append(machinery.greet)
    machinery.install()
    try:
        yield machinery
    finally:
        machinery.remove()
        attach.greetings.remove(machinery.greet)
        journal.close(None)
        sys.path.remove(str(directory))
        for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
            del sys.modules[name]
        assert MACHINERY not in sys.modules


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{NAME}.{name}")


def hook(path: str, **more: Any) -> Hook:
    """`trainer:Trainer.generate` of the little framework."""
    return Hook(f"{NAME}.{path}", **more)


class Noted:
    """A reader that keeps the calls it was given."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> None:
        self.calls.append(call)
