"""In which phase of a job memory ran out, by the frames of its traceback, and what each process held, by the message.

Functions are those of torch 2.13, vLLM 0.32, SGLang 0.5.23, verl 0.9, OpenRLHF 0.11 and TRL 1.16, or names that many
trainers share. A stack may have frames of several phases: generation runs forward passes, and a backward pass with
checkpoints computes the forward pass again. So the table is asked in its order, and the first phase of which any
frame is there counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_HOLDERS = 4  # processes on a device that a sentence names
_HELD = re.compile(r"\b(?:Process (?P<pid>\d{1,10})|this process) has (?P<size>[\d.]{1,20} [KMG]iB) memory in use")
FRAME = re.compile(r' +File "(?P<file>[^"]{1,500})", line \d{1,7}, in (?P<function>\S.{0,200})')


class Place(NamedTuple):
    """A frame of a traceback, without its line."""

    function: str
    file: str


class _Phase(NamedTuple):
    words: str
    functions: re.Pattern[str]
    files: re.Pattern[str] = re.compile("")


_PHASES = (
    _Phase("while it synchronised weights", re.compile(
        r"_?(?:sync|update|broadcast|collect|push|receive|reload)_(?:\w{1,20}_)?(?:weights?|params?|named_param)"
        r"(?:_\w{1,60})?")),
    _Phase("while it woke up", re.compile(r"wake_?up(?:_\w{1,40})?|resume_memory_occupation|onload_\w{1,40}")),
    _Phase("while it allocated its KV cache", re.compile(
        r"_?(?:allocate|initialize|init|create|reshape)_(?:\w{1,20}_)?kv_?caches?(?:_\w{1,40})?|init_memory_pool"
        r"|_create_buffers|initialize_from_config")),
    _Phase("while it captured CUDA graphs", re.compile(
        r"capture_model|_capture_cudagraphs|capture_one_batch_size|init_cuda_graphs?")),
    _Phase("while it measured its memory", re.compile(r"profile_run|determine_available_memory")),
    _Phase("while it loaded a model", re.compile(
        r"load_model|load_weights|from_pretrained|load_state_dict|load_checkpoint")),
    _Phase("in the optimizer step", re.compile(r"step|_init_group|_?multi_tensor_\w{1,40}|_single_tensor_\w{1,40}"),
           re.compile(r"/torch/optim/|/optim(?:izers?)?/|/zero/stage")),
    _Phase("in the optimizer step", re.compile(r"_?optimizer_step|step_optimizer")),
    _Phase("while it ran backward", re.compile(r"backward|_engine_run_backward|loss_backward")),
    _Phase("while it generated", re.compile(
        r"_generate(?:_\w{1,40})?|generate(?:_sequences|_and_score_completions|_samples)?|execute_model"
        r"|forward_batch_generation|rollout|run_batch|sample_tokens")),
    _Phase("while it computed log-probabilities", re.compile(
        r"_?compute_(?:\w{1,20}_)?log_?probs?|_get_per_token_logps\w{0,40}|forward_micro_batch|logprobs_from_logits")),
    _Phase("while it ran forward", re.compile(r"forward|_call_impl")),
)  # fmt: skip


def phase_of(places: Iterable[Place]) -> str:
    """The phase in which these frames are, in words; empty if no frame names one."""
    plain = [Place(place.function.rpartition(".")[2], place.file) for place in places]
    return next(
        (
            phase.words
            for phase in _PHASES
            if any(phase.functions.fullmatch(place.function) and phase.files.search(place.file) for place in plain)
        ),
        "",
    )


def holders(line: str, names: Mapping[int, str]) -> str:
    """What each process held of the device, by the message; `names`: pid -> what other lines call it."""
    parts = []
    for held in list(_HELD.finditer(line))[:MAX_HOLDERS]:
        pid = int(held["pid"] or 0)
        name = f" ({names[pid]})" if pid in names else ""
        parts.append(f"{f'Process {pid}{name}' if pid else 'this process'} has {held['size']}")
    return ", ".join(parts)
