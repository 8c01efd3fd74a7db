"""Imported at the start of every process of an overlay: plants what the file named by $CASE_PATCH says, once its module is imported.

A patch file has PATCH = {module: function(module)}. `mark` writes that it acted, in $CASE_MARKS: a case that did not act is no case.
"""

import functools
import importlib.util
import json
import os
import sys

FILE = os.environ.get("CASE_PATCH", "")
SIDE = {"now": ""}


def mark(text):
    with open(os.environ["CASE_MARKS"], "a") as file:
        file.write(f"{os.getpid()} {SIDE['now'] or '?'} {text}\n")


def around(owner, name, replacement):
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **options):
        return replacement(original, *args, **options)

    setattr(owner, name, wrapped)


def _learn_the_side(original, self, run_dir, *args, **options):
    SIDE["now"] = os.path.basename(str(run_dir).rstrip("/"))
    try:
        with open(os.path.join(str(run_dir), "run.json")) as file:
            SIDE["now"] = json.load(file).get("side") or SIDE["now"]
    except (OSError, ValueError):
        pass
    return original(self, run_dir, *args, **options)


def _trainer_learns_the_side(original, self, scenario, roles, session, run_dir, *args, **options):
    return _learn_the_side(lambda s, d: original(s, scenario, roles, session, d, *args, **options), self, run_dir)


_marked = set()


def once(text):
    """Mark the first time in this process and on this side."""
    if (SIDE["now"], text) not in _marked:
        _marked.add((SIDE["now"], text))
        mark(text)


def on_model(module, change):
    """Before each use of the embedded engine: change(model, whether this is the candidate's)."""

    def use(original, self, *args, **options):
        change(self._model, SIDE["now"] == "candidate")
        return original(self, *args, **options)

    for name in ("generate", "rescore", "layers"):
        around(module.HFEngine, name, use)


class _Finder:
    def __init__(self, patches):
        self.patches, self.busy = patches, set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.patches or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            for patch in self.patches[name]:
                patch(module)

        spec.loader.exec_module = exec_module
        return spec


if FILE and os.path.exists(FILE):
    spec = importlib.util.spec_from_file_location("case_patch", FILE)
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    planned = {
        "scenarios.session": [lambda module: around(module.EngineSession, "record_to", _learn_the_side)],
        "scenarios.ppo.role": [lambda module: around(module.Role, "record_to", _learn_the_side)],
        "scenarios.ppo.trainer": [lambda module: around(module.Trainer, "__init__", _trainer_learns_the_side)],
    }
    for name, patch in case.PATCH.items():
        planned.setdefault(name, []).append(patch)
    sys.meta_path.insert(0, _Finder(planned))
