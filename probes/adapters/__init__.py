"""Adapters: tables of the symbols of other frameworks, and the code that hooks them inside the processes of a job.

probes/site/sitecustomize.py calls `begin` just before a process imports a framework's package. Standard library only;
a table imports nothing of its framework.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys

from probes import attach
from probes.adapters.machinery import Machinery
from probes.adapters.table import Adapter, Hook
from probes.identity import ADAPTER as VARIABLE
from probes.identity import DIGESTS

__all__ = ["DIGESTS", "PLUGIN", "SEED", "VARIABLE", "Adapter", "Hook", "begin", "load"]

PLUGIN = "RLHF_HARNESS_PLUGIN"  # a module that changes the job as its user asked (`--seed`); imported in every process
SEED = "RLHF_HARNESS_SEED"  # seed of the order of the prompts, for the plug-in that seeds it

_begun: Machinery | None = None


def load(name: str) -> Adapter:
    """Return the adapter of `name`: a module of `probes`, or the path of a file.

    Such a file may import the standard library and `probes` only.
    """
    if not os.path.isabs(name):
        adapter: Adapter = importlib.import_module(name).ADAPTER
        return adapter
    module_name = f"_rlhf_harness_adapter_{os.path.splitext(os.path.basename(name))[0]}"
    spec = importlib.util.spec_from_file_location(module_name, name)
    assert spec is not None and spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapter = module.ADAPTER
    return adapter


def begin(directory: str, adapter: Adapter) -> Machinery | None:
    """Hook a framework in this process and record into `directory`. Later calls do nothing more.

    Return None for a process that is not part of the job.
    """
    global _begun
    if _begun is None and attach.begin(directory) is not None:
        try:
            version = importlib.metadata.version(adapter.distribution)
        except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
            version = ""
        _begun = Machinery(adapter, version, attach.journal, digests=os.environ.get(DIGESTS) == "1")
        attach.roles.update(adapter.roles)
        attach.greetings.append(_begun.greet)
        _begun.install()
        if plugin := os.environ.get(PLUGIN):
            importlib.import_module(plugin)  # after the hooks, so that they record what the plug-in changed
    return _begun
