"""What the probes look at and what they must not touch: shapes, never values; the environment, never secrets."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes import collectives, environment, shapes, weights
from probes.format import Run, write_manifest
from probes.install import start

ROOT = Path(__file__).parents[3]


class Guarded:
    """A tensor on a device that must not be asked for anything but its shape, dtype and device."""

    shape, dtype, device = torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1")

    def __getattribute__(self, name: str) -> Any:
        if name not in ("shape", "dtype", "device", "__class__"):
            raise AssertionError(f"a shape probe asked for {name}")
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        raise AssertionError("a shape probe asked for the length")


def test_shapes_never_read_a_value(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    tensors = {
        "guarded": Guarded(), "meta": torch.empty(4, 0, device="meta"), "numpy": np.zeros((2,), "int64"),
        "list": [1, 2, 3], "scalar": 7, "absent": None,
    }  # fmt: skip
    with start(tmp_path, role="actor") as recorder:
        recorder.shapes("experience", tensors, step=2, padded_tokens=64, real_tokens=40, longest=9, samples=8)
    event = next(Run(tmp_path).events("shapes"))
    assert event["tensors"] == {
        "guarded": [[2, 3], "bfloat16", "cuda:1"], "meta": [[4, 0], "float32", "meta"], "numpy": [[2], "int64", "cpu"],
        "list": [[3], "list", "python"], "scalar": [[], "int", "python"], "absent": None,
    }  # fmt: skip
    sizes = {"phase": "experience", "step": 2, "padded_tokens": 64, "real_tokens": 40, "longest": 9, "samples": 8}
    assert event.items() >= sizes.items()


@pytest.mark.slow
def test_a_value_on_a_device_is_not_read_behind_ones_back(tmp_path: Path) -> None:
    with start(tmp_path, role="actor") as recorder, pytest.raises(TypeError, match="would synchronise the device"):
        recorder.event("step", loss=torch.empty((), device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_a_digest_is_the_same_in_torch_and_numpy(dtype: torch.dtype) -> None:
    tensor = (torch.arange(12).reshape(3, 4) % 3).to(dtype)
    assert weights.digest(tensor) == weights.digest(tensor.numpy())
    assert weights.digest(tensor.t()) == weights.digest(tensor.numpy().T) != weights.digest(tensor)
    assert weights.digest(tensor[:, ::2]) == weights.digest(tensor.numpy()[:, ::2])


def test_a_digest_is_what_its_documentation_says() -> None:
    tensor = torch.tensor([[1.0, 2.0]], dtype=torch.float32)
    expected = hashlib.sha256(b"float32:1,2\n" + np.array([1, 2], "<f4").tobytes()).hexdigest()[:32]
    assert weights.digest(tensor) == expected
    scalar = hashlib.sha256(b"uint8:\n\1").hexdigest()[:32]
    assert weights.digest(torch.tensor(1, dtype=torch.uint8)) == scalar
    assert weights.digest(b"ab") == weights.digest(np.frombuffer(b"ab", "uint8"))


def test_digests_tell_apart_what_a_norm_does_not() -> None:
    tensor = torch.arange(8, dtype=torch.float32).reshape(4, 2)
    swapped = tensor[[2, 3, 0, 1]]
    distinct = [tensor, swapped, tensor.reshape(2, 4), tensor.view(torch.int32), torch.empty(0), torch.empty(0, 2)]
    assert tensor.norm() == swapped.norm()
    assert len({weights.digest(one) for one in distinct}) == len(distinct)
    assert weights.digest(torch.tensor([0.0])) != weights.digest(torch.tensor([-0.0]))


def test_digests_of_a_model() -> None:
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    found = weights.digests(model.state_dict())
    assert found == weights.digests(model.named_parameters()) and set(found) == {"weight", "bias"}
    assert weights.combine(found) == weights.combine(dict(reversed(found.items())))
    assert weights.combine(found) != weights.combine({**found, "bias": found["weight"]})
    assert weights.combine({"a": "12"}) != weights.combine({"a1": "2"})


SECRETS = ("HF_TOKEN", "RAY_API_KEY", "VLLM_apikey", "NCCL_SECRET_SAUCE", "RAY_REDIS_PASSWORD", "TORCH_AUTH",
           "HF_TOKENS")  # fmt: skip
KEPT = ("NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "RAY_ADDRESS", "TORCH_LOGS",
        "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "MASTER_ADDR")  # fmt: skip


def test_secrets_are_left_out_by_name() -> None:
    environ = dict.fromkeys((*SECRETS, *KEPT, "HOME", "MY_KEY", "SSH_AUTH_SOCK"), "value")
    assert environment.variables(environ) == dict.fromkeys(sorted(KEPT), "value")
    assert environment.withheld(environ) == sorted(SECRETS)


def test_addresses_lose_their_user_and_password() -> None:
    environ = {"RAY_ADDRESS": "http://joe:pass@head:6379", "HF_ENDPOINT": "https://mirror.example/a@b"}
    assert environment.variables(environ) == {
        "HF_ENDPOINT": "https://mirror.example/a@b", "RAY_ADDRESS": "http://head:6379"
    }  # fmt: skip


def test_no_secret_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("RAY_ADDRESS", "http://joe:hunter2@head:6379")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_HOME", b"\xff\xfe".decode(errors="surrogateescape"))
    write_manifest(tmp_path, {})
    start(tmp_path, role="actor").close()
    data = next((tmp_path / "events").iterdir()).read_bytes()
    assert b"hunter2" not in data
    run = Run(tmp_path)
    assert next(run.events("open"))["env"]["NCCL_DEBUG"] == "INFO"
    assert next(run.events("environment"))["env"]["TORCH_HOME"] == "??"


def test_the_environment_of_this_process() -> None:
    facts = environment.describe()
    assert facts["packages"]["torch"] and facts["device"]["torch"] == torch.__version__
    assert facts["device"]["cuda_initialized"] is torch.cuda.is_initialized()
    assert any("libtorch_cpu" in path for path in facts["libraries"])
    assert facts["machine"]["cpus"] >= facts["machine"]["cpus_allowed"] >= 1
    assert facts["machine"]["memory"] >= facts["machine"]["memory_available"] > 2**20


def test_a_torch_that_cannot_be_asked_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    assert "AttributeError" in environment.device()["error"]
    monkeypatch.delitem(sys.modules, "torch")
    assert environment.device() == {}


GROUPS = """
import os, sys
from probes.install import start
recorder = start(sys.argv[1], role="actor")
assert not recorder.watch_groups()
import torch, torch.distributed as dist
made = dist.new_group
assert recorder.watch_groups() and recorder.watch_groups()
late = start(sys.argv[1], role="late")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
dist.new_group([0], group_desc="critic")
dist.new_group([0])
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
last = start(sys.argv[1], role="last")
for one in (recorder, late, last):
    one.close()
