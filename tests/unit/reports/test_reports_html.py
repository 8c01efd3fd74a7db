"""The HTML report: self-contained, byte-stable, and proof against text that attacks it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import reports_examples as examples

from reports import render
from reports.model import Parity, Place, RunSummary
from reports.sections import parity as arrange
from reports.sections.charts import charts, line
from reports.sections.svg import StyleSheet

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    """What a browser would see: elements with their attributes, text, and whether every element closes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def attributes(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


EXAMPLES = {example.__name__: example for example in examples.ALL}


class Rendered(dict):
    """The page of each example, by its name, drawn when a test first asks for it."""

    def __missing__(self, name):
        self[name] = render(EXAMPLES[name](), "html")
        return self[name]


@pytest.fixture(scope="module")
def pages():
    return Rendered()


@pytest.mark.slow
def test_two_renderings_are_the_same_bytes(pages):
    assert render(examples.stale_tensor(), "html") == pages["stale_tensor"]


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_loaded_run_or_sent(pages, name):
    page = Page(pages[name])
    assert page.open == []
    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base", "image"}
    )
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on") and key not in ("style", "src", "srcset", "action"), (tag, key)
            if key.endswith("href"):
                assert value.startswith("#")
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", pages[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_policy_admits_exactly_the_one_style_sheet(pages, name):
    (style,) = re.findall(r"<style>(.*?)</style>", pages[name], re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [
        a["content"] for tag, a in Page(pages[name]).elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_identifiers_are_unique_and_every_reference_resolves(pages, name):
    identifiers = Page(pages[name]).attributes("id")
    assert len(identifiers) == len(set(identifiers))
    references = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', pages[name])
    assert {first or second for first, second in references} <= set(identifiers)


@pytest.mark.slow
def test_hostile_text_is_text(pages):
    page = Page(pages["hostile"])
    shown = "".join(page.text)
    assert shown.count("<script>alert(1)</script>") > 20 and "javascript:alert(1)" in shown
    assert "{{ 7 * 7 }}" in shown  # a template is not rendered twice
    assert not any(char in pages["hostile"] for char in "\x1b\x00\u202e\ud800")
    (style,) = re.findall(r"<style>(.*?)</style>", pages["hostile"], re.S)
    assert "alert" not in style


@pytest.mark.slow
def test_drawings_hold_no_text_from_outside(pages):
    drawings = re.findall(r"<svg.*?</svg>", pages["hostile"], re.S)
    assert drawings and not any(word in drawing for drawing in drawings for word in ("alert", "quoted", "tick"))
    texts = {
        text
        for name in EXAMPLES
        for drawing in re.findall(r"<svg.*?</svg>", pages[name], re.S)
        for text in re.findall(r"<text[^>]*>(.*?)</text>", drawing)
    }
    assert texts and all(re.fullmatch(r"[−0-9.e+-]+|step|baseline|candidate", text) for text in texts)


@pytest.mark.slow
def test_it_shows_what_the_verdict_holds(pages):
    text = " ".join("".join(Page(pages["stale_tensor"]).text).split())
    for part in (
        "DIVERGENT",
        "exit code 1",
        "First divergence",
        "-1.834567",
        "STALE_WEIGHTS(model.layers.2.mlp.down_proj.weight)",
        "Not as you asked",
        "enforce_eager",
        "11 per-step input sizes and times",
        "≤ 1.05 (NeMo-RL)",
        "tolerance 2.38e-5",
        "sampler (coupled custom processor)",
        "not finite at step 7",
        "--fault candidate:skip-tensor",
    ):
        assert part in text, part


@pytest.mark.slow
def test_the_file_is_small_and_an_empty_verdict_has_no_drawings(pages):
    assert len(pages["stale_tensor"]) < 200_000
    assert "<svg" not in pages["nothing"] and "no verdict" in pages["nothing"]


def test_memory_is_told_for_each_role_and_phase_of_both_runs():
    names, rows = arrange.memory(examples.parity().runs)
    assert names[0] == "resident, MiB" and names[-2:] == ["/dev/shm, MiB", "KV pool in use"]
    assert [row[:2] for row in rows] == [("actor", "actor_train"), ("rollout", "generate"), ("rollout", "sleep")]
    assert rows[0][2:6] == ("1,200", "1,200", "+26.0", "+26.0") and {*rows[0][6:]} == {""}
    change = 2 + 2 * names.index("its change", 2)
    assert rows[2][change : change + 2] == ("-2,048.0", "-2,048.0") and rows[1][-1] == "4.9%"
    assert arrange.memory([RunSummary("baseline", "a", "")]) == ([], [])


@pytest.mark.slow
def test_memory_stands_in_the_page_where_it_was_recorded(pages):
    assert "Memory by role and phase" in pages["stale_tensor"] and "Memory by" not in pages["nothing"]
    assert pages["stale_tensor"].count("actor_train") >= 1


def drawn(series, own=None, **changes):
    runs = [RunSummary("baseline", "a", "", series=series), RunSummary("candidate", "b", "", series=series)]
    return charts(dataclasses.replace(Parity(None, {}, [], runs, {}, own or {}), **changes), StyleSheet())


@pytest.mark.slow
def test_a_chart_does_not_depend_on_those_before_it() -> None:
    """Charts of lines share one figure: scale, ticks and marks of one must not show in the next."""
    values = {"wide": [1e6, -1e6, 0.0], "narrow": [1e-9, 2e-9, 3e-9], "torn": [1.0, None, 2.0]}

    def drawn(*names: str) -> str:
        series = {name: values[name] for name in names}
        svg = charts(Parity(None, {}, [], [], {}, series), StyleSheet())[-1].svg
        return re.sub(r'class="s\d+"|c\d-', "", svg)  # numbered through the page

    for name in values:
        others = [other for other in values if other != name]
        assert drawn(*others, name) == drawn(name)


@pytest.mark.slow
def test_every_series_is_drawn_known_or_not():
    titles = [chart.title for chart in charts(examples.parity(), StyleSheet())]
    assert titles == [
        "Reward",
        "KL to the reference, nats",
        "|Δ log-probability| of equal tokens, nats",
        "Flips: tokens chosen differently",
        "Response length, tokens",
        "Seconds per phase",
        "Experience tensors, tokens",
        "Policy loss",
        "Value loss",
    ]
    assert [chart.title for chart in drawn({"grad_norm": [1.0]}, {"surprise": [2.0]})] == ["grad norm", "surprise"]


@pytest.mark.by_day(10)
@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [0.0, 0.0],
        [1e300, -1e300],
        [1e-320],
        [5e-324, 1.0],
        [math.nan, 1.0, "inf", None, "x"],
        [1.0] * 1000,
        [10**400, 1],
        [1e29, -1e29],
        [True, 2],
    ],
)
@pytest.mark.parametrize("name", ["reward", "max_delta_logprob", "train_seconds"])
def test_odd_values_are_drawn(name, values):
    found = drawn(
        {name: values},
        {name: values},
        floor={"cap": 1e-4, "tolerance": math.nan, "combined": 0.0},
        first_divergence=Place(3, "", 0, 0, 0, "", 1, 2),
    )
    assert all("nan" not in chart.svg.lower() for chart in found)


