"""What a parameter means in each engine, and the trap between them: the table that checks 6 and 7 speak from.

Read in the installed source of vLLM 0.32.0 and SGLang 0.5.23. docs/reference/parameters.md shows it as a table. The
native names and how their values are read back stand in `scenarios.engines.given`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from scenarios.engines import given

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "hf": "the embedded engine"}


@dataclass(frozen=True)
class Meaning:
    """One concept. `canonical`: its name in the harness's settings, empty where there is none to set. `more`: being
    given more than was asked takes nothing away. `results`: another value may change results, not only speed."""

    concept: str
    part: Literal["engine", "sampling", "answer"]
    canonical: str
    vllm: str
    sglang: str
    trap: str
    more: bool = False
    results: bool = True

    def native(self, engine: str) -> str:
        """The engine's own name of it; empty where it has none."""
        table = {"engine": given.ENGINE, "sampling": given.SAMPLING}.get(self.part, {})
        found = table.get(engine, {}).get(self.canonical)
        return found.name if found is not None else ""


def _engine(*words: str, **flags: bool) -> Meaning:
    concept, canonical, vllm, sglang, trap = words
    return Meaning(concept, "engine", canonical, vllm, sglang, trap, **flags)


def _sampling(*words: str) -> Meaning:
    concept, canonical, vllm, sglang, trap = words
    return Meaning(concept, "sampling", canonical, vllm, sglang, trap)


def _answer(*words: str) -> Meaning:
    concept, vllm, sglang, trap = words
    return Meaning(concept, "answer", "", vllm, sglang, trap)


