"""What the core does not bring: the extras of this distribution, by the modules that they install, and the command that
adds one to this installation, however it was made."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from probes.distribution import NAME


def bringing(module: str) -> str:
    """The extra that brings a module; empty where none does."""
    try:
        wanted = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""
    found = (re.match(rf"{re.escape(module)}\b.*extra == [\"'](\w+)[\"']", one) for one in wanted)
    return next((one[1] for one in found if one), "")


def need(module: str) -> None:
    """Raises ModuleNotFoundError, which the command line turns into a sentence, before a program fails without it."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation and keeps what it has: another source than an index, other
    extras, plug-ins."""
    prefix = Path(sys.prefix)
    if receipt := _read(prefix / "uv-receipt.toml"):
        mine, others = _requirements(receipt)
        kept = [word for one in others for word in _with(one)]
        return shlex.join(["uv", "tool", "install", *_source(*mine.get("extras", ()), extra), *kept])
    if receipt := _read(prefix / "pipx_metadata.json"):
        asked = re.search(rf"{NAME}\[([^]]*)\]", str(receipt.get("main_package", {}).get("package_or_url")))
        return shlex.join(["pipx", "install", "--force", *_source(*(asked[1].split(",") if asked else ()), extra)])
    if _of_uvx(prefix):
        return shlex.join(["uvx", "--from", _source(extra)[-1], "harness"]) + " …"
    return shlex.join([*_installer(), *_source(extra)])


def repair_command(package: str) -> str:
    """The command that installs again what this distribution requires, in the version that it asks for."""
    try:
        wanted = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        wanted = []
    named = (one for one in wanted if re.match(rf"{re.escape(package)}\b(?!-)", one) and ";" not in one)
    return shlex.join([*_installer(), next(named, package)])


def upgrade_command() -> str:
    """The command that brings this installation to the newest version."""
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool upgrade {NAME}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx upgrade {NAME}"
    if _of_uvx(prefix):
        return f"uvx {NAME}@latest"
    return shlex.join([*_installer(), "--upgrade", NAME])


def _of_uvx(prefix: Path) -> bool:
    """An environment that `uvx` made: it lies in uv's cache, and the next `uvx` may make another."""
    return prefix.parent.name.startswith("archive-v") and (prefix / "pyvenv.cfg").is_file()


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    # uv makes environments without pip; it may be a package of this one
    uv = ["uv"] if shutil.which("uv") or not importlib.util.find_spec("uv") else [sys.executable, "-m", "uv"]
    return [*uv, "pip", "install", "--python", sys.executable]


def _source(*extras: str) -> list[str]:
    """This distribution with extras as an installer takes it, from where it was installed (PEP 610)."""
    named = f"{NAME}[{','.join(sorted({*extras}))}]"
    try:
        origin = json.loads(importlib.metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if not url:
        return [named]
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path))
        if not path.exists():  # a wheel that was built for the installation alone
            return [named]
        if origin.get("dir_info", {}).get("editable"):
            return ["--editable", f"{path}{named.removeprefix(NAME)}"]
    if version_control := origin.get("vcs_info"):
        revision = version_control.get("requested_revision")
        url = f"{version_control.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    return [f"{named} @ {url}"]


def _requirements(receipt: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """This distribution in uv's receipt of a tool, and what was installed with it."""
    every = [one for one in receipt.get("tool", {}).get("requirements", ()) if isinstance(one, dict)]
    mine = next((one for one in every if one.get("name") == NAME), {})
    return mine, [one for one in every if one is not mine]


def _with(requirement: dict[str, Any]) -> list[str]:
    """The option of `uv tool install` that installs it again."""
    name = str(requirement.get("name"))
    if extras := requirement.get("extras"):
        name += f"[{','.join(extras)}]"
    if editable := requirement.get("editable"):
        return ["--with-editable", str(editable)]
    if path := requirement.get("path") or requirement.get("directory"):
        return ["--with", f"{name} @ {Path(path).as_uri()}"]
    if git := requirement.get("git"):
        repository, _, revision = str(git).partition("?rev=")
        return ["--with", f"{name} @ git+{repository}" + (f"@{revision}" if revision else "")]
    if url := requirement.get("url"):
        return ["--with", f"{name} @ {url}"]
    return ["--with", name + str(requirement.get("specifier", ""))]


def _read(file: Path) -> dict[str, Any]:
    """What an installer noted about the environment; nothing where it did not, or nobody can read it."""
    try:
        text = file.read_text(encoding="utf-8")
        found: dict[str, Any] = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    return found
