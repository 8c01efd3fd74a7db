"""What scrubbing costs: the time grows with the text and not faster, whatever begins in it and does not end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from probes import redaction

LONG: dict[str, Callable[[int], str]] = {
    "a word": lambda n: "a" * n,
    "dots": lambda n: "a." * (n // 2),
    "colons": lambda n: "a:" * (n // 2),
    "blanks": lambda n: "a" + " " * n,
    "names": lambda n: "api_key " * (n // 8),
    "equals": lambda n: "=" * n,
    "unclosed quotes": lambda n: "token='\"" * (n // 8),
    "escapes": lambda n: 'token=\\"' * (n // 8),
    "deeper escapes": lambda n: "".join("token=" + "\\" * k + '"' for k in range(1, int((2 * n) ** 0.5))),
    "begins of keys": lambda n: "-----BEGIN PRIVATE KEY-----" * (n // 27),
    "ends of keys": lambda n: "-----BEGIN PRIVATE KEY----" * (n // 26),
    "schemes": lambda n: "a://" * (n // 4),
    "ats": lambda n: "://" + "@" * n,
    "logins": lambda n: "a:b" * (n // 3),
    "dashes": lambda n: "-" * n,
    "options": lambda n: "--a " * (n // 4),
    "prefixes": lambda n: "sk-" * (n // 3),
    "hugging": lambda n: "hf_" * (n // 3),
    "webs": lambda n: "eyJ" + "a" * n,
    "dotted webs": lambda n: "eyJaaaaaaaaa." * (n // 13),
    "errors": lambda n: "TokenError: '" * (n // 13),
    "lists": lambda n: "secret=[" * (n // 8),
    "braces": lambda n: "secret={" * (n // 8),
    "capitals": lambda n: "A" * n + "a=1",
    "bearers": lambda n: "bearer " * (n // 7),
    "login words": lambda n: "login " * (n // 6),
    "wandb": lambda n: "wandb login --" + "a --" * (n // 4),
    "users": lambda n: " -u a" * (n // 5),
    "backslashes": lambda n: "token" + "\\" * n,
    "keys of URLs": lambda n: "?key=" * (n // 5),
    "codes of URLs": lambda n: "&code=a1" * (n // 8),
    "percents": lambda n: "%" * n,
    "encoded": lambda n: "%3Da" * (n // 4),
    "encoded names": lambda n: "token%3D" * (n // 8),
    "encoded again": lambda n: "%25" * (n // 3),
    "encoded logins": lambda n: "%3A%2F%2Fa" * (n // 10),
    "Kaggle's": lambda n: '"username": "a", "key": ' * (n // 24),
    "Kaggle's turned": lambda n: '"key": "a", "username' * (n // 21),
    "arrows": lambda n: "token->" * (n // 7),
    "dashed arrows": lambda n: "token" + "-" * n + ">",
    "columns": lambda n: "A_" * (n // 2) + "\t",
    "tabs": lambda n: "HF_TOKEN" + "\t" * n,
    "shares": lambda n: "smbclient -U " * (n // 13),
    "options of keys": lambda n: "--key a1b2c3d4 " * (n // 15),
    "blocks": lambda n: "api_key: |\n" * (n // 11),
    "blocks of JSON": lambda n: "api_key: |\\n" * (n // 12),
    "lines of a block": lambda n: "api_key: |" + "\n  a" * (n // 4),
    "items": lambda n: "api_key:\n" + "- a\n" * (n // 4),
    "open lists": lambda n: "hf_tokens=[" * (n // 11),
    "three quotes": lambda n: "token='''" * (n // 9),
    "pieces": lambda n: "token='a'" + "\n'b'" * (n // 4),
    "types": lambda n: "token: a[b] | c = " * (n // 18),
    "calls": lambda n: "get('hf_token', " * (n // 16),
    "nested calls": lambda n: "set_token('" * (n // 11),
    "resolvers": lambda n: "${a:hf_token," * (n // 13),
    "alternatives": lambda n: "token or '" * (n // 10),
    "sentences": lambda n: "the token is " * (n // 13),
    "quoted sentences": lambda n: "password '" * (n // 10),
    "values of names": lambda n: "value='a' name=" * (n // 15),
    "pipes": lambda n: "echo a | " * (n // 9),
    "pairs": lambda n: "'token', " * (n // 9),
    "digits": lambda n: "token a1" * (n // 8),
    "ports": lambda n: "a:5432:" * (n // 7),
    "key bodies": lambda n: "MIIEvQ\n" * (n // 7),
    "colours": lambda n: "\x1b[1m" * (n // 4),
    "begins of colours": lambda n: "\x1b[" * (n // 2),
    "links": lambda n: "\x1b]8;;" * (n // 5),
    "escaped letters": lambda n: "\\u0070" * (n // 6),
    "backslashes and escapes": lambda n: "\\" * n + "u0070",
    "entities": lambda n: "&#61;" * (n // 5),
    "continued lines": lambda n: "token \\\n" * (n // 8),
    "blanks of continued lines": lambda n: " \t" * (n // 2) + "\\\n",
    "invisible": lambda n: "pass\u200bword=" * (n // 10),
    "wide": lambda n: "password\uff1a" * (n // 9),
    "headers": lambda n: "a,password\n" * (n // 11),
    "a header": lambda n: "password," * (n // 9) + "a\n",
    "rows": lambda n: "a,password\n" + "b,c1\n" * (n // 5),
    "cells": lambda n: "a,password\n" + "b," * (n // 2),
    "secrets": lambda n: "kind: Secret\ndata:\n  a: b\n" * (n // 27),
    "data of a secret": lambda n: "kind: Secret\ndata:\n" + "  a: |\n" * (n // 7),
    "documents": lambda n: "---\nkind: Secret\n" * (n // 17),
    "JSON of secrets": lambda n: '"kind": "Secret", "data": {' * (n // 26),
    "inputs": lambda n: "a\n input_value=" * (n // 15),
    "refused": lambda n: "api_key\n a input_value=b, input_type=" * (n // 37),
    "digests": lambda n: "digest a=b," * (n // 11),
    "response": lambda n: "digest " * (n // 7) + "response=",
    "comparisons": lambda n: "'a' == " * (n // 7),
    "elements": lambda n: "<a " * (n // 3) + "</",
    "passwords of Chinese": lambda n: "密码为" * (n // 3),
    "lists of objects": lambda n: "hf_tokens=[{(" * (n // 13),
    "closed lists": lambda n: "hf_tokens=[a]" * (n // 13),
    "deep lists": lambda n: "token=" + "[" * (n // 2) + "]" * (n // 2),
    "glued tokens": lambda n: "hf_aB3" * (n // 6),
    "glued web tokens": lambda n: "eyJ" * (n // 3),
    "glued keys": lambda n: "sk-proj-" * (n // 8),
    "sends": lambda n: 'expect password send "a" ' * (n // 25),
    "keys of daemons": lambda n: "munge key " * (n // 10),
    "keys provided": lambda n: "key provided " * (n // 13),
    "bars": lambda n: "|" * n + "token",
    "cells between bars": lambda n: "password | " * (n // 11) + "\n",
    "rows between bars": lambda n: "a | password\n" + "b | c\n" * (n // 6),
    "wide headers": lambda n: "A  PASSWORD\n" * (n // 12),
    "a wide header": lambda n: "password  " * (n // 10) + "\n",
    "wide rows": lambda n: "A  PASSWORD\n" + "b  cc1\n" * (n // 7),
    "decorated cells": lambda n: "**`password`** | " * (n // 18) + "\n",
    "decorations": lambda n: "*`" * (n // 2) + "password",
    "decorated wide headers": lambda n: "`A`  **PASSWORD**\n" * (n // 18),
    "quoted tables": lambda n: "> " * (n // 2) + "password | a",
    "numbers": lambda n: "hf_token: " + "1_" * (n // 2) + "e",
    "keys provided and weak values": lambda n: "API key provided: a1b2c3 " * (n // 25),
    "rulers": lambda n: "a | password\n" + "---\n" * (n // 4),
    "pipes into sudo": lambda n: "echo a | " + "sudo " * (n // 5),
    "paths": lambda n: "password: " + "/a" * (n // 2),
}


def _seconds(text: str) -> float:
    """Processor time, the best of three: other work on the machine does not count."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        redaction._scrubbed(text)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.by_day(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.night) if kind == "open lists" else kind for kind in LONG]
)
def test_the_time_grows_with_the_text_and_not_faster(kind: str) -> None:
    """Eight times the text takes at most 24 times as long (quadratic: 64); what takes no time is not compared."""
    small, large = _seconds(LONG[kind](20_000)), _seconds(LONG[kind](160_000))
    assert large <= 24 * max(small, 0.002), f"{small:.4f} s, then {large:.4f} s"
