"""The extras of this distribution: which one brings a module, and the command that adds it to this installation.

The command depends on how the installation was made.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
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

# The extras that a command needs in all, by its first word: the one that brings the first module which is missing may
# lack the next. Any other command needs what brings the module.
_OF_COMMANDS = {
    "nightly": ("nightly", "parity"),  # its cells are `harness parity`
    **dict.fromkeys(("bisect", "faults", "parity", "replay", "run", "up"), ("parity",)),
}


def bringing(module: str) -> str:
    """The extra that brings a module; empty if none does."""
    for declared in _declared():
        if match := re.match(rf"{re.escape(module)}\b.*extra == [\"'](\w+)[\"']", declared):
            return match[1]
    return ""


def _declared() -> list[str]:
    """The requirements of this distribution, those of its extras too."""
    try:
        return importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []


def need(module: str) -> None:
    """Raise ModuleNotFoundError if a module is missing, before a program fails without it. The command line explains
    it."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def of_command(command: str, module: str) -> tuple[str, ...]:
    """The extras that a command of the harness needs, which misses a module; none where no extra brings the module."""
    extra = bringing(module)
    needed = _OF_COMMANDS.get(command, ())
    return (needed or (extra,)) if extra else ()


def install_command(*extras: str) -> str:
    """The command that adds extras to this installation.

    It keeps the installation's source, its other extras and its plug-ins. If the source is gone, it installs only what
    the extras bring.
    """
    prefix, origin = Path(sys.prefix), _origin()
    if origin.temporary:
        return shlex.join([*_installer(), *dict.fromkeys(itertools.chain.from_iterable(map(_brought, extras)))])
    if receipt := _read(prefix / "uv-receipt.toml"):
        entry, companions = _requirements(receipt)
        kept = [word for companion in companions for word in _with(companion)]
        return shlex.join(["uv", "tool", "install", *origin.words(*entry.get("extras", ()), *extras), *kept])
    if receipt := _read(prefix / "pipx_metadata.json"):
        mine = _named_extras(str(receipt.get("main_package", {}).get("package_or_url")))
        return shlex.join(["pipx", "install", "--force", *origin.words(*mine, *extras)])
    if _of_uvx(prefix):
        return shlex.join(["uvx", "--from", origin.words(*extras)[-1], "harness", "--help"])
    return shlex.join([*_installer(), *origin.words(*extras)])


def repair_command(package: str) -> str:
    """The command that installs a required package again, in the version that this distribution requires."""
    required = [declared for declared in _declared() if ";" not in declared]  # what is behind a ; is of an extra
    versioned = (declared for declared in required if re.match(rf"{re.escape(package)}\b(?!-)", declared))
    return shlex.join([*_installer(), next(versioned, package)])


def upgrade_command() -> str:
    """The command that upgrades this installation to the newest version of its source."""
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
    """This distribution with extras in pip's syntax.

    `source`: the path of a checkout or a wheel, a URL, or a version of an index (==1.2).
    """
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
    """Where this distribution was installed from (PEP 610). All fields are empty for an index."""

    url: str = ""  # with the name of the version control in front, and the revision at the end
    path: Path | None = None  # a checkout or a wheel on this machine
    editable: bool = False
    temporary: bool = False  # a wheel that was built only for the installation

    def words(self, *extras: str) -> list[str]:
        """The distribution with extras as arguments of an installer."""
        if self.editable:
            return ["--editable", f"{self.path}{named(*extras)}"]
        return [f"{NAME}{named(*extras)} @ {self.url}" if self.url else f"{NAME}{named(*extras)}"]


def _origin() -> _Origin:
    # In a checkout, its build leaves an egg-info beside the installation, which does not record a source.
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
    """What an extra installs, including the extras that it includes."""
    brought: list[str] = []
    for declared in _declared():
        if match := re.match(rf"(.*?)\s*;.*extra == [\"']{re.escape(extra)}[\"']", declared):
            included = _named_extras(match[1])
            brought += itertools.chain.from_iterable(map(_brought, included)) if included else [match[1]]
    return list(dict.fromkeys(brought))


def _named_extras(requirement: str) -> list[str]:
    """The extras of this distribution in a requirement: rlhf-harness[diff,nightly]; none of any other."""
    match = re.search(rf"{NAME}\[([^]]*)\]", requirement)
    return match[1].split(",") if match else []


def _of_uvx(prefix: Path) -> bool:
    """Whether `uvx` made this environment: it is in uv's cache, and the next `uvx` may make another one."""
    return prefix.parent.name.startswith("archive-v") and (prefix / "pyvenv.cfg").is_file()


def install_into(python: str, *requirements: str) -> str:
    """The command that installs packages for an interpreter, whether its environment has pip or uv made it without."""
    return f"{_installer_of(python)} {shlex.join(requirements)}"


def _installer_of(python: str) -> str:
    venv = Path(python).parent.parent
    is_without_pip = (venv / "pyvenv.cfg").is_file() and not any(venv.glob("lib/python*/site-packages/pip"))
    return shlex.join([*_uv(), "pip", "install", "--python", python] if is_without_pip else
                      [python, "-m", "pip", "install"])  # fmt: skip


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    return [*_uv(), "pip", "install", "--python", sys.executable]  # uv makes environments without pip


def _uv() -> list[str]:
    """How uv is called, which may be a package of this environment alone."""
    return ["uv"] if shutil.which("uv") or not importlib.util.find_spec("uv") else [sys.executable, "-m", "uv"]


def _requirements(receipt: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entry of this distribution in uv's receipt of a tool, and the entries of what was installed with it."""
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
    """What an installer noted about the environment; {} if there is no such file or it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
        receipt: dict[str, Any] = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    return receipt
