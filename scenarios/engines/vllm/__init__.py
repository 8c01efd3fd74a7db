"""vLLM: its engine, its coupled draw, its weight receiver."""

from probes.engines import BUILT_IN
from scenarios.engines.spec import EngineSpec, FramePattern
from scenarios.engines.vllm import parameters

PROCESS = BUILT_IN["vllm"]
SPEC = EngineSpec(
    name="vllm",
    title="vLLM",
    factory="scenarios.engines.vllm.engine:VLLMEngine",
    distributions=PROCESS.packages,
    accepts="scenarios.engines.vllm.accepted:accepted",
    maps=lambda requested, longest_context: parameters.engine(requested),
    machine=parameters.machine,
    longer_context="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    engine_arguments=parameters.ENGINE,
    spellings=parameters.SPELLINGS,
    sampling_arguments=parameters.SAMPLING,
    carried_arguments=parameters.CARRIED,
    without_argument=parameters.WITHOUT_ARGUMENT,
    refusal=parameters.refusal,
    unlike=parameters.unlike,
    logprobs="raw",  # vLLM 0.32: config/model.py, logprobs_mode
    pads=False,
    reloads_modules=True,  # when only one of q, k and v was sent, it lost the other two (measured, 0.32.0)
    process=PROCESS,
    frames=(
        FramePattern("transition", r"sleep|wake_up|wake_up_async|pause_scheduler|resume_scheduler", r"vllm/"),
        # work for an order, outside of its loop (zeroing the KV cache takes a minute where memory is slow)
        FramePattern("compute", r"\w+", r"vllm/(v1/worker|model_executor)/", "work"),
        # functions of its loop that run only for an order; one that runs in every turn would hide an idle loop
        FramePattern(
            "compute", r"_process_engine_step|_handle_client_request|_execute_worker_rpc", r"vllm/v1/", "work"
        ),
        FramePattern(
            "scheduler",
            r"run_busy_loop|worker_busy_loop|scheduler_loop|run_engine_core",
            op="busy loop",
        ),
        *(FramePattern("scheduler", function, op="busy loop") for _, function in PROCESS.idle),
        FramePattern("engine_call", r"get_output|_recv_output|call_utility|collective_rpc|get_response", r"vllm/"),
        FramePattern(
            "join", r"wait_for_engine_startup|wait_for_ready", r"/vllm/", "the start of the engine's processes"
        ),
    ),
)
