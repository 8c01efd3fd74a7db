"""Make the project's own environment: a venv, uv by pip, and the project with uv.

Standard library only, because nothing is installed yet. The CPU build of torch is taken where there is no NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.envs import indexes
from harness.envs.install import CommandFailed, Uv, nvidia_gpu, run

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"


def torch_override(constraints: str, *, gpu: bool, platform: str = sys.platform) -> list[str]:
    """Return the override that requires the CPU build of the tested torch; empty with a GPU, or on other systems than
    Linux.

    Raises LookupError where the constraints do not pin torch.
    """
    pinned = next((item.strip() for item in constraints.splitlines() if item.startswith("torch==")), None)
    if pinned is None:
        raise LookupError(f"{CONSTRAINTS.name} does not pin torch")
    return [] if gpu or platform != "linux" else [f"{pinned}+cpu"]


def bootstrap(directory: Path, uv_requirement: str) -> None:
    """Make or update the environment in that directory. Raises CommandFailed."""
    directory = directory.absolute()
    python = directory / "bin" / "python"
    if not python.exists():
        print(f"making {directory} with Python {sys.version.split()[0]}", flush=True)
        run([sys.executable, "-m", "venv", str(directory)], os.environ, print)
    if not (directory / "bin" / "uv").exists():
        quiet = ["--quiet", "--disable-pip-version-check"]
        run([str(python), "-m", "pip", "install", *quiet, uv_requirement], os.environ, print)
    pip = indexes.pip_configuration(str(python))
    uv = Uv(str(directory / "bin" / "uv"), indexes.uv_environment(pip), lambda line: None)
    overrides = torch_override(CONSTRAINTS.read_text(encoding="utf-8"), gpu=nvidia_gpu())
    print(f"installing the project and its tools ({'CPU' if overrides else 'default'} build of torch)", flush=True)
    project = ["--editable", f"{ROOT}[dev]"]
    # A path instead of a finder, which would take half of the start of each interpreter that a test starts.
    extra = ["--quiet", "--constraints", str(CONSTRAINTS), "--config-setting", "editable_mode=compat"]
    uv.install(python, project, overrides=overrides, cpu=bool(overrides), torch="".join(overrides), extra=extra)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m harness.envs.bootstrap", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="of the environment, such as .venv")
    parser.add_argument("--uv", default="uv>=0.9", help="requirement for uv")
    options = parser.parse_args(arguments)
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        python_version = sys.version.split()[0]
        print(f"Python 3.11 or 3.12 is needed, this is {python_version}: make PYTHON=python3.12 ...", file=sys.stderr)
        return 2
    try:
        bootstrap(options.directory, options.uv)
    except CommandFailed as failure:
        print(
            f"the project's environment could not be made in {options.directory}: {failure.reason()}", file=sys.stderr
        )
        return 2
    except (KeyboardInterrupt, subprocess.SubprocessError):
        print("interrupted; run the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
