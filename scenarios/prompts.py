"""Prompts of a run as token ids: built-in ones made from the seed, or a JSONL or Parquet file of text or chat
messages.

Every prompt is read, checked and encoded before the first step, so that a bad line ends a run at once and not in step
400. The order is a function of the seed alone; each pass over the prompts is shuffled again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probes import limits
from probes.errors import AddressedError
from scenarios.settings import BUILTIN, Prompts, Scenario

KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}  # suffix -> format
FILE = f"--prompts {BUILTIN}   # or a file that ends in .jsonl or .parquet"
CORRECT = f"--prompts {BUILTIN}   # another file, or correct this one at that place"
BUILTIN_COUNT = 256  # a choice: more than the 64 of eight steps, so that the native stage has other ones


class PromptError(AddressedError, ValueError):
    """Prompts that cannot be used. The message names the file and line, what is wrong, and what is possible.

    `fix`: an option of the command line, or what to correct.
    """


class PromptSet:
    """The prompts of a scenario, and for which of them each step draws samples."""

    def __init__(self, ids: list[tuple[int, ...]], scenario: Scenario) -> None:
        self.ids = ids
        self._seed = scenario.seed
        self._per_step = scenario.rollout.prompts_per_step
        self._samples = scenario.rollout.samples_per_prompt
        self._epoch, self._order = -1, [0]

    @property
    def longest(self) -> int:
        """Return the tokens of the longest prompt."""
        return max(map(len, self.ids))

    def batch(self, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return (sample number, prompt ids) of every sample of `step`; samples of one prompt are adjacent.

        Numbers count through the run from zero. They key the samples' randomness and their alignment between runs.
        """
        first = step * self._per_step
        prompts = [self._at(first + row) for row in range(self._per_step)]
        return [
            ((first + row) * self._samples + copy, ids)
            for row, ids in enumerate(prompts)
            for copy in range(self._samples)
        ]

    def _at(self, place: int) -> tuple[int, ...]:
        epoch, index = divmod(place, len(self.ids))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self.ids)))
            random.Random(f"prompts-{self._seed}-{epoch}").shuffle(self._order)
        return self.ids[self._order[index]]


def load(scenario: Scenario, tokenizer: Any) -> PromptSet:
    """Read and encode the prompts of `scenario` with the policy's tokenizer. Raises PromptError."""
    settings = scenario.prompts
    source = _builtin(scenario.seed) if settings.path == BUILTIN else read(settings)
    chat = settings.chat or settings.path == BUILTIN
    if chat and not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            "prompts.chat = true: the model's tokenizer has no chat template; use a text column",
            fix="--set prompts.chat=false --set prompts.column=text",
        )
    ids = [_encode(place, value, tokenizer, settings, chat=chat) for place, value in source]
    if not ids:
        raise PromptError(f"{settings.path}: holds no prompt", fix=FILE)
    return PromptSet(ids, scenario)


def check(settings: Prompts) -> int:
    """Read a file of prompts without encoding them, and return how many there are. Raises PromptError."""
    count = 0
    for place, value in read(settings):
        _check(place, value, settings, chat=settings.chat)
        count += 1
    return count


def _encode(place: str, value: Any, tokenizer: Any, settings: Prompts, *, chat: bool) -> tuple[int, ...]:
    _check(place, value, settings, chat=chat)
    if chat:
        try:
            # The template writes BOS where the model wants one; encoding its text with special tokens would double
            # it.
            text = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is foreign code, and Jinja lets any exception through
            raise PromptError(f"{place}: the chat template refuses it: {error}", fix=CORRECT) from error
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = tokenizer.encode(value)
    if not ids:
        raise PromptError(f"{place}: the prompt is empty", fix=CORRECT)
    if len(ids) > settings.max_tokens:
        raise PromptError(
            f"{place}: the prompt has {len(ids)} tokens, prompts.max_tokens is {settings.max_tokens}; "
            "prompts are never cut: shorten it or raise prompts.max_tokens",
            fix=f"--set prompts.max_tokens={len(ids)}",
        )
    return tuple(ids)


def _check(place: str, value: Any, settings: Prompts, *, chat: bool) -> None:
    if chat:
        _check_chat(place, value, settings.column)
    elif not isinstance(value, str):
        hint = "; set prompts.chat = true for chat messages" if isinstance(value, list) else ""
        raise PromptError(
            f"{place}: column {settings.column!r} holds {_kind(value)}, text was expected{hint}",
            fix="--set prompts.chat=true" if isinstance(value, list) else CORRECT,
        )


