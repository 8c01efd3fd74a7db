"""JSON files that end with the checksum of their content: run.json and the index of a recording."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from probes.errors import FormatError
from probes.lines import decode_json, encode_json

# How such a file ends, to the byte: as `encode` writes it, and on one line as Python's json does, with and without
# blanks. Any other blank behind the sealed bytes is damage: it would change the file unnoticed.
_ENDINGS = (b',\n  "checksum": "%b"\n}\n', b', "checksum": "%b"}', b',"checksum":"%b"}')
_CHECKSUM = re.compile(b"(?:%b)\\Z" % b"|".join(re.escape(ending) % b"([0-9a-f]{64})" for ending in _ENDINGS))


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
    checksum = seal[seal.lastindex or 0].decode()
    if hashlib.sha256(data[: seal.start()]).hexdigest() != checksum:
        raise FormatError("its checksum does not match its content: it was damaged or edited")
    return checksum
