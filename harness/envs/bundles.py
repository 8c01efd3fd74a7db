"""Directories on PYTHONPATH that give an engine's interpreter access to our own packages only.

Nothing is installed into the engine's environment. A directory has symbolic links to `probes` and `scenarios` and,
for runs with plugins, a `*.dist-info` that declares our entry points. Its name is a digest of its content, so two
checkouts of the harness use different directories.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from harness.envs import home
from harness.frameworks.spec import Framework, frameworks
from scenarios.engines import registry
from scenarios.engines.spec import EngineSpec

PACKAGES = ("probes", "scenarios")
_DISTRIBUTION = "rlhf_harness_plugins-1.dist-info"
_METADATA = "Metadata-Version: 2.1\nName: rlhf-harness-plugins\nVersion: 1\n"


def bundle(plugins: bool = True) -> Path:
    """Return the directory to put on an engine's PYTHONPATH, and make it where it is missing.

    Without `plugins` engines find no entry points of the harness.
    """
    sources = {name: _source(name) for name in PACKAGES}
    files = {"METADATA": _METADATA, "entry_points.txt": _entry_points()} if plugins else {}
    content = repr((sorted((name, str(path)) for name, path in sources.items()), sorted(files.items())))
    path = home.directory("bundles") / hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    if path.is_dir():
        return path
    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=path.parent))
    scratch.chmod(0o755)
    for name, source in sources.items():
        (scratch / name).symlink_to(source, target_is_directory=True)
    if files:
        (scratch / _DISTRIBUTION).mkdir()
        for name, text in files.items():
            (scratch / _DISTRIBUTION / name).write_text(text, encoding="utf-8")
    try:
        os.rename(scratch, path)
    except OSError:  # another process was first, with the same content
        shutil.rmtree(scratch)
    return path


def _entry_points() -> str:
    specs: tuple[EngineSpec | Framework, ...] = (*registry.specs().values(), *frameworks().values())
    groups = {group: value for spec in specs for group, value in spec.entry_points.items()}
    return "".join(f"[{group}]\nrlhf_harness = {value}\n" for group, value in groups.items())


def _source(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package} is not installed beside harness")
    return Path(os.path.realpath(next(iter(spec.submodule_search_locations))))
