"""Secrets taken out of command lines and messages, by the names that `probes.environment` withholds and by shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.environment import SECRET, USERINFO

WITHHELD = "***"
MAX_TEXT = 4_000
# What says which member of the job a process is and how it talks to the others. Names are listed, not matched by a
# prefix: RAY_JOB_CONFIG_JSON_ENV_VAR, for one, holds the variables that the user gave to the whole job.
VARIABLES = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|ROLE_RANK|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_RUN_ID|TORCHELASTIC_RESTART_COUNT|CUDA_VISIBLE_DEVICES"
    r"|TORCH_EXTENSIONS_DIR"
    r"|RAY_ADDRESS|RAY_JOB_ID|RAY_RAYLET_PID|RAY_NODE_ID|RLHF_HARNESS_(WATCH|ROLE)"
    r"|(TORCH_FR|TORCH_NCCL|NCCL|GLOO)_[A-Z0-9_]+"
)
_NAME = (
    r"[\w.\-]*(?:KEY|TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|PASS\b|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|CERT|DSN"
    r"|(?<![A-Z])PAT(?![A-Z]))"
)
# KeyError and its kin are no names of secrets: what stands behind them is the first error, which a verdict needs.
_ERROR = r"(?<![\w.\-])(?![\w.]*(?:Error|Exception): )"
_ASSIGNED = re.compile(
    rf"{_ERROR}({_NAME}[\w.\-]*[\"']?\s*[=:]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"',;&}}]+", re.IGNORECASE
)
# Tokens of Hugging Face, OpenAI, GitHub, AWS, Slack, Google, JSON web tokens, W&B (40 hex digits).
_SHAPED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_\-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|AKIA[A-Z0-9]{12,}"
    r"|xox[a-z]-[A-Za-z0-9\-]{8,}|AIza[A-Za-z0-9_\-]{20,}|eyJ[A-Za-z0-9_\-]{8,}[.A-Za-z0-9_\-]*|[0-9a-f]{40})\b"
)
_LOGIN = re.compile(r"[\w.\-+%]+:[^\s:/@\"']+@(?=[\w.\-\[])")  # user:password@host without a scheme
_FLAG = re.compile(r"--?[A-Za-z][\w.\-]*")


def command(argv: Iterable[str]) -> str:
    """A command line as text, values of secrets replaced: `--token=x`, `--token x`, `API_KEY=x`, user:password@host."""
    shown, withhold = [], False
    for argument in argv:
        if withhold and not argument.startswith("-"):
            shown.append(WITHHELD)
        else:
            shown.append(text(argument))
        withhold = bool(_FLAG.fullmatch(argument) and SECRET.search(argument))
    return " ".join(shown)[:MAX_TEXT]


def text(message: str, limit: int = MAX_TEXT) -> str:
    """A message, a title or one argument without what looks like a secret, at most `limit` characters."""
    message = message.encode("utf-8", "replace").decode()
    message = _LOGIN.sub(f"{WITHHELD}@", USERINFO.sub("", message))
    message = _ASSIGNED.sub(rf"\g<1>{WITHHELD}", message)
    return _SHAPED.sub(WITHHELD, message)[:limit]


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say who the process is in the job; none whose name sounds like a secret."""
    kept = {name: value for name, value in environ.items() if VARIABLES.fullmatch(name) and not SECRET.search(name)}
    return {name: text(kept[name], 500) for name in sorted(kept)}


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a span or an event: those with a secret's name are left out, texts are cleaned."""
    return {str(name): _clean(value) for name, value in values.items() if not SECRET.search(str(name))}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return fields(value)
    return [_clean(item) for item in value] if isinstance(value, (list, tuple)) else value
