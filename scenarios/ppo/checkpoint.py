"""Checkpoints: the policy as a Hugging Face directory, the learner's state beside it, and a manifest of hashes.

step-N/policy/...      weights and tokenizer        step-N/learner.pt   critic, optimizers, master weights
step-N/manifest.json   step, weight version, scenario, blake2b of every file

No random state needs to be kept: every draw (prompt order, mini-batches, sampling noise) is a function of the seed
and the step.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probes import limits
from probes.errors import AddressedError
from probes.files import close_to_others, make_folder

FORMAT = 1  # of the manifest
POLICY, LEARNER, MANIFEST = "policy", "learner.pt", "manifest.json"


class CheckpointError(AddressedError, ValueError):
    """A checkpoint that cannot be resumed. The message names the file and what is wrong with it.

    `fix`: an option of the command line.
    """


ANOTHER = "--resume CHECKPOINT   # another one, or leave it out"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `state`: the learner's states by role."""

    policy: Path
    state: dict[str, Any]
    step: int
    version: int


def save(
    path: Path,
    *,
    write_policy: Callable[[str], None],
    state: dict[str, Any],
    step: int,
    version: int,
    scenario: dict[str, Any],
) -> Path:
    """Write a checkpoint to `path`, completely or not at all: made beside it and renamed. Replaces an older one."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        write_policy(str(partial / POLICY))
        torch.save(state, partial / LEARNER)
        files = {str(file.relative_to(partial)): _hash(file) for file in sorted(partial.rglob("*")) if file.is_file()}
        manifest = {"format": FORMAT, "step": step, "version": version, "scenario": scenario, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        close_to_others(partial)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def load(path: Path, scenario: dict[str, Any]) -> Checkpoint:
    """Read and verify the checkpoint at `path`, which the same `scenario` must have made. Raises CheckpointError."""
    try:
        manifest = json.loads(limits.read_text(path / MANIFEST))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MANIFEST}: cannot be read: {error}", fix=ANOTHER) from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path / MANIFEST}: format {manifest.get('format')!r}, this version reads {FORMAT}", fix=ANOTHER
        )
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing; the checkpoint is incomplete", fix=ANOTHER)
        if _hash(file) != expected:
            raise CheckpointError(
                f"{file}: has changed since the checkpoint was written (its blake2b hash differs)", fix=ANOTHER
            )
    changed = sorted(_changes(manifest["scenario"], json.loads(json.dumps(scenario))))
    if changed:
        raise CheckpointError(
            f"{path}: was made by another scenario: {', '.join(changed)} differ; to start a new run from its weights, "
            f"set model.path = {str(path / POLICY)!r}",
            fix=f"--model {path / POLICY}   # a new run from its weights",
        )
    try:
        state = torch.load(path / LEARNER, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path / LEARNER}: cannot be read: {error}", fix=ANOTHER) from error
    return Checkpoint(path / POLICY, state, manifest["step"], manifest["version"])


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Return dotted keys whose values differ. The length of a run and how often it saves may change."""
    changed_keys = []
    for key in old.keys() | new.keys():
        name = prefix + key
        if name in ("steps", "name", "guided", "native", "ppo.checkpoint_every"):
            continue
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changed_keys += _changes(before, after, f"{name}.")
        elif before != after:
            changed_keys.append(name)
    return changed_keys


def _hash(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