def _check_chat(place: str, value: Any, column: str) -> None:
    if not isinstance(value, list) or not value:
        hint = "; set prompts.chat = false for text" if isinstance(value, str) else ""
        raise PromptError(
            f"{place}: column {column!r} holds {_kind(value)}, chat messages were expected{hint}",
            fix="--set prompts.chat=false" if isinstance(value, str) else CORRECT,
        )
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise PromptError(
                f"{place}: message {number} of column {column!r} needs the texts 'role' and 'content'", fix=CORRECT
            )


def _builtin(seed: int) -> Iterator[tuple[str, Any]]:
    from scenarios.models import grammar

    rng = random.Random(f"prompts-{seed}")
    for number in range(BUILTIN_COUNT):
        yield f"{BUILTIN}:{number}", grammar.messages(rng)


def read(settings: Prompts) -> Iterator[tuple[str, Any]]:
    """Return (place for an error message, value of the prompt column) of every row of a file. Raises PromptError."""
    path = Path(settings.path).expanduser()
    if settings.path.startswith("builtin:"):
        raise PromptError(f"prompts.path = {settings.path!r}: no such built-in prompts; there is {BUILTIN!r}", fix=FILE)
    if not path.is_file():
        what = "a directory" if path.is_dir() else "no such file"
        raise PromptError(f"prompts.path = {settings.path!r}: {what}", fix=FILE)
    match KINDS.get(path.suffix.lower()):
        case "jsonl":
            return _jsonl(path, settings.column)
        case "parquet":
            return _parquet(path, settings.column)
        case _:
            message = f"{path}: unknown kind of file {path.suffix.lower()!r}; prompts are .jsonl or .parquet"
            raise PromptError(message, fix=FILE)


def _jsonl(path: Path, column: str) -> Iterator[tuple[str, Any]]:
    with limits.open_file(path) as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.rstrip(b"\r\n"))
            except UnicodeDecodeError as error:
                raise PromptError(
                    f"{place}: is not UTF-8 text: {error.reason} at byte {error.start}", fix=CORRECT
                ) from error
            except json.JSONDecodeError as error:
                raise PromptError(
                    f"{place}: is not valid JSON: {error.msg} at column {error.colno}", fix=CORRECT
                ) from error
            if not isinstance(row, dict):
                raise PromptError(f"{place}: holds {_kind(row)}, a JSON object was expected", fix=CORRECT)
            if column not in row:
                raise PromptError(
                    f"{place}: has no column {column!r}; it has {_names(row)}: set prompts.column",
                    fix=f"--set prompts.column={next(iter(row), 'text')}",
                )
            yield place, row[column]


def _parquet(path: Path, column: str) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise PromptError(f"{path}: is not a readable Parquet file: {str(error).splitlines()[0]}", fix=FILE) from error
    names = file.schema_arrow.names
    if column not in names:
        raise PromptError(
            f"{path}: has no column {column!r}; it has {_names(names)}: set prompts.column",
            fix=f"--set prompts.column={next(iter(names), 'text')}",
        )
    number = 0
    for batch in file.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            number += 1
            yield f"{path}:{number}", value


def _names(columns: Any) -> str:
    return ", ".join(repr(name) for name in columns) or "no columns at all"


def _kind(value: Any) -> str:
    names = {type(None): "null", str: "text", list: "a list", dict: "an object", bool: "a boolean"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)


def described(tokenizer: Any) -> dict[str, Any]:
    """Return what ids mean to this tokenizer, as plain data.

    `size`: how many ids it has. `bos`, `eos`, `pad`, `specials`: its special ids. `generation_prompt`: the ids with
    which its chat template ends a prompt so that the model answers; empty without a template.
    """
    return {
        "size": len(tokenizer),
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
        "specials": sorted(set(tokenizer.all_special_ids)),
        "generation_prompt": _generation_prompt(tokenizer),
    }


def _generation_prompt(tokenizer: Any) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        return []
    turn = [{"role": "user", "content": "a"}]
    without, with_prompt = (
        tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=add) for add in (False, True)
    )
    if not with_prompt.startswith(without):
        return []
    return list(tokenizer(with_prompt[len(without) :], add_special_tokens=False)["input_ids"])
