"""Prompts from files and from the seed: what is read, in which order, and what is said of a bad line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import built_in_tokenizer
import pyarrow
import pyarrow.parquet
import pytest

from scenarios import prompts
from scenarios.models import tokenizer as bpe
from scenarios.prompts import PromptError, PromptSet
from scenarios.settings import Prompts, Rollout, Scenario

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

CHAT = [{"role": "user", "content": "Tell me about the mill."}]


def load(path: Path, tokenizer: Any = None, **settings: Any) -> PromptSet:
    scenario = Scenario(prompts=Prompts(path=str(path), **settings))
    return prompts.load(scenario, tokenizer or built_in_tokenizer.trained())


def jsonl(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "p.jsonl"
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def test_text_gets_the_tokenizer_s_own_special_tokens(tmp_path: Path) -> None:
    loaded = load(jsonl(tmp_path, {"prompt": "The mill"}, {"prompt": "The park is warm"}))
    tokenizer = built_in_tokenizer.trained()
    assert loaded.ids == [tuple(tokenizer.encode("The mill")), tuple(tokenizer.encode("The park is warm"))]
    assert loaded.ids[0][0] == tokenizer.bos_token_id
    assert loaded.longest == len(loaded.ids[1])


def test_chat_messages_go_through_the_template_once(tmp_path: Path) -> None:
    loaded = load(jsonl(tmp_path, {"chat": CHAT}), column="chat", chat=True)
    tokenizer = built_in_tokenizer.trained()
    assert list(loaded.ids[0]) == bpe.chat_ids(tokenizer, CHAT, generate=True)
    assert loaded.ids[0].count(tokenizer.bos_token_id) == 1


def test_parquet_holds_the_same_prompts(tmp_path: Path) -> None:
    text, chat = tmp_path / "t.parquet", tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["The mill", "The park"], "other": [1, 2]}), text)
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [CHAT, CHAT]}), chat)
    assert load(text).ids == load(jsonl(tmp_path, {"prompt": "The mill"}, {"prompt": "The park"})).ids
    assert load(chat, chat=True).ids == load(jsonl(tmp_path, {"prompt": CHAT}, {"prompt": CHAT}), chat=True).ids


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        ([{"prompt": "a"}, b'{"prompt": "b'], {}, r"p\.jsonl:2: is not valid JSON: Unterminated string .* column 12"),
        ([{"prompt": "a"}, b"\xff"], {}, r"p\.jsonl:2: is not UTF-8"),
        ([["a"]], {}, r"p\.jsonl:1: holds a list, a JSON object was expected"),
        ([{"text": "a", "id": 3}], {}, r"p\.jsonl:1: has no column 'prompt'; it has 'text', 'id': set prompts\.column"),
        ([{"prompt": 3}], {}, r"p\.jsonl:1: column 'prompt' holds a number, text was expected"),
        ([{"prompt": None}], {}, r"p\.jsonl:1: column 'prompt' holds null"),
        ([{"prompt": CHAT}], {}, r"text was expected; set prompts\.chat = true"),
        ([{"prompt": "a"}], {"chat": True}, r"chat messages were expected; set prompts\.chat = false"),
        ([{"prompt": [{"role": "user"}]}], {"chat": True}, r"message 0 of column 'prompt' needs the texts"),
        ([{"prompt": []}], {"chat": True}, r"chat messages were expected"),
        ([{"prompt": "The mill " * 60}], {}, r"p\.jsonl:1: the prompt has \d+ tokens, prompts\.max_tokens is 64"),
        ([], {}, r"p\.jsonl: holds no prompt"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(
    tmp_path: Path, lines: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        load(jsonl(tmp_path, *lines), **settings)


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    class Plain:
        chat_template = None

        def encode(self, text: str, **_: Any) -> list[int]:
            return list(text.encode())

    with pytest.raises(PromptError, match=r"p\.jsonl:1"):
        load(jsonl(tmp_path, {"prompt": ""}), tokenizer=Plain())
    with pytest.raises(PromptError, match="no chat template"):
        load(jsonl(tmp_path, {"prompt": CHAT}), tokenizer=Plain(), chat=True)


def test_blank_lines_are_no_prompts_but_count_as_lines(tmp_path: Path) -> None:
    assert len(load(jsonl(tmp_path, {"prompt": "a"}, b"", {"prompt": "b"})).ids) == 2
    with pytest.raises(PromptError, match=r"p\.jsonl:3"):
        load(jsonl(tmp_path, {"prompt": "a"}, b"", b"{"))


def test_a_bad_parquet_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(PromptError, match=r"b\.parquet"):
        load(broken)
    table = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "id": [1]}), table)
    with pytest.raises(PromptError, match=r"it has 'text', 'id'"):
        load(table)
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", None]}), table)
    with pytest.raises(PromptError, match=r"c\.parquet:2: column 'prompt'"):
        load(table)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/p.jsonl", "no such file"),
        ("builtin:large", "no such built-in prompts; there is 'builtin:tiny'"),
        (__file__, r"unknown kind of file '\.py'; prompts are \.jsonl or \.parquet"),
    ],
)
def test_a_path_that_holds_no_prompts(path: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        load(Path(path))


def test_built_in_prompts_follow_the_seed() -> None:
    tokenizer = built_in_tokenizer.trained()
    zero, again, one = (prompts.load(Scenario(seed=seed), tokenizer) for seed in (0, 0, 1))
    assert zero.ids == again.ids != one.ids
    assert zero.longest <= Prompts().max_tokens
    assert zero.batch(3) == again.batch(3)


def test_sample_numbers_count_through_the_run() -> None:
    scenario = Scenario(rollout=Rollout(prompts_per_step=2, samples_per_prompt=3))
    batch = PromptSet([(number,) for number in range(5)], scenario)
    assert [number for number, _ in batch.batch(4)] == list(range(24, 30))
    ids = [prompt for _, prompt in batch.batch(4)]
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4] == ids[5]


def test_every_epoch_shuffles_all_prompts_anew() -> None:
    scenario = Scenario(rollout=Rollout(prompts_per_step=5, samples_per_prompt=1))
    batch = PromptSet([(number,) for number in range(10)], scenario)
    epochs = [[ids[0] for step in (2 * k, 2 * k + 1) for _, ids in batch.batch(step)] for k in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_step_may_span_two_epochs_and_need_not_follow_the_one_before() -> None:
    scenario = Scenario(rollout=Rollout(prompts_per_step=4, samples_per_prompt=1))
    forward, backward = (PromptSet([(number,) for number in range(6)], scenario) for _ in range(2))
    assert [forward.batch(step) for step in range(4)] == [backward.batch(step) for step in (3, 2, 1, 0)][::-1]
