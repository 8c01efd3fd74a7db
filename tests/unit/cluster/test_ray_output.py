"""What Ray says by itself does not stand in a verdict."""

from __future__ import annotations

import pytest
from ray._private import worker

from harness.cluster.ray_output import warnings_aside


def test_a_warning_of_the_raylet_goes_to_the_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)  # Ray's own comes back afterwards
    warning = {"lines": ["WARNING: 8 PYTHON worker processes"], "pid": "raylet", "is_err": False}
    for _ in range(2):
        warnings_aside()
        worker.print_to_stdstream(warning, ignore_prefix=False)  # as listen_error_messages calls it
    out, err = capfd.readouterr()
    assert out == "" and "8 PYTHON worker processes" in err
