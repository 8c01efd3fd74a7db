"""The example in docs/reference/flight-recorder.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def test_the_documented_example_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    [example] = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "flight-recorder.md").read_text(), re.DOTALL
    )
    exec(example, {})
