"""SGLang as an `Engine`. Runs in SGLang's environment only, and imports nothing of SGLang before the constructor."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from probes.draws import DRAW
from scenarios.engines import canonical_request, tf32
from scenarios.engines.engine_interface import (
    Completion,
    EngineError,
    EngineInfo,
    Part,
    Request,
    SyncGroup,
    SyncReport,
    WeightMeta,
    check_scored,
)
from scenarios.engines.engine_processes import bound_to_cores, titled
from scenarios.engines.hf.engine import draw_of
from scenarios.engines.hidden_states import HiddenStates
from scenarios.engines.load import Load
from scenarios.engines.mapping import Mapped, ParameterMap, map_engine, map_sampling
from scenarios.engines.sampling import ids_of
from scenarios.engines.sglang import parameters, routed
from scenarios.engines.sglang.plugin import DIGESTS, SWITCH
from scenarios.forkserver import children_server, forked_children
from scenarios.settings import Mode, Sampling, Scenario

DRAIN_S = 30.0  # the scheduler releases answered requests within this time: milliseconds, measured
LOOK_S = 0.02  # seconds between looks at a running batch
CORES = "SGLANG_CPU_OMP_THREADS_BIND"
SLEEP = "sleep_on_idle"
SERVED_NAME = "served_model_name"  # by default the model's path, which SGLang refuses where it holds a colon
PUBLISH = "load_snapshot_publish_interval"  # SGLang publishes its load every so many decode steps


class SGLangEngine:
    """One `sglang.Engine`: a tokenizer manager in this process; a scheduler and a detokenizer in processes of their
    own.
    """

    name = "sglang"

    def __init__(
        self,
        model_path: str,
        scenario: Scenario,
        *,
        mode: Mode,
        device: str,
        pure: bool = False,
        mapping: ParameterMap | None = None,
    ) -> None:
        self._mapping = mapping = mapping or ParameterMap()
        canonical_request.check_sampling("sglang", scenario.sampling, mode, ours=mapping.ours("sglang", "sampling"))
        self._mode = mode
        self._device = device
        self._seed = scenario.engine.seed
        if device == "cpu":
            os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        self._pure = pure
        self._tensor_parallel = scenario.engine.tensor_parallel
        if pure:
            os.environ.pop(SWITCH, None)
        else:
            os.environ[SWITCH] = "1"

        import sglang
        from sglang.srt.server_args import ServerArgs
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model_path)
        self._version = sglang.__version__
        longest = int(getattr(config, "max_position_embeddings", scenario.engine.max_model_len))
        requested = canonical_request.engine_asked(model_path, scenario.model.dtype, scenario.engine, device=device)
        ours = functools.partial(parameters.engine, longest_context=longest)
        self._asked = requested
        self._arguments, self._described = map_engine(mapping, "sglang", requested, ours, parameters.machine)
        self._arguments.setdefault(SERVED_NAME, "policy")
        if device == "cpu":
            self._arguments["device"] = "cpu"  # the harness decides where it runs, not the mapping
            if hasattr(ServerArgs, SLEEP):  # its scheduler polls without a pause, on one of the learner's cores
                self._arguments.setdefault(SLEEP, True)
        if hasattr(ServerArgs, PUBLISH):  # 15 by default, which missed peaks of short responses (22 seen of 32)
            self._arguments[PUBLISH] = 1
        replaced: list[str] = []
        if tf32.forbid(device, pure=pure):
            replaced.append("TF32")
        if not pure:
            replaced.append("output log-probabilities")
        if mode == "coupled":
            self._arguments["enable_custom_logit_processor"] = True
            replaced.append("sampler")
        self._replaced = tuple(replaced)
        try:
            with bound_to_cores(CORES, self._tensor_parallel if device == "cpu" else 1), forked_children():
                self._engine = sglang.Engine(**self._arguments)
        except canonical_request.ParameterRefused:
            raise
        except Exception as error:  # SGLang may raise anything here; the user needs its text, not its type
            raise EngineError(f"SGLang {self._version} did not start", str(error)) from error
        manager = self._engine.tokenizer_manager
        tokenizer = manager.tokenizer
        self._vocabulary = int(manager.model_config.vocab_size)
        # Where SGLang itself ends a sample: config.json, generation_config.json, its tokenizer's end token and extra
        # ones (configs/model_config.py, managers/schedule_batch.py).
        self._model_ends = ids_of(manager.model_config.hf_eos_token_id) | ids_of(
            getattr(tokenizer, "eos_token_id", None)
        )
        self._model_ends |= ids_of(getattr(tokenizer, "additional_stop_token_ids", None))
        self._defaults = dict(getattr(manager, "preferred_sampling_params", None) or {})
        self._server: routed.Server | None = None
        self._router: routed.Router | None = None
        self.through = ""  # the address of the router through which `generate` sends its requests
        self.load = Load()

    def mapped(self, sampling: Sampling) -> Mapped:
        return map_sampling(self._mapping, "sglang", sampling, defaults=self._defaults, model_ends=self._model_ends)

    def remap(self, mapping: ParameterMap) -> None:
        self._mapping = mapping

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        mapped = self.mapped(sampling)
        native = canonical_request.without_draw(mapped.native, self._mode)
        params, processors = [], []
        # What was drawn in earlier rounds counts towards min_tokens: the limit is of the sample, not of the request.
        for request in requests:
            request_params = dict(
                native,
                max_new_tokens=request.max_tokens or mapped.canonical.max_tokens,
                min_new_tokens=max(mapped.canonical.min_tokens - request.offset, 0),
            )
            if self._mode == "coupled":
                from scenarios.engines.sglang.coupled import Coupled

                request_params["custom_params"] = {DRAW: draw_of(request, mapped, seed).to_json()}
                processors.append(Coupled.to_str())
            params.append(request_params)
        draw = self.through_router if self.through else self._directly
        with self.load.generating():
            answers = draw(requests, params, processors)
        completions = [self._completion(request, answer) for request, answer in zip(requests, answers, strict=True)]
        self.load.add(completions)
        return completions

    def _directly(
        self, requests: list[Request], params: list[dict[str, Any]], processors: list[str]
    ) -> list[dict[str, Any]]:
        answers: list[Any] = [None] * len(requests)
        as_text = [i for i, request in enumerate(requests) if request.text is not None]
        as_ids = [i for i, request in enumerate(requests) if request.text is None]
        # One call takes either ids or texts.
        for rows, name in ((as_ids, "input_ids"), (as_text, "text")):
            if not rows:
                continue
            batch = [requests[i] for i in rows]
            sources = [list(request.prompt_ids) if request.text is None else request.text for request in batch]
            salts = [request.salt for request in batch]
            drawn = self._call(
                sampling_params=[params[i] for i in rows],
                return_logprob=True,
                return_prompt_token_ids=True,
                custom_logit_processor=[processors[i] for i in rows] if processors else None,
                extra_key=salts if any(salts) else None,
                **{name: sources},
            )
            for i, answer in zip(rows, drawn, strict=True):
                answers[i] = answer
        return answers

    def through_router(
        self, requests: list[Request], params: list[dict[str, Any]], processors: list[str]
    ) -> list[dict[str, Any]]:
        """Return the same, drawn by the engines that the router chooses."""
        bodies = [
            routed.body(
                request, sampling, text=request.text, input_ids=() if request.text else request.prompt_ids,
                return_logprob=True, custom_logit_processor=processor, extra_key=request.salt,
            )
            for request, sampling, processor in zip(requests, params, processors or [""] * len(requests), strict=True)
        ]  # fmt: skip
        answers: list[dict[str, Any]] = self._looked_at(routed.answers(self.through, bodies))
        return answers

    def listen(self, answered: routed.Answered) -> str:
        """Serve requests of a router too, from now on, and return the address."""
        self._server = self._server or routed.Server(self._engine, answered)
        return self._server.url

    def start_router(self, engines: list[str], policy: str) -> tuple[str, int]:
        """Start a router in front of the engines at these addresses, and return its address and its pid."""
        if self._router is None or self._router.asked != (engines, policy):
            self._end_router()
            self._router = routed.Router(engines, policy)
        return self._router.url, self._router.pid

    def _end_router(self) -> None:
        if self._router is not None:
            self._router.close()
            self._router = None

    def _call(self, **fields: Any) -> list[dict[str, Any]]:
        """Send one batch to the tokenizer manager.

        `Engine.generate` does not pass `return_prompt_token_ids` on, so the request object is built here in the same
        way.
        """
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(**fields)
        answer = self._looked_at(self._engine.tokenizer_manager.generate_request(request, None).__anext__())
        return answer if isinstance(answer, list) else [answer]

    def _looked_at(self, work: Awaitable[Any]) -> Any:
        """Return the result of `work`, and sample this engine's load meanwhile."""

        async def answered() -> Any:
            looking = asyncio.ensure_future(self._look())
            try:
                return await work
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)  # failing to read the load must not end the batch

        return self._engine.loop.run_until_complete(answered())

    async def _look(self) -> None:
        """Sample the load that the scheduler publishes in shared memory until cancelled; nothing where it publishes
        none.
        """
        reader = getattr(self._engine.tokenizer_manager, "load_snapshot_reader", None)
        began = time.time()
        while reader is not None:
            await asyncio.sleep(LOOK_S)
            fresh = [
                snapshot for snapshot in reader.read_all() if snapshot.timestamp >= began
            ]  # older ones belong to an earlier batch
            if fresh:
                self.load.sample(
                    running=sum(snapshot.num_running_reqs for snapshot in fresh),
                    waiting=sum(snapshot.num_waiting_reqs for snapshot in fresh),
                    kv=max(snapshot.token_usage for snapshot in fresh),
                )

    def _completion(self, request: Request, answer: dict[str, Any]) -> Completion:
        meta = answer["meta_info"]
        reason = meta.get("finish_reason") or {}
        kind = reason.get("type", "error")
        if kind == "abort" or "NaN" in str(reason.get("matched", "")):
            # SGLang turns ids outside the vocabulary into a stop whose `matched` says "NaN happened". That is an
            # error, not a stop.
            raise EngineError(f"SGLang ended sample {request.sample} with {reason}")
        ids = tuple(answer["output_ids"])
        logprobs = tuple(float(entry[0]) for entry in meta["output_token_logprobs"])
        if len(logprobs) != len(ids):
            raise EngineError(
                f"SGLang returned {len(logprobs)} log-probabilities for {len(ids)} tokens of sample {request.sample}"
            )
        prompt_seen = tuple(answer.get("prompt_token_ids") or ())
        cached = int(meta.get("cached_tokens", 0))
        return Completion(request.sample, prompt_seen, ids, logprobs, kind, cached)

    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        answers = self._call(
            input_ids=[list(sequence) for sequence in sequences],
            sampling_params=[{"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True} for _ in sequences],
            return_logprob=True,
            logprob_start_len=0,
        )
        rows = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
        for sequence, row in zip(sequences, rows, strict=True):
            check_scored("SGLang", self._echoed(sequence), [int(token) for _, token, *_ in row])
        return [[float(entry[0]) for entry in row[1:]] for row in rows]  # nothing predicts the first token

    def _echoed(self, sequence: tuple[int, ...]) -> tuple[int, ...]:
        """Return these ids as SGLang reports them back.

        0.5.23 writes 0 for the last id of the vocabulary and beyond (`logprob_result_processor`, meant for
        placeholders of images). Their scores are right.
        """
        return tuple(token if token < self._vocabulary - 1 else 0 for token in sequence)

    def layers(self, sequence: tuple[int, ...]) -> HiddenStates | None:
        """Return the hidden states of a forward pass.

        None in the native stage, and on several workers, which may hold parts of a state that the next layer adds up.
        """
        if self._pure or self._tensor_parallel > 1:
            return None
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
            self._engine.collective_rpc("harness_capture")
            try:
                self.rescore([sequence])
            finally:
                self._engine.collective_rpc("harness_captured", tokens=len(sequence), path=file.name)
            captured: Any = json.load(file)
        return captured and HiddenStates(*captured)

    def held(self, order: bytes) -> list[bytes] | None:
        """Return what each worker holds, by rank (`scenarios.engines.engine_tensors.answer`); None in the native
        stage."""
        if self._pure:
            return None
        with tempfile.TemporaryDirectory() as folder:
            order_file = Path(folder) / "order"
            order_file.write_bytes(order)
            self._engine.collective_rpc("harness_held", order=str(order_file), folder=folder)
            return [Path(folder, str(rank)).read_bytes() for rank in range(self._tensor_parallel)]

    def reload(self, path: str) -> None:
        """Load the weights in this directory in place."""
        success, message, *_ = self._engine.update_weights_from_disk(path)
        _checked("update_weights_from_disk", (success, message))

    def flush(self) -> None:
        answer = self._engine.flush_cache()
        if not getattr(answer, "success", True):
            raise EngineError("SGLang refused to flush its radix cache: requests are still running")

    def sleep(self, level: int) -> None:
        """Release all memory, once the last request has left the scheduler.

        An earlier order to release memory kills the scheduler (seen in 0.5.23, "should be called only when server is
        idle").
        """
        until = time.monotonic() + DRAIN_S
        while not getattr(self._engine.flush_cache(), "success", True):
            if time.monotonic() > until:
                raise EngineError(
                    f"SGLang is not idle {DRAIN_S:.0f} s after its last answer: it cannot be put to sleep"
                )
            time.sleep(LOOK_S)
        self._engine.release_memory_occupation()

    def wake(self, part: Part) -> None:
        """Take a part back. CUDA graphs return with the cache, because they refer to its addresses."""
        self._engine.resume_memory_occupation(tags=["kv_cache", "cuda_graph"] if part is Part.CACHE else ["weights"])

    def join(self, group: SyncGroup) -> None:
        _checked(
            "init_weights_update_group",
            self._engine.init_weights_update_group(
                group.address, group.port, group.rank_offset, group.world_size, group.name, backend=group.backend
            ),
        )

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        """Receive a sync between begin and end calls.

        Without them, the update is refused at once while the sender waits in its broadcast.
        """
        started = time.perf_counter()
        _checked("begin_weight_update", self._engine.begin_weight_update())
        message = _checked(
            "update_weights_from_distributed",
            self._engine.update_weights_from_distributed(
                names=[meta.name for meta in weights],
                dtypes=[meta.dtype for meta in weights],
                shapes=[list(meta.shape) for meta in weights],
                group_name=group.name,
            ),
        )
        _checked("end_weight_update", self._engine.end_weight_update())
        received = json.loads(message)[DIGESTS] if DIGESTS in message else {}
        return SyncReport(True, "", time.perf_counter() - started, received)

    def info(self) -> EngineInfo:
        server = self._engine.get_server_info()
        resolved = {
            "dtype": str(server.get("dtype")),
            "seed": server.get("random_seed"),
            # its sampler draws all requests from one generator, unless deterministic inference is on
            "request_seed": "honoured" if server.get("enable_deterministic_inference") else "ignored",
            # what prompt and response may use; the slack that the mapping adds is SGLang's own reserve
            "max_model_len": min(
                int(server.get("context_length") or 0) - parameters.KEEPS, self._asked["max_model_len"]
            ),
            "context_length": server.get("context_length"),
            "enforce_eager": bool(server.get("disable_cuda_graph")),
            "prefix_caching": not server.get("disable_radix_cache"),
            "max_num_seqs": server.get("max_running_requests")
            or next((state.get("effective_max_running_requests_per_dp") for state in server["internal_states"]), None),
            "chunked_prefill": (server.get("chunked_prefill_size") or -1) > 0,
            "tensor_parallel": server.get("tp_size"),
            "kv_cache_tokens": server.get("max_total_num_tokens"),
            "kv_cache_dtype": str(server.get("kv_cache_dtype")),
            "logprobs_mode": "raw" if not self._pure else "after temperature",
            "graph_padding": not server.get("disable_cuda_graph_padding"),
            "generation_config": server.get("sampling_defaults") == "model",
            "default_sampling": {**self._model_defaults(), **self._defaults},
            "end_ids": sorted(self._model_ends),
            "deterministic": bool(server.get("enable_deterministic_inference")),
            "device": str(server.get("device")),
            "tf32": tf32.allowed(self._device),
            "attention_backend": server.get("attention_backend"),
            "sampling_backend": server.get("sampling_backend"),
        }
        if self._device != "cpu":
            resolved["memory_fraction"] = server.get("mem_fraction_static")
        return EngineInfo(
            "sglang", self._version, dict(self._arguments), resolved,
            (*self._replaced, *_active_shims()),  # read now: a shim becomes active when SGLang imports what it replaces
            titled("sglang::"),
            **self._described,
        )  # fmt: skip

    def _model_defaults(self) -> dict[str, Any]:
        """Return what SGLang would fill in from generation_config.json, which it does at its OpenAI endpoint only."""
        return dict(self._engine.tokenizer_manager.model_config.get_default_sampling_params())

    def stats(self) -> dict[str, float]:
        return self.load.take()

    def close(self) -> None:
        self._end_router()
        if self._server is not None:
            self._server.close()
        from sglang.srt.entrypoints import engine

        end = engine.kill_process_tree  # ends everything below this process, even what the next start forks from
        engine.kill_process_tree = functools.partial(end, skip_pid=children_server() or None)
        try:
            self._engine.shutdown()
        finally:
            engine.kill_process_tree = end


def _checked(call: str, answer: Any) -> str:
    """Return the text of a status. Raises EngineError where the status is a refusal."""
    success, message = (
        answer if isinstance(answer, tuple) else (getattr(answer, "success", None), getattr(answer, "message", ""))
    )
    if success is None:
        raise EngineError(f"SGLang's {call} returned no status: {answer!r}")
    if not success:
        raise EngineError(f"SGLang refused {call}: {message}")
    return str(message)


def _active_shims() -> tuple[str, ...]:
    import sys

    shims = sys.modules.get("rlhf_harness_cpu_shims")
    return tuple(f"shim {name}" for name in getattr(shims, "ACTIVE", ()))
