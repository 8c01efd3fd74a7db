"""Planted: verl's engines lose the first ids of some prompts, after the client has sent them whole.

In the scheduler's process, before the engine makes its own request: the last sample of each group in the first step,
known by its coupled draw.
"""

from __future__ import annotations

import functools
from typing import Any

from after_import import after

CUT = 4
_STEP, _GROUP = 44, 4  # as scenarios.jobs.verl numbers samples; the job's groups


def _wanted(told: Any) -> bool:
    sample = ((told or {}).get("rlhf_harness_draw") or {}).get("sample", 0)
    return sample >> _STEP == 1 and sample % (1 << 12) == _GROUP - 1


@after("vllm.v1.engine.core")
def _vllm(module: Any) -> None:
    original = module.EngineCore.preprocess_add_request

    @functools.wraps(original)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        if _wanted(getattr(request.sampling_params, "extra_args", None)):
            request.prompt_token_ids = request.prompt_token_ids[CUT:]
        return original(self, request)

    module.EngineCore.preprocess_add_request = preprocess_add_request


@after("sglang.srt.managers.scheduler")
def _sglang(module: Any) -> None:
    original = module.Scheduler.handle_generate_request

    @functools.wraps(original)
    def handle_generate_request(self: Any, recv_req: Any, **kwargs: Any) -> Any:
        if _wanted(getattr(recv_req.sampling_params, "custom_params", None)):
            recv_req.input_ids = recv_req.input_ids[CUT:]
        return original(self, recv_req, **kwargs)

    module.Scheduler.handle_generate_request = handle_generate_request
