"""JSON files that end with the checksum of their content: run.json and the index of a recording."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from probes.errors import FormatError
from probes.lines import decode_json, encode_json

_CHECKSUM = re.compile(rb',\s*"checksum":\s*"([0-9a-f]{64})"\s*\}\s*\Z')  # how such a file ends


def encode(value: Mapping[str, Any]) -> bytes:
    """Indented JSON whose last key, `checksum`, is the SHA-256 of all bytes before it."""
    text = json.dumps(decode_json(encode_json(dict(value)).encode()), indent=2)
    content = text.removesuffix("\n}").encode("ascii")
    return content + f',\n  "checksum": "{hashlib.sha256(content).hexdigest()}"\n}}\n'.encode("ascii")


def check(data: bytes, *, required: bool = True) -> str:
    """The checksum with which these bytes end; "" where they end with none and none is `required`.

    Raises FormatError where a required one is missing, and where it does not match the content.
    """
    seal = _CHECKSUM.search(data)
    if seal is None:
        if required:
            raise FormatError("it does not end with its checksum: it was damaged or edited")
        return ""
    checksum = seal[1].decode()
    if hashlib.sha256(data[: seal.start()]).hexdigest() != checksum:
        raise FormatError("its checksum does not match its content: it was damaged or edited")
    return checksum
