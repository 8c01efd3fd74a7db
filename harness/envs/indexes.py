"""Translate pip's indexes, find-links and certificates into uv's variables, because uv does not read pip's
configuration.

This module imports the standard library only: it is used to make the project's own environment before anything is
installed.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping

# pip's option -> (uv's variable, other variables in which a user may already have set the same for uv)
_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", ("UV_INDEX_URL",)),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", ("UV_INDEX",)),
    "find-links": ("UV_FIND_LINKS", ()),
    "trusted-host": ("UV_INSECURE_HOST", ()),
    "cert": ("SSL_CERT_FILE", ()),
    "client-cert": ("SSL_CLIENT_CERT", ()),
    "proxy": ("ALL_PROXY", ("HTTPS_PROXY", "https_proxy", "all_proxy")),
    "timeout": ("UV_HTTP_TIMEOUT", ("UV_REQUEST_TIMEOUT",)),
    "no-index": ("UV_NO_INDEX", ()),
}
_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url", "i": "index-url", "f": "find-links"}
_SECTIONS = ("global", "install", ":env:")  # pip's precedence: a later one replaces the option of an earlier one


def pip_configuration(python: str = sys.executable, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the options that `pip install` of that interpreter would use, as pip lists them; without pip, those of
    `PIP_*`.
    """
    base = getattr(sys, "_base_executable", python)  # an environment made by uv has no pip, but its base may have one
    for candidate in dict.fromkeys((python, base)):
        command = [candidate, "-m", "pip", "config", "list"]
        answer = subprocess.run(
            command, env=dict(environ), cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if answer.returncode == 0:
            return parse(answer.stdout)
    return {_option(name[4:]): value for name, value in environ.items() if name.startswith("PIP_") and value}


def parse(listing: str) -> dict[str, str]:
    """Parse the output of `pip config list`, whose lines are `section.option='value'`."""
    by_section: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        key, separator, literal = line.partition("=")
        section, dot, option = key.rpartition(".")
        if not separator or not dot:
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            value = literal
        by_section.setdefault(section, {})[_option(option)] = str(value)
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= by_section.get(section, {})
    return merged


def uv_environment(pip: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for uv: `environ`, and pip's configuration where the user has not configured uv."""
    result = dict(environ)
    for option, (variable, alternatives) in _NAMES.items():
        words = pip.get(option, "").split()
        if not words or any(environ.get(name) for name in (variable, *alternatives)):
            continue
        if option == "no-index":
            if words[0].lower() in ("1", "true", "yes", "on"):
                result[variable] = "1"
        elif option == "find-links":  # relative paths refer to this directory, and uv runs in another one
            local = (word if "://" in word else os.path.abspath(os.path.expanduser(word)) for word in words)
            result[variable] = ",".join(local)
        else:
            result[variable] = " ".join(words)
    if "UV_EXTRA_INDEX_URL" in result or "UV_INDEX" in result:
        # pip uses the best version of all indexes. By default uv stops at the first index that has the package.
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result


def _option(name: str) -> str:
    name = name.lower().replace("_", "-")
    return _ALIASES.get(name, name)
