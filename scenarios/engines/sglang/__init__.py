"""SGLang: its engine, its coupled draw, its plugin."""

from probes.engines import BUILT_IN
from scenarios.engines.sglang import parameters
from scenarios.engines.sglang.plugin import SWITCH
from scenarios.engines.spec import EngineSpec, FramePattern

PROCESS = BUILT_IN["sglang"]
SPEC = EngineSpec(
    name="sglang",
    title="SGLang",
    factory="scenarios.engines.sglang.engine:SGLangEngine",
    distributions=("sglang",),
    entry_points={"sglang.srt.plugins": "scenarios.engines.sglang.plugin:register"},
    coupled_variables={SWITCH: "1"},
    accepts="scenarios.engines.sglang.accepted:accepted",
    maps=lambda requested, longest_context: parameters.engine(requested, longest_context=longest_context),
    machine=parameters.machine,
    engine_arguments=parameters.ENGINE,
    spellings=parameters.SPELLINGS,
    sampling_arguments=parameters.SAMPLING,
    carried_arguments=parameters.CARRIED,
    always=parameters.ALWAYS,
    without_argument=parameters.WITHOUT_ARGUMENT,
    refusal=parameters.refusal,
    unlike=parameters.unlike,
    most_scored=parameters.most_scored,
    # SGLang 0.5.23, layers/sampler.py: log-softmax of logits after penalties and temperature
    logprobs="tempered",
    pads=False,
    defaults_at_endpoint_only=True,
    routed=True,
    process=PROCESS,
    preload=(
        "sglang",
        "sglang.srt.entrypoints.engine",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
    ),
    frames=(
        FramePattern("transition", r"release_memory_occupation|resume_memory_occupation"),
        # work for an order, outside of its loop
        FramePattern("compute", r"\w+", r"sglang/srt/(model_executor|layers|models|mem_cache)/", "work"),
        # functions of its loop that run only for an order; one that runs in every turn would hide an idle loop
        FramePattern("compute", r"process_batch_result\w*|pop_and_process", r"sglang/srt/", "work"),
        # where its ranks get their orders; all but the first get them by a broadcast from it
        *(FramePattern("orders", function) for _, function in PROCESS.orders),
        FramePattern("scheduler", r"event_loop\w*|run_event_loop\w*|dispatch_event_loop", op="event loop"),
        FramePattern(
            "engine_call",
            r"\w*",
            r"sglang/srt/managers/tokenizer_(manager|control_mixin|communicator_mixin)",
            "request",
        ),
        FramePattern(
            "join", r"wait_for_ready|_wait_for_scheduler_ready", r"/sglang/", "the start of the engine's processes"
        ),
    ),
)
