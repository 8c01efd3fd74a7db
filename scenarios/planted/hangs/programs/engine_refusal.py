"""K13 with a real engine: it refuses a weight update at once, while the trainer ignores the answer and broadcasts.

`--engine sglang`: `update_weights_from_distributed` without `begin_weight_update` returns a failing status. `--engine
vllm`: `load_weights` raises at its first tensor, because on a CPU the weights lost their loaders at the first load.
The engine runs in a process of its own, in its own environment's interpreter, and takes commands on its standard
input. It records each call with its status, like our engine session. The trainer shares a process group with it, made
as frameworks make one for weight syncs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probes import install
from scenarios.engines.engine_interface import SyncGroup

HOUR = datetime.timedelta(hours=1)


def recording(role: str) -> install.Recorder:
    return install.start(os.environ.get("RLHF_HARNESS_WATCH") or tempfile.mkdtemp(prefix="refusal-"), role=role)


class EngineProcess:
    """The engine's side: one command per line."""

    def __init__(self, name: str, model: str) -> None:
        from scenarios.engines.make import make_engine
        from scenarios.settings import Engine, Sampling, Scenario

        scenario = Scenario(
            name="refusal", sampling=Sampling(max_tokens=8, ignore_eos=True),
            engine=Engine(max_num_seqs=4, kv_cache_tokens=2048, memory_fraction=0.3),
        )  # fmt: skip
        self.name = name
        self.engine: Any = make_engine(name, model, scenario, device="cpu")
        self.recorder = recording("rollout")

    def join(self, group: dict[str, Any]) -> None:
        self.engine.join(SyncGroup(**group))
        members = list(range(group["world_size"]))
        self.recorder.group(name=group["name"], backend="gloo", rank=1, world_size=len(members), members=members)

    def update(self, group: dict[str, Any], weights: list[dict[str, Any]]) -> None:
        if self.name == "sglang":
            ok, message = self.engine._engine.update_weights_from_distributed(
                names=[meta["name"] for meta in weights], dtypes=[meta["dtype"] for meta in weights],
                shapes=[meta["shape"] for meta in weights], group_name=group["name"],
            )  # fmt: skip
            if not ok:
                raise RuntimeError(message)
        else:
            self.engine._llm.collective_rpc(load_weights, args=(weights,))

    def event_loop(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            name = command.pop("call")
            self.call(name, functools.partial(getattr(self, name), **command))

    def call(self, name: str, work: Callable[[], None]) -> None:
        """Run one command and record its status. The engine stays up, as servers do."""
        started, ok, message = time.perf_counter(), True, ""
        try:
            work()
        except Exception as error:  # the status is recorded; no caller reads it here
            ok, message = False, f"{type(error).__name__}: {error}".splitlines()[0]
        seconds = time.perf_counter() - started
        self.recorder.event("call", name=name, step=0, ok=ok, message=message, seconds=seconds)


def load_weights(worker: Any, weights: list[dict[str, Any]]) -> None:
    """Load weights inside vLLM's worker, as a framework's worker extension does."""
    from scenarios.engines.engine_interface import WeightMeta
    from scenarios.engines.sync import receive

    metas = [WeightMeta(**{**meta, "shape": tuple(meta["shape"])}) for meta in weights]

    def stream() -> Iterator[tuple[str, Any]]:
        yield from receive(worker._harness_group, metas, worker.device)

    worker.model_runner.model.load_weights(stream())


def start_engine(python: str, engine: str, model: str) -> subprocess.Popen[str]:
    command = [python, __file__, "--role", "engine", "--engine", engine, "--model", model]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def tell(engine: subprocess.Popen[str], **command: Any) -> None:
    assert engine.stdin is not None
    engine.stdin.write(json.dumps(command) + "\n")
    engine.stdin.flush()


def custom_group(store: Any, name: Any) -> Any:
    """Make a group beside the default one, as OpenRLHF, slime and SGLang do for weight syncs."""
    from torch.distributed import distributed_c10d as c10d

    group, _ = c10d._new_process_group_helper(
        2, 0, [], c10d.Backend("gloo"), c10d.PrefixStore(name, store), group_name=name, timeout=HOUR
    )  # fmt: skip
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    return group


def sync_weights(group: Any, weights: dict[str, Any]) -> None:
    import torch.distributed as dist

    for tensor in weights.values():
        dist.broadcast(tensor, src=0, group=group)


def train(python: str, engine: str) -> None:
    import torch.distributed as dist
    from safetensors.torch import load_file

    from scenarios.engines.smoke import make_model
    from scenarios.engines.sync import describe

    with tempfile.TemporaryDirectory(prefix="refusal-model-") as folder:
        make_model(Path(folder))
        weights = load_file(Path(folder) / "model.safetensors")
        recorder = recording("trainer")
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False, timeout=HOUR)
        group = SyncGroup("127.0.0.1", store.port, 2, 1, "weights", "gloo")
        process = start_engine(python, engine, folder)
        tell(process, call="join", group=dataclasses.asdict(group))
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        custom = custom_group(store, "weights")
        recorder.group(name="weights", backend="gloo", rank=0, world_size=2, members=[0, 1])
        metas = [dataclasses.asdict(meta) for meta in describe(weights.items())]
        tell(process, call="update", group=dataclasses.asdict(group), weights=metas)
        sync_weights(custom, weights)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--role", choices=["trainer", "engine"], default="trainer")
    arguments.add_argument("--engine", choices=["sglang", "vllm"], required=True)
    arguments.add_argument("--python", default=sys.executable, help="interpreter of the engine's environment")
    arguments.add_argument("--model", default="")
    options = arguments.parse_args()
    if options.role == "engine":
        EngineProcess(options.engine, options.model).event_loop()
    else:
        train(options.python, options.engine)


if __name__ == "__main__":
    main()
