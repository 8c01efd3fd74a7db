"""Every check of one place: a planted fact trips it with its severity and a fix, a healthy node never does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from doctor_support import GIB, given, gpu, healthy, outcomes, place, problems

from harness.doctor.checks import CHECKS
from harness.doctor.gather.builds import Lock
from harness.doctor.gather.graphics import Gpus
from harness.doctor.gather.network import Interface, Listener, Network
from harness.doctor.gather.processes import Leftover
from harness.doctor.gather.software import Import, Imports
from harness.doctor.gather.storage import Segment
from harness.doctor.outcome import Fine, Problem, Unseen

LOOPBACK = (Interface("lo", True, True, ("127.0.0.1",)),)
DOWN = (*LOOPBACK, Interface("ib0", False, False), Interface("eth0", True, False, ("10.0.0.1",)))
BRIDGED = (*LOOPBACK, Interface("eth0", True, False, ("10.0.0.1",)), Interface("docker0", True, False, ("172.17.0.1",)))
SCHEDULER = Leftover(77, "sglang::scheduler_TP0", "engine", 9000.0, orphan=True)
RAYLET = Leftover(80, "raylet", "ray", 9000.0, orphan=False)
IDLE = Leftover(82, "ray::IDLE", "ray", 9000.0, orphan=True)
AGENT = Leftover(82, "ray::DashboardAgent", "ray", 9000.0, orphan=True)
EXPANDABLE = "max_split_size_mb:128,expandable_segments:True"
UNDEFINED = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"
SOON = str(int(time.time()) + 600)
ONE_GPU = {"gpus": Gpus((gpu(),))}


def listening(port: int, command: str = "nginx: master", **more: Any) -> dict[str, Any]:
    return {"network": {"listening": (Listener(port, "0.0.0.0", 1234, command),)}, **more}


# check -> (planted facts, severity, a word that the finding must hold); several for one check
PLANTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("ptrace", {"tracing": {"attempt": "denied", "ptrace": False, "scope": 1}}, "error", "ptrace_scope=0"),
    ("ptrace", {"tracing": {"attempt": "denied", "ptrace": False, "seccomp": 2}}, "error", "docker run --cap-add"),
    ("ptrace", {"tracing": {"attempt": "failed", "detail": "no symbols"}}, "warning", "no symbols"),
    ("ptrace", {"tracing": {"attempt": "only nonblocking"}}, "info", "docker run --cap-add SYS_PTRACE"),
    ("file-limit", {"limits": {"files_soft": 1024, "files_hard": 1024}}, "error", "1,024"),
    ("file-limit", {"limits": {"files_soft": 1024}}, "warning", "ulimit -n 65536"),
    ("file-limit", {"limits": {"files_hard": 20_000}}, "info", "docker run --ulimit nofile"),
    ("task-limit", {"limits": {"processes": 1024}, "tracing": {"uid": 1000}}, "warning", "ulimit -u"),
    ("task-limit", {"limits": {"tasks_max": 5000, "tasks_now": 4000}}, "warning", "docker run --pids-limit"),
    ("memlock", {"limits": {"memlock": 65_536}, "network": {"infiniband": ("mlx5_0",)}}, "error", "memlock"),
    ("map-count", {"limits": {"map_count": 1000}}, "warning", "max_map_count"),
    ("cores", {"limits": {"cpu_quota": 8.0}}, "warning", "OMP_NUM_THREADS=8"),
    ("memory", {"memory": {"available": 10 * GIB}}, "error", "10 GiB"),
    ("memory", {"memory": {"available": 100 * GIB}}, "warning", "in use"),
    ("memory", {"memory": {"limit": 64 * GIB, "used": 63 * GIB}}, "error", "63 GiB of 64 GiB"),
    ("memory", {"memory": {"limit": 64 * GIB, "used": GIB}}, "info", "container"),
    ("overcommit", {"memory": {"overcommit": 2}}, "warning", "overcommit_memory=0"),
    ("slurm", {"software": given(SLURM_JOB_ID="7", SLURM_CPUS_PER_TASK="80")}, "warning", "SRUN_CPUS_PER_TASK"),
    ("slurm", {"software": given(SLURM_JOB_ID="7", SLURM_JOB_END_TIME=SOON)}, "warning", "ends soon"),
    ("shared-memory", {"shm": {"total": 64 << 20, "free": 64 << 20}}, "error", "remount"),
    ("shared-memory", {"shm": {"total": 64 << 20, "isolated": True}}, "error", "docker run --shm-size "),
    ("shared-memory", {"shm": {"free": 100 << 20}}, "error", "nearly full"),
    ("shared-memory", {"shm": {"total": 8 * GIB, "free": 8 * GIB}}, "warning", "object store"),
    ("stale-segments", {"shm": {"stale": (Segment("psm_1", 1000, 9000.0),)}}, "info", "psm_1"),
    ("stale-segments", {"shm": {"stale": (Segment("psm_1", 200 * GIB, 9000.0),)}}, "warning", "200 GiB"),
    ("disk-space", {"storage": {"places": (place(free=30 * GIB),)}}, "error", "du -xh -d2 /data/ray"),
    ("disk-space", {"storage": {"places": (place(free=30 * GIB),), "other_disk": "/mnt"}}, "error", "RAY_TMPDIR=/mnt"),
    ("disk-space", {"storage": {"places": (place(total=400 * GIB, free=40 * GIB),)}}, "warning", "little room"),
    ("disk-space", {"storage": {"places": (place(writable=False),)}}, "error", "cannot be written"),
    ("inodes", {"storage": {"places": (place(inodes_free=900),)}}, "error", "inodes"),
    ("inodes", {"storage": {"places": (place(inodes_free=100_000),)}}, "warning", "inodes"),
    ("ray-directory", {"storage": {"ray": "/scratch/" + 40 * "x" + "/ray"}}, "error", "RAY_TMPDIR=/tmp"),
    ("ray-directory", {"storage": {"root_device": 2, "other_disk": "/mnt/big"}}, "info", "RAY_TMPDIR=/mnt/big"),
    ("old-sessions", {"storage": {"sessions": 3, "sessions_size": 150 * GIB}}, "warning", "150 GiB"),
    ("build-locks", {"builds": {"locks": (Lock("/x/cpu_adam/lock", 90.0),)}}, "error", "rm /x/cpu_adam/lock"),
    ("build-locks", {"builds": {"locks": (Lock("/x/cpu_adam/lock", 90.0),), "remote": True}}, "warning", "pgrep"),
    ("old-sessions", {"storage": {"sessions": 90, "sessions_size": 1000}}, "info", "90 sessions"),
    ("hostname", {"network": {"resolved": ("127.0.1.1",)}}, "info", "GLOO_SOCKET_IFNAME=eth0"),
    ("hostname", {"network": {"resolve_error": "Name or service not known"}}, "error", "/etc/hosts"),
    ("hostname", {"network": {"resolve_s": 4.5}}, "warning", "4.5 s"),
    ("interfaces", {"software": given(NCCL_SOCKET_IFNAME="ib")}, "error", "NCCL_SOCKET_IFNAME=eth0"),
    ("interfaces", {"software": given(GLOO_SOCKET_IFNAME="eth")}, "error", "does not exist"),
    ("interfaces", {"software": given(GLOO_SOCKET_IFNAME="eth0,eth1")}, "error", "does not exist"),
    ("interfaces", {"network": {"interfaces": DOWN}, "software": given(NCCL_SOCKET_IFNAME="=ib0")}, "error", "down"),
    ("infiniband", {"software": given(NCCL_IB_HCA="mlx5_0")}, "error", "mlx5_0"),
    ("infiniband", {"network": {"infiniband": ("mlx5_0",)}, "software": given(NCCL_IB_HCA="=mlx5_0:1,mlx5_7:1")},
     "warning", "mlx5_7"),
    ("ports", listening(6379, "redis-server *:6379"), "error", "kill 1234"),
    ("ports", listening(8265), "warning", "dashboard"),
    ("ports", listening(6379, "/x/ray/core/src/ray/gcs/gcs_server --log_dir"), "info", "already runs"),
    ("ports", listening(29500, "python train.py", software=given(MASTER_PORT="29500")), "error", "EADDRINUSE"),
    ("ports", {"software": given(MASTER_PORT="12345")}, "warning", "10002"),
    ("ports", {"software": given(MASTER_PORT="40000")}, "info", "ephemeral"),
    ("ray-address", {"network": {"ray_address_open": False}, "software": given(RAY_ADDRESS="10.0.0.9:6379")}, "error",
     "unset RAY_ADDRESS"),
    ("ray-address", {"network": {"ray_remembered": "10.0.0.9:6379", "ray_remembered_open": False,
                                 "ray_remembered_file": "/tmp/ray/ray_current_cluster"}}, "error",
     "rm /tmp/ray/ray_current_cluster"),
    ("proxy", {"software": {"proxies": ("http_proxy",)}}, "warning", "no_proxy"),
    ("nccl-settings", {"software": given(TORCH_NCCL_ASYNC_ERROR_HANDLING="0")}, "error", "unset"),
    ("nccl-settings", {"software": given(NCCL_DEBUG="trace")}, "warning", "/tmp fills"),
    ("nccl-settings", {"software": given(TORCH_DISTRIBUTED_DEBUG="DETAIL")}, "warning", "extra collectives"),
    ("nccl-settings", {"software": given(NCCL_P2P_DISABLE="1")}, "warning", "NCCL_P2P_DISABLE"),
    ("nccl-cumem", {"software": {"variables": {}}}, "warning", "NCCL_CUMEM_ENABLE=0"),
    ("flight-recorder", {"software": given(TORCH_FR_BUFFER_SIZE="0")}, "error", "switched off"),
    ("flight-recorder", {"software": given(TORCH_NCCL_TRACE_BUFFER_SIZE="50")}, "warning", "few"),
    ("flight-recorder", {"software": given(TORCH_FR_BUFFER_SIZE="2k")}, "error", "not a number"),
    ("flight-recorder", {"software": {"packages": {"torch": "2.5.1+cu121"}}}, "error", "2.5.1"),
    ("flight-recorder", {"software": given(TORCH_NCCL_DUMP_ON_TIMEOUT="0")}, "warning", "timeout"),
    ("flight-recorder", {"software": given(TORCH_NCCL_ENABLE_MONITORING="false")}, "warning", "watchdog"),
    ("dump-files", {"software": {"variables": {"TORCH_FR_DUMP_TEMP_FILE": "/none/fr_"},
                                 "writable": {"TORCH_FR_DUMP_TEMP_FILE": False}}}, "error", "/none/fr_"),
    ("timeouts", {"software": given(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="30")}, "error", "--stall 15s"),
    ("timeouts", {"software": given(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="8 min")}, "error", "not a number"),
    ("debuggers", {"software": given(RAY_DEBUG_POST_MORTEM="1")}, "warning", "attach"),
    ("debuggers", {"software": given(RAY_DEBUG="legacy", RAY_DEBUG_POST_MORTEM="1")}, "error", "legacy"),
    ("libraries", {"software": {"in_front": (("libc10.so", "/old/torch/lib/libc10.so"),)}}, "error", "/old/torch"),
    ("libraries", {"software": {"in_front": (("libnccl.so.2", "/usr/lib/libnccl.so.2"),)}}, "warning", "libnccl"),
    ("libraries", {"imports": Imports((), (("libc10.so", "/old/torch/lib/libc10.so"),))}, "error", "are loaded"),
    ("libraries", {"software": given(LD_PRELOAD="/x/libtcmalloc.so")}, "info", "tcmalloc"),
    ("imports", {"imports": Imports((Import("torch", True), Import("flash_attn_2_cuda", False, UNDEFINED)))}, "error",
     "_ZN3c105ErrorC2E"),
    ("imports", {"imports": Imports((Import("deepspeed", False, "RuntimeError: no GPU"),))}, "warning", "no GPU"),
    ("gpu-driver", {"gpus": Gpus((gpu(driver="535.129.03"),))}, "error", "needs 580"),
    ("gpu-driver", {**ONE_GPU, "software": {"torch_cuda": ""}}, "warning", "CPU build"),
    ("gpu-driver", {"gpus": Gpus(error="nvidia-smi did not answer within 15 s")}, "error", "did not answer"),
    ("gpu-kinds", {"gpus": Gpus((gpu(), gpu(index=1, name="NVIDIA A100")))}, "warning", "A100"),
    ("gpu-kinds", {"gpus": Gpus((gpu(mig=True),))}, "info", "MIG"),
    ("gpu-memory", {"gpus": Gpus((gpu(used=70 * GIB, holders=((77, "VLLM::EngineCore"),)),))}, "warning", "kill 77"),
    ("gpu-memory", {"gpus": Gpus((gpu(used=70 * GIB),))}, "warning", "/dev/nvidia0"),
    ("gpu-errors", {"gpus": Gpus((gpu(uncorrected=3),))}, "error", "GPU 0: 3"),
    ("visible-devices", {**ONE_GPU, "software": given(CUDA_VISIBLE_DEVICES="0,1")}, "error", "not there"),
    ("visible-devices", {**ONE_GPU, "software": given(CUDA_VISIBLE_DEVICES="")}, "info", "(empty)"),
    ("visible-devices", {"software": given(RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES="1")}, "info", "NOSET"),
    ("amd-variables", {"software": given(ROCR_VISIBLE_DEVICES="0,1")}, "error", "Please use HIP_VISIBLE_DEVICES"),
    ("amd-variables", {"software": given(ROCR_VISIBLE_DEVICES="4,5", HIP_VISIBLE_DEVICES="4,5")}, "error", "within"),
    ("amd-variables", {"software": given(ROCR_VISIBLE_DEVICES="0,1", HIP_VISIBLE_DEVICES="0,1")}, "info", "within"),
    ("amd-variables", {"software": given(CUDA_VISIBLE_DEVICES="0,1", HIP_VISIBLE_DEVICES="2,3")}, "error", "differ"),
    ("allocator", {"software": given(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)}, "warning", "sleep mode"),
    ("leftover-engines", {"processes": {"found": (SCHEDULER,)}}, "error", "kill 77"),
    ("leftover-ray", {"processes": {"found": (RAYLET,)}}, "info", "80"),
    ("leftover-ray", {"processes": {"found": (IDLE,)}}, "error", "kill 82"),
    ("leftover-ray", {"processes": {"found": (AGENT,)}}, "warning", "kill 82"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "planted", "severity", "word"), PLANTED)
def test_a_planted_fact_trips_its_check(name: str, planted: dict[str, Any], severity: str, word: str) -> None:
    found = problems(name, healthy(**planted))
    assert [item.severity for item in found] == [severity]
    (problem,) = found
    assert word in " ".join((problem.what, problem.measured, problem.why, problem.fix))
    assert problem.measured and problem.why and problem.fix, "it says what was seen, why it fails and what fixes it"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_healthy_node_passes_with_what_was_measured(check: Any) -> None:
    found = outcomes(check.name, healthy())
    assert len(found) == 1 and isinstance(found[0], Fine) and found[0].measured


def test_every_check_has_a_planted_fact() -> None:
    assert {name for name, *_ in PLANTED} == {check.name for check in CHECKS}


CONTROLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("memlock", {"limits": {"memlock": 65_536}}, {}),  # no RDMA device: the limit is of no account
    ("task-limit", {"limits": {"processes": 1024}}, {}),  # root is not held to it
    ("shared-memory", {"shm": {"total": 64 * GIB, "free": 60 * GIB}}, {}),  # less than 30 %, and enough for Ray
    ("disk-space", {"storage": {"places": (place(total=10_000 * GIB, free=1000 * GIB),)}}, {}),  # 90 % used, 1 TB free
    ("inodes", {"storage": {"places": (place(inodes=0, inodes_free=0),)}}, {}),  # btrfs counts none
    ("ray-directory", {"storage": {"root_device": 2}}, {}),  # no other disk has room
    ("ray-directory", {"storage": {"root_device": 2, "other_disk": "/mnt/" + 60 * "x"}}, {}),  # sockets do not fit
    ("hostname", {"network": {"resolved": ("127.0.1.1",)}, "software": given(GLOO_SOCKET_IFNAME="eth0")}, {"nodes": 2}),
    ("interfaces", {"software": given(NCCL_SOCKET_IFNAME="^docker,lo")}, {"nodes": 2}),
    ("interfaces", {"software": given(NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")}, {}),  # a single node
    ("interfaces", {"network": {"interfaces": BRIDGED}}, {}),
    ("infiniband", {"software": given(NCCL_IB_HCA="mlx5_0", NCCL_IB_DISABLE="1")}, {}),
    ("infiniband", {"network": {"infiniband": ("mlx5_0", "mlx5_1")}, "software": given(NCCL_IB_HCA="mlx5")}, {}),
    ("ports", listening(8000), {}),
    ("ports", listening(6379, "gcs_server"), {"joined": True}),
    ("proxy", {"software": {"proxies": ("http_proxy",), "no_proxy": ("localhost", "10.0.0.0/8")}}, {}),
    ("nccl-settings", {"software": given(NCCL_DEBUG="INFO", TORCH_NCCL_ASYNC_ERROR_HANDLING="3")}, {}),
    ("nccl-cumem", {**ONE_GPU, "software": given(NCCL_CUMEM_ENABLE="1")}, {}),
    ("flight-recorder", {"software": given(TORCH_FR_BUFFER_SIZE="20000")}, {}),
    ("timeouts", {"software": given(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="120")}, {"stall_s": 60.0}),
    ("libraries", {"software": {"in_front": (("libcudart.so.12", "/usr/local/cuda/lib64/libcudart.so.12"),)}}, {}),
    ("gpu-memory", {"gpus": Gpus((gpu(used=500 << 20),))}, {}),  # the driver's own
    ("visible-devices", {**ONE_GPU, "software": given(CUDA_VISIBLE_DEVICES="GPU-8a1f")}, {}),
    ("amd-variables", {"software": given(CUDA_VISIBLE_DEVICES="0,1", HIP_VISIBLE_DEVICES="0,1")}, {}),
    ("allocator", {"software": given(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")}, {}),
    ("leftover-ray", {"processes": {"found": (RAYLET,)}}, {"joined": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "asked"), CONTROLS)
def test_what_only_looks_like_it_does_not_bite(name: str, facts: dict[str, Any], asked: dict[str, Any]) -> None:
    assert problems(name, healthy(**facts), **asked) == []


def test_a_loopback_name_bites_only_where_there_are_several_nodes() -> None:
    node = healthy(network={"resolved": ("127.0.1.1", "::1")})
    assert [item.severity for item in problems("hostname", node, nodes=2)] == ["error"]
    slurm = healthy(network={"resolved": ("127.0.1.1",)}, software=given(SLURM_JOB_ID="1", SLURM_JOB_NUM_NODES="4"))
    assert [item.severity for item in problems("hostname", slurm)] == ["error"]


def test_loopback_and_bridges_bite_only_where_there_are_several_nodes() -> None:
    assert [
        item.severity for item in problems("interfaces", healthy(software=given(GLOO_SOCKET_IFNAME="lo")), nodes=2)
    ] == ["error"]
    (bridge,) = problems("interfaces", healthy(network={"interfaces": BRIDGED}), nodes=2)
    assert bridge.severity == "warning" and bridge.fix == "export NCCL_SOCKET_IFNAME=eth0"


def test_a_stall_threshold_above_torchs_own_timeouts() -> None:
    assert [item.severity for item in problems("timeouts", healthy(), stall_s=480)] == ["error"]
    patient = healthy(software=given(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="3600"))
    assert [item.severity for item in problems("timeouts", patient, stall_s=700)] == ["warning"]


def test_nodes_that_slurm_gave_and_ray_did_not_get() -> None:
    node = healthy(software=given(SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="4"))
    assert problems("slurm", node) == [], "nobody asked a cluster"
    (problem,) = problems("slurm", node, joined=True, nodes=3)
    assert (problem.severity, problem.measured) == ("error", "3 of 4")


def test_what_depends_on_an_unknown_version_is_not_checked() -> None:
    for packages in ({}, {"torch": "2.7.1"}):
        (found,) = outcomes("flight-recorder", healthy(software={"packages": packages}))
        assert isinstance(found, Unseen)


def test_without_a_gpu_nothing_of_it_passes() -> None:
    for name in ("gpu-driver", "gpu-kinds", "gpu-memory", "gpu-errors", "nccl-cumem"):
        (found,) = outcomes(name, healthy(gpus=Gpus(), software={"variables": {}}))
        assert isinstance(found, Unseen)


def test_a_driver_that_does_not_answer_hides_no_other_gpu_check() -> None:
    for name in ("gpu-kinds", "gpu-memory", "gpu-errors"):
        (found,) = outcomes(name, healthy(gpus=Gpus(error="nvidia-smi did not answer")))
        assert isinstance(found, Unseen)


def test_py_spy_that_is_absent_is_not_checked() -> None:
    (found,) = outcomes("ptrace", healthy(tracing={"attempt": "absent"}))
    assert isinstance(found, Problem) and found.severity == "error" and "pip install" in found.fix


def test_an_engine_of_a_living_run_is_told_and_not_blamed() -> None:
    zombie = Leftover(79, "sglang::scheduler", "engine", 90.0, orphan=True, zombie=True)  # no signal ends it
    assert [item.severity for item in problems("leftover-engines", healthy(processes={"found": (zombie,)}))] == ["info"]
    worker = Leftover(81, "ray::RuntimeEnv", "ray", 1.0, orphan=True, zombie=True)
    [found] = problems("leftover-ray", healthy(processes={"found": (worker,)}))
    assert found.severity == "info" and "not collected" in found.what
    engine = Leftover(78, "VLLM::EngineCore", "engine", 90.0, orphan=False)
    assert [item.severity for item in problems("leftover-engines", healthy(processes={"found": (engine,)}))] == ["info"]


@pytest.mark.slow
def test_no_command_ends_processes_by_name() -> None:
    for name, planted, *_ in PLANTED:
        for problem in problems(name, healthy(**planted)):
            assert "pkill" not in problem.fix and "killall" not in problem.fix and "ray stop" not in problem.fix


def test_an_interface_without_an_address_is_no_candidate() -> None:
    network = Network("node-0", (*LOOPBACK, Interface("docker0", True, False)), resolved=("10.0.0.1",))
    assert problems("interfaces", healthy(network=network), nodes=2) == []


@pytest.mark.parametrize(
    ("purpose", "path", "fix"),
    [
        ("/tmp", "/tmp", "sudo chmod 1777 /tmp"),
        ("Hugging Face cache", "/models/hub", 'sudo mkdir -p /models/hub && sudo chown "$(id -u)" /models/hub'),
        ("Ray's logs and spilled objects", "/tmp/ray", 'export RAY_TMPDIR="$(mktemp -d)"'),
    ],
)
def test_a_place_that_cannot_be_written_is_made_without_a_change_of_its_parents(
    purpose: str, path: str, fix: str
) -> None:
    unwritable = place(purpose=purpose, path=path, existing="/", writable=False)
    [problem] = problems("disk-space", healthy(storage={"places": (unwritable,)}))
    assert problem.fix == fix
