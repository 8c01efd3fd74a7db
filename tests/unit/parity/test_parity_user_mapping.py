"""`--mapping FILE.py`: refused before anything starts, with what is wrong, and never executed by the controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.parity.runs import user_mapping


def test_a_mapping_is_taken_with_its_text(tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text("raise SystemExit\ndef sglang_engine(asked, ours): return ours\n")  # not executed here
    spec = user_mapping.load(str(file), "sglang")
    assert spec == {"file": str(file), "source": file.read_text()}
    assert user_mapping.defines(spec, "sglang_engine") and not user_mapping.defines(spec, "sglang_sampling")
    assert not user_mapping.defines({}, "sglang_engine")


@pytest.mark.parametrize("how", ["a, o, *rest", "a, o, extra=1", "*both", "asked, /, ours"])
def test_whatever_can_be_called_with_two_is_taken(tmp_path: Path, how: str) -> None:
    file = tmp_path / "users.py"
    file.write_text(f"def vllm_sampling({how}): return {{}}\n")
    assert user_mapping.load(str(file), "vllm")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe", "cannot be read"),
        (b"def sglang_engine(asked, ours)\n    return ours\n", "users.py:1 is not Python"),
        (b"x = 1\n", "defines no function of a mapping; for sglang it must define sglang_engine or sglang_sampling"),
        (b"def vllm_engine(asked, ours): return ours\n", "defines only vllm_engine; for sglang"),
        (b"def sglang_engine(asked): return asked\n", "users.py:1: sglang_engine takes 1 arguments"),
        (b"def sglang_engine(a, b, c): return a\n", "takes 3 arguments"),
    ],
)
def test_what_is_no_mapping_is_refused_with_one_sentence(tmp_path: Path, text: bytes | None, words: str) -> None:
    file = tmp_path / "users.py"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(BadInput, match=words) as refused:
        user_mapping.load(str(file), "sglang")
    assert "\n" not in str(refused.value)
