"""The command that adds an extra, or a newer version, to this installation, however it was made."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from harness import extras
from harness.errors import BadInput

PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an environment with this distribution, as if it came from an index."""
    installed_from(tmp_path, {})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def installed_from(prefix: Path, origin: dict[str, object]) -> None:
    folder = prefix / "site" / "rlhf_harness-9.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    requires = (
        'Requires-Dist: numpy>=1.26; extra == "diff"\nRequires-Dist: scipy>=1.12; extra == "diff"\n'
        'Requires-Dist: rlhf-harness[diff]; extra == "parity"\nRequires-Dist: torch; extra == "parity"\n'
    )
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rlhf-harness\nVersion: 9\n{requires}")
    (folder / "direct_url.json").write_text(json.dumps(origin))


def test_the_extra_of_a_module() -> None:
    assert [extras.bringing(name) for name in ("numpy", "ray", "num", "nothing")] == ["diff", "parity", "", ""]


@pytest.mark.parametrize(
    ("command", "module", "needed"),
    [
        ("diff", "numpy", ("diff",)),
        ("replay", "numpy", ("parity",)),  # the extra of numpy would end in the next refusal, of ray
        ("nightly", "sqlalchemy", ("nightly", "parity")),
        ("history", "sqlalchemy", ("nightly",)),
        ("nightly", "somebody_elses", ()),
    ],
)
def test_a_command_asks_for_all_that_it_needs_at_once(command: str, module: str, needed: tuple[str, ...]) -> None:
    assert extras.of_command(command, module) == needed


def test_several_extras_are_added_by_a_single_command(prefix: Path) -> None:
    assert shlex.split(extras.install_command("nightly", "parity")) == [*PIP, "rlhf-harness[nightly,parity]"]


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({}, ["rlhf-harness[diff]"]),
        ({"url": "{prefix}"}, ["rlhf-harness[diff] @ {prefix}"]),
        ({"url": "{prefix}/gone-1-py3-none-any.whl"}, ["numpy>=1.26", "scipy>=1.12"]),
        ({"url": "{prefix}", "dir_info": {"editable": True}}, ["--editable", "{path}[diff]"]),
        ({"url": "https://host/it", "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "1"}},
         ["rlhf-harness[diff] @ git+https://host/it@main"]),
    ],
    ids=["index", "path", "gone", "editable", "git"],
)  # fmt: skip
def test_an_extra_comes_from_the_same_source(prefix: Path, origin: dict[str, object], words: list[str]) -> None:
    def filled(text: str) -> str:
        return text.replace("{prefix}", prefix.as_uri()).replace("{path}", str(prefix))

    installed_from(prefix, json.loads(filled(json.dumps(origin))))
    assert shlex.split(extras.install_command("diff")) == [*PIP, *map(filled, words)]


UV = """
[tool]
requirements = [
    { name = "rlhf-harness", extras = ["nightly"] },
    { name = "one", specifier = ">=2" },
    { name = "two", extras = ["x"], path = "/wheels/two.whl" },
    { name = "three", editable = "/three" },
    { name = "four", git = "https://host/four?rev=main" },
    { name = "five", directory = "/fi ve" },
    { name = "six", url = "https://host/six.whl" },
]
"""


def test_a_tool_of_uv_keeps_its_extras_and_its_plugins(prefix: Path) -> None:
    (prefix / "uv-receipt.toml").write_text(UV)
    assert shlex.split(extras.install_command("diff")) == [
        "uv", "tool", "install", "rlhf-harness[diff,nightly]", "--with", "one>=2", "--with",
        "two[x] @ file:///wheels/two.whl", "--with-editable", "/three", "--with", "four @ git+https://host/four@main",
        "--with", "five @ file:///fi%20ve", "--with", "six @ https://host/six.whl",
    ]  # fmt: skip
    assert extras.upgrade_command() == "uv tool upgrade rlhf-harness"


