"""A source of a program is recognised by its content, and a log that quotes one is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.program_source import interpreter_of


@pytest.mark.parametrize(
    ("content", "interpreter"),
    [
        ("import os\nprint('CUDA out of memory')\n", "python"),
        ("#!/usr/bin/env python\ndef main():\n    pass\n", "python"),
        ("#!/bin/bash\ntorchrun train.py\n", "bash"),
        ("#! /usr/bin/env sh\n", "sh"),
        ("step 1\nimport os\nSegmentation fault\n", ""),
        ('Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    import os\n', ""),
        ("done", ""),
        ('[{"pid": 1, "frames": []}]', ""),
        ("", ""),
    ],
)
def test_the_interpreter_of_a_source(tmp_path: Path, content: str, interpreter: str) -> None:
    file = tmp_path / "job.log"
    file.write_text(content)
    assert interpreter_of(file) == interpreter


def test_a_folder_and_bytes_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(b"\x80\x04import os")
    assert interpreter_of(tmp_path) == interpreter_of(tmp_path / "dump") == ""
