"""Checks of the libraries that a process really loads: the undefined symbol that appears in one shell and not in
another."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.software import Import
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, check


@check("libraries", "software")
def libraries(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares the libraries that the imports loaded with this environment's own; where nothing was imported,
    the directories of LD_LIBRARY_PATH. Error when one came from elsewhere, or when the path hides torch's;
    warning when it hides another; info with LD_PRELOAD (ld.so(8): LD_LIBRARY_PATH goes before RUNPATH)."""
    software = facts.software
    assert software is not None
    outcomes: list[Outcome] = []
    twice = [(name, path) for name, path in software.in_front if name in software.own]
    loaded = facts.imports.foreign if facts.imports else ()
    if loaded:
        outcomes.append(
            Problem(
                "error",
                "libraries of another environment are loaded in place of this one's",
                _paths(loaded),
                "torch, NCCL or cuDNN of two builds in one process: undefined symbols at best, wrong or "
                "hanging collectives at worst",
                "unset LD_LIBRARY_PATH   # or take those directories out",
            )
        )
    elif twice:
        torch = any(name.startswith(("libtorch", "libc10")) for name, _ in twice)
        outcomes.append(
            Problem(
                "error" if torch else "warning",
                "LD_LIBRARY_PATH puts libraries in front of this environment's own",
                _paths(twice),
                "a compiled package that carries no RPATH takes them: `undefined symbol` on import, or an "
                "NCCL that the other ranks do not have",
                "unset LD_LIBRARY_PATH   # or take those directories out",
            )
        )
    if preload := software.variables.get("LD_PRELOAD"):
        outcomes.append(
            Problem(
                "info",
                "LD_PRELOAD puts libraries before all others",
                f"LD_PRELOAD={preload}",
                "it holds for every process of the run, the engines' included",
                "unset LD_PRELOAD",
            )
        )
    path = software.variables.get("LD_LIBRARY_PATH")
    yield from outcomes or [Fine(f"LD_LIBRARY_PATH={path} hides none of this environment's" if path else
                                 "LD_LIBRARY_PATH is not set")]  # fmt: skip


@check("imports", "imports")
def imports(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Imports torch and the other compiled packages, each in a process of its own. Error when a symbol or
    shared object is missing, warning at any other failure."""
    assert facts.imports is not None
    tried = facts.imports.tried
    outcomes: list[Outcome] = []
    for item in tried:
        if not item.ok:
            outcomes.append(_not_imported(item))
    good = ", ".join(item.name for item in tried if item.ok)
    yield from outcomes or [Fine(good or "no compiled package is installed")]


def _not_imported(item: Import) -> Problem:
    what = f"{item.name} cannot be imported"
    # The words of the dynamic linker for a library of another build.
    if any(word in item.error for word in ("undefined symbol", "cannot open shared object", "GLIBCXX", "GLIBC_")):
        return Problem(
            "error",
            what,
            item.error,
            "it was built against another torch, CUDA or C++ library than the process finds; the run ends at its "
            "first import",
            "ldd -r FILE | grep -E 'undefined|not found'   # of the file that the message names; then install it "
            "again beside this torch, or correct LD_LIBRARY_PATH",
        )
    why = "whatever needs it fails at its first import"
    return Problem("warning", what, item.error, why, f"python -c 'import {item.name}'")


def _paths(name_paths: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    paths_text = ", ".join(path for _, path in name_paths[:3])
    return f"{paths_text} and {len(name_paths) - 3} more" if len(name_paths) > 3 else paths_text
