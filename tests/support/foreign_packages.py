"""Packages of somebody else, built outside the repository and installed into an environment that sees this one's."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def write_package(folder: Path, points: Mapping[str, Mapping[str, str]], files: Mapping[str, str]) -> None:
    """A distribution of the packages that `files` have an __init__.py of, named as the first one. `points`: what it
    adds to each group of entry points of the harness."""
    packages = [name.partition("/")[0] for name in files if name.endswith("__init__.py")]
    lines = [
        "[build-system]", 'requires = ["setuptools"]', 'build-backend = "setuptools.build_meta"',
        "[project]", f'name = "{packages[0]}"', 'version = "1"',
    ]  # fmt: skip
    for group, added in points.items():
        lines += [f'[project.entry-points."rlhf_harness.{group}"]', *(f'{one} = "{at}"' for one, at in added.items())]
    lines += ["[tool.setuptools]", f"packages = {packages}", "package-data = { '*' = ['*.toml'] }", ""]
    for name, text in {"pyproject.toml": "\n".join(lines), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def environment_with(source: Path, home: Path) -> Path:
    """The interpreter of a new environment below `home` with everything of this one and the package's wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    python = home / "env" / "bin" / "python"
    [packages] = (home / "env" / "lib").glob("python*/site-packages")
    ours = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "ours.pth").write_text(ours)
    install(source, python)
    return python


def install(source: Path, python: Path) -> None:
    """Build the package's wheel and install it into an environment, over an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
        subprocess.run(build, check=True)
        [wheel] = Path(folder).glob("*.whl")
        [packages] = (python.parents[1] / "lib").glob("python*/site-packages")
        for earlier in packages.glob(f"{wheel.name.partition('-')[0]}*"):
            shutil.rmtree(earlier)
        subprocess.run([*PIP, "install", "--no-deps", "--target", packages, wheel], check=True)


def harness(python: Path, *words: str | Path, timeout_s: float = 600, **environ: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `harness WORDS` in an environment."""
    command = [python, "-c", "from harness.entry import main; main()", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **environ}, cwd=python.parent
    )
    return done.returncode, done.stdout, done.stderr
