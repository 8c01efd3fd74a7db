"""An embedded engine on a bench, for the tests of attribution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from bench_lab import Lab
from ppo_support import random_models

from scenarios.ppo.roles import ActorRole
from scenarios.remote import Actor, Local
from scenarios.settings import Scenario


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    torch.set_num_threads(1)  # idle OpenMP threads spin
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def actor(paths: dict[str, str]) -> Iterator[Actor]:
    made = Local(ActorRole, Scenario().to_json(), dict(paths), urgent=("abort_sync",))
    yield made
    made.stop()


@pytest.fixture
def sessions() -> Iterator[list[Actor]]:
    started: list[Actor] = []
    yield started
    for one in started:
        one.stop()


@pytest.fixture
def lab(paths: dict[str, str], actor: Actor, sessions: list[Actor]) -> Lab:
    return Lab(paths, actor, sessions)
