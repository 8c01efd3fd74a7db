"""Loaded at the start of every process of a run through an overlay (see overlay.py). Does nothing without BLIND_CASE.

With BLIND_CASE=NAME it waits until the modules that cases/NAME.py names are imported, and patches them. A case tells with
`on()` whether this process works for its side just now, and leaves a line in $BLIND_MARK for what it did.
"""
import os
import sys

CASE = os.environ.get("BLIND_CASE", "")
SIDE = {"now": ""}
_counts = {}


def mark(what, every=10**9):
    """A line in the marker file: at the first call with this text, and every so many calls."""
    count = _counts[what] = _counts.get(what, 0) + 1
    path = os.environ.get("BLIND_MARK")
    if path and (count in (1, 10, 100, 1000, 10000, 100000) or count % every == 0):
        with open(path, "a") as file:
            file.write(f"{CASE} pid {os.getpid()} side {SIDE['now'] or '?'}: {what} (call {count})\n")


def on(side="candidate"):
    return SIDE["now"] == side


def side_of(run_dir):
    import json

    try:
        with open(os.path.join(str(run_dir), "run.json")) as file:
            SIDE["now"] = str(json.load(file).get("side", ""))
    except (OSError, ValueError):
        SIDE["now"] = os.path.basename(str(run_dir).rstrip("/"))


def around(owner, name, replacement):
    """replacement(original, *args, **kwargs) in place of owner.name."""
    import functools

    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return replacement(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _told(original, self, run_dir, *args, **kwargs):
    side_of(run_dir)
    return original(self, run_dir, *args, **kwargs)


def _trainer_told(original, self, scenario, roles, session, run_dir, *args, **kwargs):
    side_of(run_dir)
    return original(self, scenario, roles, session, run_dir, *args, **kwargs)


SIDES = {
    "scenarios.session": lambda m: around(m.EngineSession, "record_to", _told),
    "scenarios.ppo.role": lambda m: around(m.Role, "record_to", _told),
    "scenarios.ppo.trainer": lambda m: around(m.Trainer, "__init__", _trainer_told),
}


class _Finder:
    def __init__(self, patches):
        self.patches, self.busy = patches, set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.patches or name in self.busy:
            return None
        import importlib.util

        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        loader, original = spec.loader, spec.loader.exec_module

        def exec_module(module):
            original(module)
            for patch in self.patches[name]:
                patch(module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return None
        return spec


# The cases are frozen: they name modules as they were called when they were written.
MOVED = {
    "scenarios.rollout": "scenarios.engines",
    "scenarios.rollout.hf": "scenarios.engines.hf.engine",
    "scenarios.rollout.vllm": "scenarios.engines.vllm.engine",
    "scenarios.rollout.sglang": "scenarios.engines.sglang.engine",
    "scenarios.rollout.vllm_worker": "scenarios.engines.vllm.worker",
    "scenarios.rollout.coupling": "scenarios.engines.coupling",
}


class _Moved:
    """Finds a module under the name that it had."""

    def find_spec(self, name, path=None, target=None):
        if name not in MOVED:
            return None
        import importlib, importlib.machinery

        module = importlib.import_module(MOVED[name])
        loader = type("Loader", (), {"create_module": lambda self, spec: module, "exec_module": lambda self, module: None})
        return importlib.machinery.ModuleSpec(name, loader(), is_package=hasattr(module, "__path__"))


if CASE:
    import importlib.util as _util

    _path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cases", CASE + ".py")
    _spec = _util.spec_from_file_location("blind_case", _path)
    _case = _util.module_from_spec(_spec)
    _spec.loader.exec_module(_case)
    _patches = {name: [patch] for name, patch in SIDES.items()}
    for _name, _patch in _case.PATCH.items():
        _patches.setdefault(MOVED.get(_name, _name), []).append(_patch)
    sys.meta_path.insert(0, _Finder(_patches))
    sys.meta_path.insert(0, _Moved())
