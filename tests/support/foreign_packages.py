"""Packages of somebody else, built outside the repository and installed into an environment that sees this one's."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path


def environment_with(source: Path, home: Path) -> Path:
    """The interpreter of a new environment below `home` with everything of this one and the package's wheel."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", home / "wheel", source]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    python = home / "env" / "bin" / "python"
    [packages] = (home / "env" / "lib").glob("python*/site-packages")
    ours = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "ours.pth").write_text(ours)
    [wheel] = (home / "wheel").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, wheel], check=True)
    return python


def harness(python: Path, *words: str | Path, timeout_s: float = 600, **environ: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `harness WORDS` in an environment."""
    command = [python, "-c", "from harness.entry import main; main()", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **environ}, cwd=python.parent
    )
    return done.returncode, done.stdout, done.stderr