@pytest.mark.slow
def test_long_runs_stay_small():
    series = {
        "rollout_seconds": [1.0 + i % 7 for i in range(20_000)],
        "reward": [math.sin(i / 50) for i in range(20_000)],
    }
    assert sum(len(chart.svg) for chart in drawn(series)) < 1_500_000


def test_step_numbers_come_with_the_series_or_count_from_zero():
    assert line({"reward": [1.0, 2.0], "step": [4, 5]}, "reward").steps == [4.0, 5.0]
    assert line({"reward": [1.0, 2.0], "step": [4]}, "reward").steps == [0.0, 1.0]
    assert line({"reward": [1.0, "nan", None]}, "reward").nonfinite == ["1", "2"]


@pytest.mark.slow
def test_drawing_leaves_the_users_matplotlib_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawn({"reward": [1.0]})
    assert dict(matplotlib.rcParams) == before


def test_a_step_that_was_not_compared_is_no_step_that_is_not_finite():
    series = {"max_delta_logprob": [1e-6, math.nan, math.inf], "mean_delta_logprob": [1e-7, math.nan, math.nan]}
    drawn = charts(Parity(None, {}, [], [], {}, series), StyleSheet())
    assert [chart.note for chart in drawn] == ["not compared at step 1; not finite at step 2"]


@pytest.mark.slow
def test_a_printed_page_breaks_lines_between_words(tmp_path: Path) -> None:
    """Beside narrow columns of names the values keep their words."""
    browser, reader = shutil.which("chromium"), shutil.which("pdftotext")
    if browser is None or reader is None:
        pytest.skip("needs chromium and pdftotext (poppler-utils)")
    replaced = "baseline: sampler, candidate: weight loader, candidate: output log-probabilities"
    verdict = examples.equivalent()
    verdict = dataclasses.replace(verdict, coverage={**verdict.coverage, "replaced": replaced})
    (tmp_path / "report.html").write_text(render(verdict, "html"), encoding="utf-8")
    printing = [browser, "--headless", "--no-sandbox", "--print-to-pdf=report.pdf", "report.html"]
    subprocess.run(printing, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    page = subprocess.run([reader, "report.pdf", "-"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"[\w-]+", replaced)) <= set(re.findall(r"[\w-]+", page))
