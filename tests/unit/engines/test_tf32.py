"""TF32 is forbidden to the processes of an engine of ours, and left as it was to the native stage's."""

from __future__ import annotations

import os

import pytest

from scenarios.engines import tf32


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tf32.FORBIDDEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tf32, "_ours", set())


def test_it_is_allowed_on_a_gpu_until_it_is_forbidden() -> None:
    assert tf32.allowed("cuda") and not tf32.allowed("cpu")
    assert tf32.forbid("cuda", pure=False) and not tf32.allowed("cuda")
    assert tf32.forbid("cuda", pure=False), "an engine that starts again in the same process"
    assert not tf32.forbid("cuda", pure=True) and tf32.allowed("cuda")
    assert not tf32.forbid("cpu", pure=False) and not set(tf32.FORBIDDEN) & set(os.environ)


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32x3")
    assert not tf32.forbid("cuda", pure=False) and tf32.allowed("cuda")
    assert not tf32.forbid("cuda", pure=True)
    assert os.environ["TRITON_F32_DEFAULT"] == "tf32x3" and "NVIDIA_TF32_OVERRIDE" not in os.environ
