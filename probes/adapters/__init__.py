"""Adapters: tables of other frameworks' symbols, and what puts them to work inside the processes of a job.

`begin` is called by probes/site/sitecustomize.py just before a process imports a framework's package. Standard library
only; a table imports nothing of its framework.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os

from probes import attach
from probes.adapters.machinery import Machinery
from probes.adapters.openrlhf import ADAPTER as OPENRLHF
from probes.adapters.table import Adapter, Hook
from probes.adapters.trl import ADAPTER as TRL
from probes.adapters.verl import ADAPTER as VERL

__all__ = ["ADAPTERS", "DIGESTS", "PLUGIN", "VARIABLE", "Adapter", "Hook", "Machinery", "begin"]

ADAPTERS: dict[str, Adapter] = {one.framework: one for one in (OPENRLHF, TRL, VERL)}
# Told to every process of a recorded job: `framework:package,package`, and whether digests of weights are wanted.
VARIABLE, DIGESTS = "RLHF_HARNESS_ADAPTER", "RLHF_HARNESS_DIGESTS"
PLUGIN = "RLHF_HARNESS_PLUGIN"  # a module that changes the job as its user asked (`--seed`), imported in each process

_begun: Machinery | None = None


def begin(directory: str, framework: str) -> Machinery | None:
    """Hook `framework` in this process and record into `directory`, once; None for a process that is no part of the
    job."""
    global _begun
    if _begun is None and attach.begin(directory) is not None:
        adapter = ADAPTERS[framework]
        try:
            version = importlib.metadata.version(adapter.distribution)
        except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
            version = ""
        _begun = Machinery(adapter, version, attach.journal, digests=os.environ.get(DIGESTS) == "1")
        attach.roles.update(adapter.roles)
        attach.greetings.append(_begun.greet)
        _begun.install()
        if plugin := os.environ.get(PLUGIN):
            importlib.import_module(plugin)  # after the hooks, so that they see what it made of a call
    return _begun
