"""Recognises the source of a program by its content, whatever its name."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from probes import limits

LARGEST_SOURCE = 1 << 20  # bytes; a larger file is no source that a person wrote
_SHELL = re.compile(r"#!\s*\S*[/ ](bash|sh|zsh|dash|ksh)\b")
_STATEMENTS = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef


def interpreter_of(path: Path) -> str:
    """The program that runs this file: python, or the shell of its first line. Empty if it is no source."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_SOURCE:
            return ""
        text = limits.read_file(path).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    if shell := _SHELL.match(text):
        return shell[1]
    return "python" if _is_python(text) else ""


def _is_python(text: str) -> bool:
    """Whether a text as a whole is Python that imports or defines something. A word or a list of JSON is Python too."""
    if not any(word in text for word in ("import ", "def ", "class ")):
        return False  # at once, as most logs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its strings
            statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(statement, _STATEMENTS) for statement in statements)
