"""Tests of one CUDA device: `make gpu`; or, where only the core, torch and Transformers are installed,
`python -m pytest --confcutdir tests/gpu tests/gpu`. HARNESS_TEST_DEVICE=cpu runs those that any device can show."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = os.environ.get("HARNESS_TEST_DEVICE", "cuda")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: what no other device shows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = DEVICE != "cuda" or torch.cuda.is_available()
    for item in items:
        if not there or (DEVICE != "cuda" and item.get_closest_marker("cuda")):
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(DEVICE)
