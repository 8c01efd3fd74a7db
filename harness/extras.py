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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.errors import BadInput
from probes.distribution import NAME, named


def bringing(module: str) -> str:
    """The extra that brings a module; empty where none does."""
    try:
        wanted = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""
    matches = (re.match(rf"{re.escape(module)}\b.*extra == [\"'](\w+)[\"']", declared) for declared in wanted)
    return next((match[1] for match in matches if match), "")


def need(module: str) -> None:
    """Raises ModuleNotFoundError, which the command line turns into a sentence, before a program fails without it."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation and keeps what it has: another source than an index, other
    extras, plug-ins. Where the source is gone, it installs what the extra brings."""
    prefix, origin = Path(sys.prefix), _origin()
    if origin.temporary:
        return shlex.join([*_installer(), *_brought(extra)])
    if receipt := _read(prefix / "uv-receipt.toml"):
        mine, companions = _requirements(receipt)
        kept = [word for companion in companions for word in _with(companion)]
        return shlex.join(["uv", "tool", "install", *origin.words(*mine.get("extras", ()), extra), *kept])
    if receipt := _read(prefix / "pipx_metadata.json"):
        match = re.search(rf"{NAME}\[([^]]*)\]", str(receipt.get("main_package", {}).get("package_or_url")))
        return shlex.join(["pipx", "install", "--force", *origin.words(*(match[1].split(",") if match else ()), extra)])
    if _of_uvx(prefix):
        return shlex.join(["uvx", "--from", origin.words(extra)[-1], "harness", "--help"])
    return shlex.join([*_installer(), *origin.words(extra)])


def repair_command(package: str) -> str:
    """The command that installs again what this distribution requires, in the version that it asks for."""
    try:
        wanted = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        wanted = []
    named = (
        declared for declared in wanted if re.match(rf"{re.escape(package)}\b(?!-)", declared) and ";" not in declared
    )
    return shlex.join([*_installer(), next(named, package)])


def upgrade_command() -> str:
    """The command that brings this installation to the newest version of its source."""
    prefix, origin = Path(sys.prefix), _origin()
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool upgrade {NAME}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx upgrade {NAME}"
    if _of_uvx(prefix):
        return shlex.join(["uvx", "--refresh", "--from", origin.words()[-1], "harness", "--version"])
    pull = f"git -C {shlex.quote(str(origin.path))} pull"
    if origin.editable:
        return pull
    install = shlex.join([*_installer(), "--upgrade", *origin.words()])
    if origin.path is None:
        return install
    return f"{pull} && {install}" if origin.path.is_dir() else f"{shlex.join(_installer())} WHEEL   # a newer one"


def requirement(source: str, *extras: str) -> str:
    """This distribution with extras as pip takes it from a source: a checkout or a wheel by its path, an address, or a
    version of an index (==1.2)."""
    if source.startswith("=="):
        return f"{NAME}{named(*extras)}{source}"
    return f"{NAME}{named(*extras)} @ {source}" if "://" in source else f"{source}{named(*extras)}"


def source_for_others() -> str:
    """Where another machine can install this version from, for `requirement`. In the checkout itself that is the
    repository of whoever asks. Raises BadInput for what only this machine has."""
    origin = _origin()
    if origin.path is not None and origin.path == Path.cwd():
        return "."
    if origin.path is None and not origin.temporary:
        return origin.url or f"=={importlib.metadata.version(NAME)}"
    wheel = Path("wheels") / f"{NAME.replace('-', '_')}-{importlib.metadata.version(NAME)}-py3-none-any.whl"
    made = f"pip wheel --no-deps --wheel-dir wheels {shlex.quote(str(origin.path or 'CHECKOUT'))}"
    raise BadInput(
        f"a runner cannot install the harness from {origin.path or 'a wheel that is gone'}, which is on this machine",
        fix=f"--source {wheel}   # committed; made by: {made}",
    )


@dataclass(frozen=True)
class _Origin:
    """Where this distribution was installed from (PEP 610). All empty: from an index."""

    url: str = ""  # with the version control's own name before it, and the revision behind
    path: Path | None = None  # of a checkout or a wheel on this machine
    editable: bool = False
    temporary: bool = False  # a wheel that was built for the installation alone

    def words(self, *extras: str) -> list[str]:
        """The distribution with extras as an installer takes it."""
        if self.editable:
            return ["--editable", f"{self.path}{named(*extras)}"]
        return [f"{NAME}{named(*extras)} @ {self.url}" if self.url else f"{NAME}{named(*extras)}"]


def _origin() -> _Origin:
    # In a checkout its own build leaves an egg-info beside the installation, which does not say from where it came.
    installed = importlib.metadata.distributions(name=NAME)
    origins = filter(None, (distribution.read_text("direct_url.json") for distribution in installed))
    try:
        origin = json.loads(next(origins, "{}"))
    except ValueError:
        origin = {}
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path))
        if not path.exists():
            return _Origin(temporary=True)
        return _Origin(url, path, editable=bool(origin.get("dir_info", {}).get("editable")))
    if version_control := origin.get("vcs_info"):
        revision = version_control.get("requested_revision")
        url = f"{version_control.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    return _Origin(url)


def _brought(extra: str) -> list[str]:
    """What an extra installs, those that it takes in too."""
    wanted: list[str] = []
    for line in importlib.metadata.requires(NAME) or []:
        if match := re.match(rf"(.*?)\s*;.*extra == [\"']{re.escape(extra)}[\"']", line):
            inner = re.match(rf"{NAME}\[([^]]*)\]", match[1])
            wanted += [item for name in inner[1].split(",") for item in _brought(name)] if inner else [match[1]]
    return list(dict.fromkeys(wanted))


def _of_uvx(prefix: Path) -> bool:
    """An environment that `uvx` made: it lies in uv's cache, and the next `uvx` may make another."""
    return prefix.parent.name.startswith("archive-v") and (prefix / "pyvenv.cfg").is_file()


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    # uv makes environments without pip; it may be a package of this one
    uv = ["uv"] if shutil.which("uv") or not importlib.util.find_spec("uv") else [sys.executable, "-m", "uv"]
    return [*uv, "pip", "install", "--python", sys.executable]


def _requirements(receipt: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """This distribution in uv's receipt of a tool, and what was installed with it."""
    requirements = [entry for entry in receipt.get("tool", {}).get("requirements", ()) if isinstance(entry, dict)]
    mine = next((entry for entry in requirements if entry.get("name") == NAME), {})
    return mine, [entry for entry in requirements if entry is not mine]


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
        receipt: dict[str, Any] = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    return receipt
