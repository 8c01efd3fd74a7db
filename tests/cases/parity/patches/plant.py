"""Imported at the start of every process of an overlay: plants what the file named by $CASE_PATCH says.

A patch file has PATCH = {module: function(module)}, called once the module is imported. `mark` writes into $CASE_MARKS
that the patch acted: a case that did not act is no case. With $CASE_ANSWERS what live engines answer on the bench is
kept in that file, for the golden table.
"""

import functools
import importlib.util
import json
import os
import sys
from pathlib import Path

FILE = os.environ.get("CASE_PATCH", "")
ANSWERS = os.environ.get("CASE_ANSWERS", "")
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


def learn_the_side(session):
    around(session.EngineSession, "record_to", _learn_the_side)


def keep_answers(bench):
    from tests.golden.bench_answers import RecordingBench

    on_stage = bench.OnStage
    bench.OnStage = lambda call: RecordingBench(on_stage(call), Path(ANSWERS))


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


def patches_of(file):
    """Module -> function(module), of a patch file."""
    spec = importlib.util.spec_from_file_location("case_patch", file)
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case.PATCH


if FILE and os.path.exists(FILE):
    planned = {"scenarios.session": [learn_the_side]}
    if ANSWERS:
        planned["harness.parity.interventions.bench"] = [keep_answers]
    for module_name, patch_of_module in patches_of(FILE).items():
        planned.setdefault(module_name, []).append(patch_of_module)
    sys.meta_path.insert(0, _Finder(planned))