def test_pipx_keeps_its_extras(prefix: Path) -> None:
    (prefix / "pipx_metadata.json").write_text('{"main_package": {"package_or_url": "rlhf-harness[nightly]==9"}}')
    assert extras.install_command("diff") == "pipx install --force 'rlhf-harness[diff,nightly]'"
    assert extras.upgrade_command() == "pipx upgrade rlhf-harness"


def test_an_environment_of_uvx_is_not_changed_but_made_again(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached = tmp_path / "archive-v0" / "qvrEB23sMjEWFRxr"
    cached.mkdir(parents=True)
    (cached / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.13.9\n")
    monkeypatch.setattr(sys, "prefix", str(cached))
    assert shlex.split(extras.install_command("diff")) == ["uvx", "--from", "rlhf-harness[diff]", "harness", "--help"]
    assert extras.upgrade_command() == "uvx --refresh --from rlhf-harness harness --version"


@pytest.mark.parametrize("receipt", ["", "\0", '[tool]\nrequirements = ["rlhf-harness"]'])
def test_a_receipt_that_nobody_can_read_ends_nothing(prefix: Path, receipt: str) -> None:
    (prefix / "uv-receipt.toml").write_text(receipt)
    assert "rlhf-harness[diff]" in extras.install_command("diff")


def test_an_environment_with_pip_is_upgraded_by_its_own(prefix: Path) -> None:
    assert shlex.split(extras.upgrade_command()) == [*PIP, "--upgrade", "rlhf-harness"]


def test_an_extra_that_takes_in_another_brings_that_one_s_too(prefix: Path) -> None:
    installed_from(prefix, {"url": f"{prefix.as_uri()}/gone-1-py3-none-any.whl"})
    assert shlex.split(extras.install_command("parity")) == [*PIP, "numpy>=1.26", "scipy>=1.12", "torch"]


def test_a_checkout_is_pulled_and_an_address_is_installed_again(prefix: Path) -> None:
    installed_from(prefix, {"url": prefix.as_uri(), "dir_info": {"editable": True}})
    assert shlex.split(extras.upgrade_command()) == ["git", "-C", str(prefix), "pull"]
    installed_from(prefix, {"url": "https://host/it", "vcs_info": {"vcs": "git"}})
    assert shlex.split(extras.upgrade_command()) == [*PIP, "--upgrade", "rlhf-harness @ git+https://host/it"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (".", ".[nightly,parity]"),
        ("wheels/it-1-py3-none-any.whl", "wheels/it-1-py3-none-any.whl[nightly,parity]"),
        ("git+https://host/it@main", "rlhf-harness[nightly,parity] @ git+https://host/it@main"),
        ("==9", "rlhf-harness[nightly,parity]==9"),
    ],
)
def test_a_source_is_a_path_an_address_or_a_version_of_an_index(source: str, words: str) -> None:
    assert extras.requirement(source, "parity", "nightly") == words


def test_what_only_this_machine_has_is_no_source_for_others(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.source_for_others() == "==9"
    installed_from(prefix, {"url": "https://host/it", "vcs_info": {"vcs": "git", "requested_revision": "main"}})
    assert extras.source_for_others() == "git+https://host/it@main"
    installed_from(prefix, {"url": prefix.as_uri(), "dir_info": {"editable": True}})
    with pytest.raises(BadInput) as refused:
        extras.source_for_others()
    assert str(refused.value.fix).startswith("--source wheels/rlhf_harness-9-py3-none-any.whl ")
    monkeypatch.chdir(prefix)
    assert extras.source_for_others() == "."


def test_packages_are_installed_into_an_environment_with_or_without_pip(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert shlex.split(extras.install_into(str(python), "x")) == [str(python), "-m", "pip", "install", "x"]
    (tmp_path / "pyvenv.cfg").touch()
    assert shlex.split(extras.install_into(str(python), "x"))[-5:] == ["pip", "install", "--python", str(python), "x"]
    (tmp_path / "lib" / "python3.11" / "site-packages" / "pip").mkdir(parents=True)
    assert shlex.split(extras.install_into(str(python), "x"))[0] == str(python)
