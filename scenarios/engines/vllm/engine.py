"""vLLM as an `Engine`. Runs in vLLM's environment only, and imports nothing of vLLM before the constructor."""

from __future__ import annotations

import dataclasses
import gc
import os
import time
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
from scenarios.engines.vllm import parameters
from scenarios.settings import Mode, Sampling, Scenario

CORES = "VLLM_CPU_OMP_THREADS_BIND"


class VLLMEngine:
    """One `vllm.LLM`. On a CPU with one worker it runs in this process, which halves the start time."""

    name = "vllm"

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
        canonical_request.check_sampling("vllm", scenario.sampling, mode, ours=mapping.ours("vllm", "sampling"))
        self._mode = mode
        requested = canonical_request.engine_asked(model_path, scenario.model.dtype, scenario.engine, device=device)
        self._arguments, self._described = map_engine(mapping, "vllm", requested, parameters.engine, parameters.machine)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if device == "cpu":
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            if scenario.engine.tensor_parallel == 1:
                os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
                self._arguments["distributed_executor_backend"] = "uni"
        if scenario.engine.tensor_parallel > 1:
            # Inside an actor vLLM would choose Ray, which would request processors from the cluster a second time and
            # which vLLM refuses on a CPU.
            self._arguments["distributed_executor_backend"] = "mp"
        replaced: list[str] = []
        if tf32.forbid(device, pure=pure):
            replaced.append("TF32")
        if device == "cpu" and scenario.engine.enforce_eager:  # by what was asked, whatever a mapping passes
            _compile_nothing()
            replaced.append("torch.compile")
        if mode == "coupled":
            self._arguments["async_scheduling"] = False
            self._arguments["logits_processors"] = ["scenarios.engines.vllm.coupled:Coupled"]
            replaced.append("sampler")
        self._pure = pure
        if not pure:
            self._arguments["worker_extension_cls"] = "scenarios.engines.vllm.worker.WeightReceiver"
            replaced.append("weight loader")
        self._replaced = tuple(replaced)

        import vllm

        self._version = vllm.__version__
        try:
            with bound_to_cores(CORES, scenario.engine.tensor_parallel if device == "cpu" else 1):
                self._llm = vllm.LLM(**self._arguments)
        except canonical_request.ParameterRefused:
            raise
        except Exception as error:  # vLLM may raise anything here; the user needs its text, not its type
            raise EngineError(f"vLLM {self._version} did not start", str(error)) from error
        config = self._llm.llm_engine.model_config
        # Where vLLM itself ends a sample: its tokenizer's end token and those of generation_config.json, which it
        # reads for this purpose even with generation_config="vllm" (v1/engine/input_processor.py).
        files = config.try_get_generation_config()
        self._model_ends = ids_of(self._llm.get_tokenizer().eos_token_id) | ids_of(files.get("eos_token_id"))
        # What vLLM's server and `get_default_sampling_params` fill in where a request says nothing.
        self._defaults = dict(config.get_diff_sampling_param())
        self._seed = scenario.engine.seed
        self._device = device
        self.load = Load()
        self._watch()

    def _watch(self) -> None:
        """Register for the scheduler's figures after each of its steps, like vLLM's own statistics loggers."""
        load = self.load

        class Watching:
            def record(self, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    load.sample(
                        running=scheduler_stats.num_running_reqs,
                        waiting=scheduler_stats.num_waiting_reqs,
                        kv=scheduler_stats.kv_cache_usage,
                    )

            def __getattr__(self, name: str) -> Any:  # other calls, such as sleep and log, are ignored
                return lambda *_, **__: None

        manager = getattr(self._llm.llm_engine, "logger_manager", None)
        if manager is not None:
            manager.stat_loggers.append(Watching())

    def mapped(self, sampling: Sampling) -> Mapped:
        return map_sampling(self._mapping, "vllm", sampling, defaults=self._defaults, model_ends=self._model_ends)

    def remap(self, mapping: ParameterMap) -> None:
        self._mapping = mapping

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        import vllm

        mapped = self.mapped(sampling)
        native = canonical_request.without_draw(mapped.native, self._mode)
        native |= {"logprobs": 0, "detokenize": False}  # 0: the drawn token's own log-probability
        params, prompts = [], []
        for request in requests:
            extra: dict[str, Any] = {}
            if self._mode == "coupled":
                extra["extra_args"] = {DRAW: draw_of(request, mapped, seed).to_json()}
            elif self._mode == "native":
                # vLLM without request seeds does not repeat across engine starts (measured).
                extra["seed"] = (self._seed * 1_000_003 + request.sample) % 2**31
            request_params = native | extra
            request_params["min_tokens"] = max(mapped.canonical.min_tokens - request.offset, 0)
            request_params["max_tokens"] = request.max_tokens or mapped.canonical.max_tokens
            try:
                params.append(vllm.SamplingParams(**request_params))
            except (TypeError, ValueError) as error:
                raise EngineError(f"vLLM refuses the sampling parameters {native}: {error}") from error
            prompt: Any = (
                {"prompt": request.text} if request.text is not None else {"prompt_token_ids": list(request.prompt_ids)}
            )
            prompts.append(prompt | ({"cache_salt": request.salt} if request.salt else {}))
        if self._llm.llm_engine.is_sleeping():
            # It would accept the requests and loop forever without scheduling one (seen in 0.32.0).
            raise EngineError("vLLM is asleep, and would answer no request: wake its weights and its cache first")
        with self.load.generating():
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        if len(outputs) != len(requests):
            raise EngineError(f"vLLM answered {len(outputs)} of {len(requests)} requests")
        completions = [
            self._completion(request, output, sampling_params.seed)
            for request, output, sampling_params in zip(requests, outputs, params, strict=True)
        ]
        self.load.add(completions)
        return completions

    def _completion(self, request: Request, output: Any, seed: int | None) -> Completion:
        answer = output.outputs[0]
        ids = tuple(answer.token_ids)
        if answer.logprobs is None or len(answer.logprobs) != len(ids):
            raise EngineError(f"vLLM returned no log-probability for every token of sample {request.sample}")
        logprobs = tuple(float(entry[token].logprob) for entry, token in zip(answer.logprobs, ids, strict=True))
        cached = int(output.num_cached_tokens or 0)
        prompt_seen = tuple(output.prompt_token_ids or ())
        return Completion(
            sample=request.sample,
            prompt_seen=prompt_seen,
            output_ids=ids,
            logprobs=logprobs,
            finish_reason=str(answer.finish_reason or "error"),
            cached_tokens=cached,
            seed=seed,
        )

    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        import vllm

        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True
        )
        prompts: list[Any] = [{"prompt_token_ids": list(sequence)} for sequence in sequences]
        scores = []
        for sequence, output in zip(sequences, self._llm.generate(prompts, params, use_tqdm=False), strict=True):
            check_scored("vLLM", sequence, output.prompt_token_ids)
            table = output.prompt_logprobs
            scores.append([float(table[i][token].logprob) for i, token in enumerate(output.prompt_token_ids) if i > 0])
        return scores

    def layers(self, sequence: tuple[int, ...]) -> HiddenStates | None:
        """Return the hidden states of a forward pass; None for a compiled model and in the native stage.

        vLLM uses no cached prefix where log-probabilities of the prompt are requested, so every token passes the
        model.
        """
        if self._pure:
            return None
        self._llm.collective_rpc("harness_capture")
        try:
            self.rescore([sequence])
        finally:
            captured: Any = self._llm.collective_rpc("harness_captured", args=(len(sequence),))[0]
        return captured and HiddenStates(*captured)

    def held(self, order: bytes) -> list[bytes] | None:
        """Return what each worker holds (`scenarios.engines.engine_tensors.answer`), by rank.

        None in the native stage, and where more than tensor parallelism divides the model.
        """
        parallel = self._llm.llm_engine.vllm_config.parallel_config
        if self._pure or parallel.world_size > parallel.tensor_parallel_size:
            return None
        replies: list[bytes] = self._llm.collective_rpc("harness_held", args=(order,))
        return replies

    def reload(self, path: str) -> None:
        """Load the weights in this directory in place."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": path})

    def flush(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM refused to reset its prefix cache: requests are still running")

    def sleep(self, level: int) -> None:
        self._llm.sleep(level=level)

    def wake(self, part: Part) -> None:
        self._llm.wake_up(tags=["kv_cache" if part is Part.CACHE else "weights"])

    def join(self, group: SyncGroup) -> None:
        self._llm.collective_rpc("harness_join", args=(dataclasses.asdict(group),))

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        started = time.perf_counter()
        answers = self._llm.collective_rpc("harness_receive", args=([dataclasses.asdict(meta) for meta in weights],))
        received = dict(answers[0]["received"])
        for answer in answers[1:]:  # a worker that received other tensors than the first one shows a transport fault
            received |= {name: value for name, value in answer["received"].items() if received.get(name) != value}
        self.flush()
        return SyncReport(True, "", time.perf_counter() - started, received)

    def info(self) -> EngineInfo:
        config = self._llm.llm_engine.vllm_config
        runner = self._llm.collective_rpc("harness_runner")[0] if not self._pure else ""
        resolved = {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "seed": config.model_config.seed,
            "request_seed": "honoured",
            "max_model_len": config.model_config.max_model_len,
            "enforce_eager": config.model_config.enforce_eager,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "kv_cache_tokens": int(config.cache_config.num_gpu_blocks or 0) * int(config.cache_config.block_size or 0),
            "kv_cache_dtype": str(config.cache_config.cache_dtype),
            "logprobs_mode": str(config.model_config.logprobs_mode),
            "generation_config": config.model_config.generation_config != "vllm",
            "default_sampling": self._defaults,
            "end_ids": sorted(self._model_ends),
            "device": self._device,
            "tf32": tf32.allowed(self._device),
            "model_runner": runner,
        }
        if self._device != "cpu":  # on a CPU it is a default that nothing reads
            resolved["memory_fraction"] = config.cache_config.gpu_memory_utilization
        return EngineInfo(
            "vllm", self._version, dict(self._arguments), resolved, self._replaced, titled("VLLM"), **self._described
        )

    def stats(self) -> dict[str, float]:
        return self.load.take()

    def close(self) -> None:
        shutdown = getattr(self._llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()
        del self._llm
        gc.collect()
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()  # a second engine in this process needs vLLM's global process groups removed


def _compile_nothing() -> None:
    """Disable torch.compile in this process and those below it.

    Even with enforce_eager, vLLM compiles small functions with Inductor at the first call: 23 s of g++ (measured),
    without a benefit here.
    """
    import torch._dynamo.config as compiler

    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # read when torch._dynamo.config is imported, which Transformers does too
    compiler.disable = True
