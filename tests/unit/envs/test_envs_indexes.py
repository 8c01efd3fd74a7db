"""pip's configuration in uv's words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.envs.indexes import parse, pip_configuration, uv_environment


def test_a_listing_is_merged_in_the_precedence_of_pip() -> None:
    listing = "global.index-url='https://a/index'\nglobal.timeout='5'\ninstall.index-url='https://b/index'\n:env:.timeout='9'\n"
    assert parse(listing) == {"index-url": "https://b/index", "timeout": "9"}


def test_values_over_several_lines_and_aliases_are_understood() -> None:
    listing = "global.extra-index-url='\\nhttps://a/index\\nhttps://b/index'\n:env:.default-timeout='180'\nnonsense\n"
    assert parse(listing) == {"extra-index-url": "\nhttps://a/index\nhttps://b/index", "timeout": "180"}


def test_other_commands_of_pip_do_not_count() -> None:
    assert parse("download.index-url='https://a/index'\n") == {}


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"index-url": "https://a/index"}, {"UV_DEFAULT_INDEX": "https://a/index"}),
        ({"find-links": "/wheels https://b/wheels"}, {"UV_FIND_LINKS": "/wheels,https://b/wheels"}),
        ({"trusted-host": "a b"}, {"UV_INSECURE_HOST": "a b"}),
        ({"cert": "/etc/ca.pem"}, {"SSL_CERT_FILE": "/etc/ca.pem"}),
        ({"client-cert": "/etc/me.pem"}, {"SSL_CLIENT_CERT": "/etc/me.pem"}),
        ({"proxy": "http://p:1"}, {"ALL_PROXY": "http://p:1"}),
        ({"timeout": "180"}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"no-index": "true"}, {"UV_NO_INDEX": "1"}),
        ({"no-index": "false"}, {}),
        ({"quiet": "3"}, {}),
    ],
)
def test_each_option_has_its_variable(pip: dict[str, str], uv: dict[str, str]) -> None:
    assert uv_environment(pip, {}) == uv


def test_several_indexes_compete_as_they_do_in_pip() -> None:
    found = uv_environment({"extra-index-url": "https://a/index\nhttps://b/index"}, {})
    assert found.pop("UV_INDEX_STRATEGY") == "unsafe-best-match"
    assert found == {"UV_EXTRA_INDEX_URL": "https://a/index https://b/index"}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_what_the_user_told_uv_stays(name: str) -> None:
    environ = {name: "https://mine/index", "OTHER": "x"}
    assert uv_environment({"index-url": "https://a/index"}, environ) == environ


def test_the_users_strategy_stays() -> None:
    found = uv_environment({"extra-index-url": "https://a"}, {"UV_INDEX_STRATEGY": "first-index"})
    assert found["UV_INDEX_STRATEGY"] == "first-index"


def test_a_relative_find_links_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uv_environment({"find-links": "wheels"}, {}) == {"UV_FIND_LINKS": str(tmp_path / "wheels")}


def test_without_pip_the_variables_alone_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nexit 1\n")
    mute.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(mute), raising=False)
    environ = {"PIP_FIND_LINKS": "/wheels", "PIP_DEFAULT_TIMEOUT": "7", "PIP_CERT": "", "HOME": "/x"}
    found = pip_configuration(str(mute), environ)
    assert found == {"find-links": "/wheels", "timeout": "7"}


@pytest.mark.slow
def test_pip_itself_says_what_it_is_configured_with(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://a.invalid/index\n[install]\nfind-links = /w1\n  /w2\n")
    found = pip_configuration(environ={"PIP_CONFIG_FILE": str(file), "HOME": str(tmp_path), "PIP_TIMEOUT": "4"})
    assert found["index-url"] == "https://a.invalid/index"
    assert found["find-links"].split() == ["/w1", "/w2"]
    assert found["timeout"] == "4"