assert dist.new_group is made
dist.new_group([0])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_process_groups_are_recorded_when_they_are_made(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    done = subprocess.run(
        [sys.executable, "-c", GROUPS, str(tmp_path)], env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path)
    groups = {role: list(run.events("group", role=role)) for role in ("actor", "late", "last")}
    names = [group["name"] for group in groups["actor"]]
    assert names[:2] == ["default_pg", "critic"] and len(set(names)) == len(names) >= 3
    for group in groups["actor"]:
        assert (group["rank"], group["world_size"], group["members"]) == (0, 1, [0]) and "gloo" in group["backend"]
    assert [group["name"] for group in groups["late"]] == names
    assert [group["name"] for group in groups["last"]] == ["default_pg"]  # made before it began
    assert run.complete


def test_groups_without_torch_are_recorded_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, collectives.MODULE, raising=False)
    write_manifest(tmp_path, {})
    with start(tmp_path, role="actor", rank=1) as recorder:
        assert recorder.watch_groups() is False
        collectives.record_group(recorder, name="sync-0", backend="gloo", rank=1, world_size=2, members=range(0, 4, 3))
    event = next(Run(tmp_path).events("group"))
    assert event.items() >= {"name": "sync-0", "backend": "gloo", "rank": 1, "world_size": 2, "members": [0, 3]}.items()


def test_describe_takes_what_has_no_dtype() -> None:
    assert shapes.describe((1, 2)) == [[2], "tuple", "python"]
