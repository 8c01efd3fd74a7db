"""The sample browser: what is embedded, what is left out, and text from outside that stays text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import reports_examples as examples

from probes.format import Flat, Ragged, encode_frame
from reports import render
from reports.model import Place, Verdict
from reports.sections import samples


def record(
    folder: Path,
    outputs: list[list[int]],
    logprobs: list[list[float]],
    finish: str = "stop",
    prompts_seen: list[list[int]] | None = None,
) -> None:
    (folder / "tokens").mkdir(parents=True)
    arrays = {
        "sample": Flat.of(list(range(len(outputs))), "i8"),
        "prompt": Ragged.of([[1, 2, 3]] * len(outputs), "i4"),
        "output": Ragged.of(outputs, "i4"),
        "logprob": Ragged.of(logprobs, "f4"),
    }
    if prompts_seen is not None:
        arrays["prompt_seen"] = Ragged.of(prompts_seen, "i4")
    frame = encode_frame("rollout", 0, "rollout", 0, {"finish": [finish] * len(outputs)}, arrays)
    (folder / "tokens" / "rollout-0-1.bin").write_bytes(frame)


def of(folder: Path, place: Place | None = None, backend: str = "vllm") -> Verdict:
    verdict = examples.equivalent()
    assert verdict.parity is not None
    runs = [
        dataclasses.replace(run, path=str(folder / run.side), backend=backend, series={}) for run in verdict.parity.runs
    ]
    body = dataclasses.replace(verdict.parity, runs=runs, first_divergence=place, series={})
    return dataclasses.replace(verdict, parity=body)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    record(tmp_path / "baseline", [[5, 6, 2], [7, 2]], [[-0.5, -1.0, -0.1], [-2.0, -0.2]])
    record(tmp_path / "candidate", [[5, 9, 2], [7, 2]], [[-0.5, -3.0, -0.1], [-2.0, -0.2 + 1e-6]])
    return tmp_path


def embedded(page: str) -> tuple[dict, bytes]:
    head, data = (unescape(text) for text in re.findall(r"<template data-part=\"\w+\">(.*?)</template>", page, re.S))
    return json.loads(head), zlib.decompress(base64.b64decode(data))


def test_both_runs_are_embedded_as_the_page_reads_them(pair: Path) -> None:
    head, data = embedded(render(of(pair, Place(0, "rollout", 0, 0, 1, "token", 6, 9)), "html"))
    assert (head["samples"], head["prompts"], head["tokens"]) == (2, 1, 10)
    assert head["first"] == {"step": 0, "sample": 0, "position": 1, "field": "token", "part": "response"}
    assert head["finish"] == ["stop"]
    integers = np.frombuffer(data, "<i4", 11 * 2 + 1 + 3 + 10)
    columns = [list(column) for column in integers[:22].reshape(11, 2)]  # step, sample, prompts, lengths, ends, firsts
    assert columns == [[0, 0], [0, 1], [0, 0], [0, 0], [3, 2], [3, 2], [0, 0], [0, 0], [1, -1], [-1, -1], [-1, -1]]
    assert list(integers[23:26]) == [1, 2, 3]
    assert list(integers[26:]) == [5, 6, 2, 0, 3, 0, 7, 2, 0, 0]  # the candidate's ids less the baseline's
    numbers = np.frombuffer(data, "<f2", 10, 4 * 36)
    assert numbers[:3] == pytest.approx([-0.5, -1.0, -0.1], rel=1e-3)
    assert numbers[3:6] == pytest.approx([0, -3.0, 0], rel=1e-3)  # another token: its own log-probability
    assert numbers[9] / head["scale"] == pytest.approx(1e-6, rel=0.1)


def first_places(folder: Path, floor: dict[str, float]) -> list[list[int]]:
    """The first other token and the first log-probability beyond the tolerance, of each sample."""
    verdict = of(folder)
    assert verdict.parity is not None
    browser = samples.of(dataclasses.replace(verdict.parity, floor=floor))
    assert isinstance(browser, samples.Samples)
    count = json.loads(browser.head)["samples"]
    table = np.frombuffer(zlib.decompress(base64.b64decode(browser.payload)), "<i4", 11 * count).reshape(11, count)
    return [list(column) for column in table[8:10].T]


def test_every_sample_whose_prompt_differs_has_both_prompts_and_the_first_place(tmp_path: Path) -> None:
    """What the engines saw counts, where they say it; a prompt that ends before the other differs at its end."""
    outputs, logprobs = [[5], [6], [7], [8]], [[-0.5]] * 4
    record(tmp_path / "baseline", outputs, logprobs)
    record(tmp_path / "candidate", outputs, logprobs, prompts_seen=[[1, 2, 3], [1, 9, 3], [1, 2], [4, 1, 2, 3]])
    head, data = embedded(render(of(tmp_path), "html"))
    table = np.frombuffer(data, "<i4", 11 * 4).reshape(11, 4)
    assert table[10].tolist() == [-1, 1, 2, 0]
    lengths = np.frombuffer(data, "<i4", head["prompts"], 4 * 44)
    ids = np.frombuffer(data, "<i4", head["prompt_tokens"], 4 * (44 + head["prompts"]))
    prompts = [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]
    assert [prompts[at] for at in table[2]] == [[1, 2, 3]] * 4
    assert [prompts[at] for at in table[3]] == [[1, 2, 3], [1, 9, 3], [1, 2], [4, 1, 2, 3]]


def test_equal_tokens_are_not_called_other_tokens(tmp_path: Path) -> None:
    """A log-probability beyond the tolerance at position 0 is a place of its own, beside another token at 1."""
    record(tmp_path / "baseline", [[273, 6, 2], [7, 2], [4]], [[-0.5, -1.0, -0.1], [-2.0, -0.2], [-1.0]])
    record(tmp_path / "candidate", [[273, 9, 2], [7, 2], [4, 2]], [[-0.7, -3.0, -0.9], [-2.0, -0.2], [-1.0, -0.5]])
    assert first_places(tmp_path, {"tolerance": 1e-4}) == [[1, 0], [-1, -1], [1, -1]]
    assert first_places(tmp_path, {"tolerance": 0.3}) == [[1, -1], [-1, -1], [1, -1]]
    assert first_places(tmp_path, {"tolerance": 0.3, "tolerance between engines": 1e-4})[0] == [1, 0]


@pytest.mark.slow
def test_the_policy_admits_exactly_the_one_script_and_nothing_is_fetched(pair: Path) -> None:
    page = render(of(pair), "html")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|import\(", script)
    assert page == render(of(pair), "html")


def test_numbers_in_base64_that_look_like_a_token_are_not_withheld(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = base64.b64encode(base64.b64decode("AA/eyJ" + "a1" * 13))  # as a web token begins, behind a slash
    monkeypatch.setattr(samples, "of", lambda parity: samples.Samples(data.decode(), "{}", ""))
    assert data.decode() in render(of(pair), "html")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    attack = "</script></template><script>alert(1)</script>" + examples.HOSTILE
    for side in ("baseline", "candidate"):
        record(tmp_path / side, [[1]], [[-1.0]], finish=attack)
    page = render(of(tmp_path, backend=attack), "html")
    assert page.count("<script") == 1 and page.count("<template") == page.count("</template>") == 2
    head, _ = embedded(page)
    assert "<script>alert(1)</script>" in head["finish"][0] and "<script>alert(1)</script>" in head["sides"][0]


def test_it_can_be_used_without_a_mouse_or_colours(pair: Path) -> None:
    page = render(of(pair), "html")
    parts = ('role="listbox" tabindex="0"', 'aria-live="polite"', "<noscript>", "prefers-contrast", "forced-colors")
    for part in parts:
        assert part in page
    assert "ArrowDown" in page and "ArrowRight" in page and "prefers-color-scheme: dark" in page


@pytest.mark.slow
def test_ten_thousand_samples_fit(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    outputs = [random.integers(0, 150_000, 48).tolist() for _ in range(10_000)]
    logprobs = [(-random.exponential(1, 48)).tolist() for _ in range(10_000)]
    record(tmp_path / "baseline", outputs, logprobs)
    record(tmp_path / "candidate", outputs, [[value + 1e-5 for value in row] for row in logprobs])
    page = render(of(tmp_path), "html")
    assert embedded(page)[0]["samples"] == 10_000 and len(page) < 8_000_000


def test_above_the_bound_the_samples_that_differ_most_stay_and_the_page_says_so(pair: Path) -> None:
    parity = of(pair).parity
    assert parity is not None
    kept = samples.of(parity, most_bytes=98)
    assert isinstance(kept, samples.Samples)
    assert kept.note == "1 of 2 samples: those that differ most; more would take over 98 bytes"
    packed = np.frombuffer(zlib.decompress(base64.b64decode(kept.payload)), "<i4", 7)
    assert list(packed[:2]) == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "torn", "empty"])
def test_recordings_that_cannot_be_read_cost_the_browser_only(pair: Path, damage: str) -> None:
    file = pair / "candidate" / "tokens" / "rollout-0-1.bin"
    if damage == "gone":
        file.unlink()
        file.parent.rmdir()
    else:
        file.write_bytes(file.read_bytes()[:-9] if damage == "torn" else b"")
    page = render(of(pair), "html")
    assert ("no sample browser" in page) == (damage == "gone")
    if damage != "gone":  # the baseline's samples are shown, the candidate's absent
        assert list(np.frombuffer(embedded(page)[1], "<i4", 22).reshape(11, 2)[5]) == [-1, -1]
