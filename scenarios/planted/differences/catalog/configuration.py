"""Faults of what the engines are started with, and differences that make a comparison void."""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

FAULTS = (
    Fault(
        "eager-inverted",
        "the mapping inverts the eager flag, which changes nothing on a CPU and is said all the same",
        pair=("vllm", "sglang"),
        mapping={"edits": {"engine": {"disable_cuda_graph": False}}},
        expected="EQUIVALENT",
        findings=("CONFIG(enforce_eager)",),
    ),
    Fault(
        "graph-padding",
        "the mapping ties the padding of graphs to prefix caching",
        pair=("vllm", "sglang"),
        mapping={"edits": {"engine": {"disable_cuda_graph_padding": True}}},
        expected="EQUIVALENT",
        findings=("CONFIG(graph_padding)",),
    ),
    Fault(
        "dtype-auto",
        "the mapping leaves the dtype to the engine, which takes another than float32",
        mapping={"edits": {"engine": {"dtype": "auto"}}},
        pair=("vllm", "sglang"),
        causes=("CONFIG(dtype)",),
        party="mapping",
        half=None,  # it takes the requested type
    ),
    Fault(
        "dtype-bfloat16",
        "the mapping starts the engine in bfloat16",
        mapping={"edits": {"engine": {"dtype": "bfloat16"}}},
        causes=("CONFIG(dtype)",),
        party="mapping",
        half={
            "summary": "the mapping starts the engine in float16",
            "mapping": {"edits": {"engine": {"dtype": "float16"}}},
            "expected": "EQUIVALENT",  # it rounds less, and the verdict mentions it
            "causes": (),
            "party": "",
            "findings": ("CONFIG(dtype)",),
        },
    ),
    Fault(
        "seed-unmapped",
        "the mapping does not pass the engine's seed on: nothing in a coupled run, said all the same",
        pair=("vllm", "sglang"),
        mapping={"edits": {"engine": {"random_seed": None}}},
        expected="EQUIVALENT",
        findings=("CONFIG(seed)",),
    ),
    Fault(
        "generation-config",
        "the mapping drops the temperature, and the model's own sampling defaults fill it in",
        pair=("sglang", "vllm"),
        mapping={
            "edits": {
                "engine": {"generation_config": "auto", "override_generation_config": {"temperature": 0.7}},
                "sampling": {"temperature": None},
            }
        },
        causes=("CONFIG(generation_config)",),
        party="mapping",
    ),
    Fault(
        "generation-config-hf",
        "the mapping drops the temperature, and the model's own sampling defaults fill it in",
        pair=("hf", "hf"),
        mapping={
            "edits": {
                "engine": {"generation_config": "auto", "override_generation_config": {"temperature": 0.7}},
                "sampling": {"temperature": None},
            }
        },
        causes=("CONFIG(generation_config)",),
        party="mapping",
    ),
    Fault(
        "memory-fraction",
        "the mapping copies vLLM's share of the memory to SGLang, where it means another",
        pair=("vllm", "sglang"),
        mapping={"edits": {"engine": {"mem_fraction_static": 0.9}}},
        expected="EQUIVALENT",
        findings=("CONFIG(memory_fraction)",),
    ),
    Fault(
        "train-batch-halved",
        "the learner's batch is halved",
        settings=("ppo.train_batch_size=8", "ppo.micro_batch_size=8"),
        expected="CONFOUNDED",
        confounders=("ppo.train_batch_size",),
    ),
    Fault(
        "fewer-samples",
        "the candidate draws two samples a prompt, the baseline four",
        settings=("rollout.samples_per_prompt=2",),
        expected="CONFOUNDED",
        confounders=("rollout.samples_per_prompt",),
    ),
    Fault(
        "other-environment",
        "the learner of the candidate ran with another version of torch",
        recording={"packages": {"torch": "2.4.1"}},
        expected="CONFOUNDED",
        confounders=("learner environment",),
    ),
)