TABLE: tuple[Meaning, ...] = (
    _engine(
        "data type", "dtype", "auto: bfloat16 of a float32 checkpoint on a CPU", "auto: float16",
        "auto is another type in each engine: always explicit",
    ),
    _engine(
        "engine seed", "seed", "0 when left out", "random when left out",
        "unmapped, a run does not repeat",
    ),
    _engine(
        "context", "max_model_len", "stops at prompt + response = max_model_len",
        "answers min(asked, context - prompt - 2, room in the KV pool); a prompt of context - 6 or more is rejected",
        "silent shortening: 1024 + 1024 in 2048 gives 1024 in vLLM and 1022 in SGLang", more=True,
    ),
    _engine(
        "eager", "enforce_eager", "no CUDA graphs and no compilation", "no CUDA graphs",
        "disable_cuda_graph is enforce_eager itself, not its negation",
    ),
    _engine(
        "graph padding", "graph_padding", "no such parameter", "batches are padded to the size of a captured graph",
        "it has nothing to do with prefix caching", results=False,
    ),
    _engine(
        "prefix cache", "prefix_caching", "on unless switched off", "on unless disable_radix_cache",
        "the negation of SGLang's flag; to be flushed after a weight sync", results=False,
    ),
    _engine(
        "chunked prefill", "chunked_prefill", "a flag", "a number of tokens; -1 is off",
        "a flag against a size", results=False,
    ),
    _engine(
        "concurrency", "max_num_seqs", "sequences in one batch", "requests that run at once",
        "other batches round otherwise", more=True,
    ),
    _engine(
        "tensor parallelism", "tensor_parallel", "workers", "workers", "another order of summation",
    ),
    _engine(
        "memory", "memory_fraction", "the executor's whole share of the accelerator", "weights and KV pool only",
        "copied 1:1, the KV pools differ, and with them what is preempted",
    ),
    _engine(
        "KV pool", "kv_cache_tokens", "blocks times their size", "tokens",
        "too small, an engine cuts samples short or preempts them", more=True,
    ),
    _engine(
        "generation_config.json", "generation_config", "fills in what a request leaves out, unless \"vllm\"",
        "fills it in at the OpenAI endpoint only", "a temperature or top_p of the model's file leaks into the run",
    ),
    _engine(
        "KV data type", "kv_cache_dtype", "auto, fp8, fp8_e5m2", "auto, fp8_e4m3, fp8_e5m2", "SGLang knows no fp8",
    ),
    _sampling(
        "temperature", "temperature", "between 0 and 0.01 it becomes 0.01; 0 is greedy", "below 1e-6 greedy",
        "1e-7: one samples, the other is greedy",
    ),
    _sampling(
        "top-k", "top_k", "off: 0 or -1; before top-p, which is over what top-k leaves",
        "off: -1; with top-p both are taken from the unfiltered mass", "joint against sequential: another support",
    ),
    _sampling(
        "top-p", "top_p", "over the renormalised top-k", "over the unfiltered mass", "as for top-k",
    ),
    _sampling("min-p", "min_p", "before top-k and top-p", "after them", "together with top-p, another support"),
    _sampling(
        "repetition penalty", "repetition_penalty", "prompt and output", "output only",
        "the prompt is not penalised in SGLang",
    ),
    _sampling("most tokens", "max_tokens", "16 when left out", "128 when left out", "other lengths when left out"),
    _sampling(
        "fewest tokens", "min_tokens", "masks end tokens and holds stop strings back",
        "masks end tokens; needs a tokenizer", "easily dropped: it has another name",
    ),
    _sampling(
        "tokens that stop", "stop_token_ids", "beside the model's own ends", "the same, unless ignore_eos",
        "the engines read the model's own ends from different files: compare what they resolved",
    ),
    _sampling(
        "ignore the end", "ignore_eos", "explicit stop_token_ids still stop", "disables stop_token_ids too",
        "stops that were asked for are gone",
    ),
    _answer(
        "request seed", "seed; child i of n gets seed + i", "sampling_seed, ignored unless deterministic",
        "ignored, or n children share one: clones",
    ),
    _answer(
        "log-probabilities", "raw: before penalties and temperature; processed: after temperature and filters",
        "after penalties and temperature, before the filters", "ask for raw ones at temperature 1 on both sides",
    ),
    _answer(
        "end-of-sequence set", "the tokenizer's and generation_config.json's",
        "those, config.json's, and extras such as eom_id", "other sets stop at other places",
    ),
    _answer(
        "finish reason", "a string, and stop_reason",
        "a dict; ids outside the vocabulary are rewritten to a stop that matched \"NaN happened\"",
        "a NaN that looks like a stop",
    ),
    _answer("stop text", "include_stop_str_in_output", "no_stop_trim", "one is the other's default"),
    _answer("text prompts", "special tokens are added", "the same", "a second BOS behind a chat template: send ids"),
    _answer("bad words", "bad_words", "none", "refused, never dropped"),
    _answer(
        "sleep", "enable_sleep_mode, nothing on a CPU", "enable_memory_saver and tags",
        "awake without a reload, the weights are stale",
    ),
    _answer(
        "no tokenizer", "ids only", "no stop strings and no least length either", "keep the tokenizer and send ids",
    ),
)  # fmt: skip

NEVER_ASKED = ("graph_padding", "generation_config")  # no setting asks for them: engines are left to their defaults
BY_NAME = {one.canonical: one for one in TABLE if one.canonical}


def title(engine: Any) -> str:
    return TITLES.get(str(engine), str(engine))


def lost(name: str, engine: str, asked: Any, given_value: Any, native: dict[str, Any], *, dropped: bool = False) -> str:
    """One sentence: what became of `name` on its way to this engine. `dropped`: no argument follows it."""
    meaning = BY_NAME.get(name)
    argument = meaning.native(engine) if meaning is not None else ""
    trap = f" ({meaning.trap})" if meaning is not None else ""
    if not argument:
        return f"{name}: asked {asked!r}, {title(engine)} was given {given_value!r}{trap}"
    if native.get(argument) is None:
        rest = f", which then is {given_value!r}" if given_value is not None else ""
        return f"{name}: asked {asked!r}, {title(engine)} was given no {argument}{rest}: dropped{trap}"
    wanted = "nothing was asked" if name in NEVER_ASKED else f"asked {asked!r}"
    held = f"{name}: {wanted}, {title(engine)}'s {argument} = {native[argument]!r}"
    if name in NEVER_ASKED:
        return held + trap
    if isinstance(asked, bool) and given_value == (not asked) and not dropped:
        return f"{held}: inverted{trap}"
    if dropped:
        return f"{held} whatever is asked: fixed{trap}"
    return f"{held}, which is {given_value!r}{trap}" if given_value != native[argument] else held + trap
