"""A venv made by hand and engines of a few lines in it. Standard library only: the stand-in for uv imports it."""

from __future__ import annotations

import sys
from pathlib import Path

CONTENTS = {"vllm": "class LLM: pass\n", "sglang": "", "ray": "", "torch": ""}


def make_venv(folder: Path) -> None:
    base = Path(sys.executable).resolve()
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base)
    (folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")


def write(python: str, ray: str, *, engine: str = "vllm", version: str = "0.32.0", cuda: str | None = None) -> None:
    torch = "2.13.0+cu130" if cuda else "2.13.0+cpu"
    (site,) = Path(python).parent.parent.glob("lib/python3*/site-packages")
    for name, its_version in ((engine, version), ("ray", ray), ("torch", torch)):
        (site / name).mkdir(exist_ok=True)
        (site / name / "__init__.py").write_text(CONTENTS[name])
        info = site / f"{name}-{its_version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {its_version}\n")
    (site / "torch" / "version.py").write_text(f"cuda = {cuda!r}\n")
