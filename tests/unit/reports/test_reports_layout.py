"""The HTML report in a browser as wide as a phone or a screen, and on paper: measured boxes, not markup."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
import reports_examples as examples
import triage_trial as trial
from test_reports_samples import of, record

from harness.triage.judge import triage
from reports import render
from reports.model import Check, CheckState, Place, Verdict

pytestmark = pytest.mark.slow
WIDTH, SCREEN = 400, 1280
CHROMIUM = shutil.which("chromium")
HEADLESS = [CHROMIUM or "chromium", "--headless", "--no-sandbox", "--virtual-time-budget=3000"]
MEASURE = r"""<script>addEventListener("load", () => setTimeout(() => {
  const broken = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.parentElement.closest("td, th, .row, .waits")) continue;
    for (const word of node.data.matchAll(/[\w:.]+|\|Δ\|/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) broken.push(word[0]);
    }
  }
  const boxes = (selector) => [...document.querySelectorAll(selector)].map((element) => {
    const box = element.getBoundingClientRect();
    return { text: element.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom };
  });
  parent.postMessage(JSON.stringify({
    broken, page: document.documentElement.scrollWidth, labels: boxes(".waits text"), cells: boxes(".row > *"),
    first: boxes(".first:not(.legend *)").map((mark) => mark.text), rows: boxes(".row"),
    scrolls: [...document.querySelectorAll(".scroll")].map((element) => [element.scrollWidth, element.clientWidth]),
  }), "*");
}, 200));</script>"""
FRAME = """<iframe src="report.html" width="WIDTH" height="2000" style="border: 0"></iframe><pre></pre>
<script>addEventListener("message", (event) => {
  document.querySelector("pre").textContent = event.data;
});</script>"""


@pytest.fixture(autouse=True)
def browser() -> None:
    if CHROMIUM is None:
        pytest.skip("needs chromium")


def measured(verdict: Verdict, folder: Path, width: int = WIDTH) -> dict:
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(verdict, "html"))
    (folder / "report.html").write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))  # a window itself has at least 500 pixels
    command = [*HEADLESS, "--hide-scrollbars", "--dump-dom", "frame.html"]
    dom = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600).stdout
    (figures,) = re.findall(r"<pre>(.*?)</pre>", dom, re.S)
    return json.loads(unescape(figures))


def hang() -> Verdict:
    """A hang whose processes have names and states of long words."""
    verdict = triage(*trial.late(8, 3, "main:10 step:44 keep_alive"))
    assert verdict.triage is not None
    nodes = [
        dataclasses.replace(
            node, label=f"torchrun:1/0 sglang::scheduler {node.label}", state="in default_pg, detokenizer"
        )
        for node in verdict.triage.nodes
    ]
    return dataclasses.replace(verdict, triage=dataclasses.replace(verdict.triage, nodes=nodes))


def test_a_hang_on_a_phone_keeps_its_words_and_the_size_of_its_graph(tmp_path: Path) -> None:
    figures = measured(hang(), tmp_path)
    assert figures["broken"] == [] and figures["page"] <= WIDTH
    assert len(figures["labels"]) == 8 and min(label["bottom"] - label["top"] for label in figures["labels"]) > 11
    assert any(whole > visible for whole, visible in figures["scrolls"])


@pytest.mark.parametrize("cycle", [False, True])
@pytest.mark.parametrize("name", ["rank {}", "torchrun:1/0 sglang::scheduler {}"])
def test_both_processes_of_a_hang_are_in_sight_on_a_phone(tmp_path: Path, cycle: bool, name: str) -> None:
    verdict = triage(*trial.late(2, 1, "main:10 step:44 keep_alive"))
    assert verdict.triage is not None
    body = verdict.triage
    nodes = [dataclasses.replace(node, label=name.format(number)) for number, node in enumerate(body.nodes)]
    if cycle:
        [wait] = body.waits
        waits = [wait, dataclasses.replace(wait, waiter=wait.target, target=wait.waiter)]
        body = dataclasses.replace(body, waits=waits, cycle=[node.key for node in nodes])
    verdict = dataclasses.replace(verdict, triage=dataclasses.replace(body, nodes=nodes))
    figures = measured(verdict, tmp_path)
    assert len(figures["labels"]) == 2
    assert all(label["left"] >= 0 and label["right"] <= WIDTH for label in figures["labels"])


@pytest.mark.parametrize("verdict", [examples.equivalent, examples.stale_tensor], ids=["equivalent", "divergent"])
def test_two_runs_on_a_phone_keep_their_words(verdict, tmp_path: Path) -> None:
    figures = measured(verdict(), tmp_path)
    assert figures["broken"] == [] and figures["page"] <= WIDTH


@pytest.mark.parametrize("width", [WIDTH, SCREEN])
@pytest.mark.parametrize(
    ("place", "marked"),
    [
        (Place(0, "rollout", 0, 0, 1, "token", 6, 9), ["69"]),  # position 1, not the equal tokens at 0
        (Place(0, "prompt", 0, 0, 1, "prompt_seen", "1 [2] 3", "1 [1] 2"), ["2"]),  # in the prompt, not in the response
        (Place(0, "prompt", 0, 0, 3, "prompt_seen", "1 2 3", "1 2 3 [4]"), []),  # the prompt that was sent ends before
        (Place(0, "native", 0, 0, 1, "native logprob against the learner", -1.0, -2.0), ["69"]),  # of another stage
    ],
    ids=["response", "prompt", "after the prompt", "native"],
)
def test_the_list_of_samples_is_whole_and_the_first_divergence_is_marked_where_it_is(
    tmp_path: Path, place: Place, marked: list[str], width: int
) -> None:
    outputs = [[273, 6, 2], [7, 2]]
    record(tmp_path / "baseline", outputs, [[-0.5, -1.0, -0.1], [-2.0, -0.2]], "length")
    record(tmp_path / "candidate", [[273, 9, 2], [7, 2]], [[-0.7, -3.0, -0.1], [-2.0, -0.2]], "length")
    figures = measured(of(tmp_path, place), tmp_path, width)
    assert figures["broken"] == [] and figures["page"] <= width
    verdicts = place.phase != "native"
    assert len(figures["cells"]) == 4 + verdicts + 4
    assert all(cell["left"] >= 0 and cell["right"] <= width for cell in figures["cells"])
    row, following = figures["rows"]
    assert all(row["top"] <= cell["top"] and cell["bottom"] <= row["bottom"] for cell in figures["cells"][:-4])
    assert row["bottom"] <= following["top"]
    assert figures["first"] == marked
    assert "another token at position 1" in row["text"] and ("first divergence" in row["text"]) == verdicts


def test_both_prompts_stand_beside_each_other_around_their_first_difference(tmp_path: Path) -> None:
    outputs, logprobs = [[273], [7]], [[-0.5], [-2.0]]
    record(tmp_path / "baseline", outputs, logprobs)
    record(tmp_path / "candidate", outputs, logprobs, prompts_seen=[[1, 8, 3], [4, 2, 3]])
    figures = measured(of(tmp_path), tmp_path, SCREEN)
    assert figures["first"] == ["2", "8"]
    first, second = figures["rows"]
    assert "another prompt from position 1" in first["text"] and "another prompt from position 0" in second["text"]


def test_the_stacks_of_a_hang_are_open_on_paper(tmp_path: Path) -> None:
    reader = shutil.which("pdftotext")
    if reader is None:
        pytest.skip("needs pdftotext (poppler-utils)")
    verdict = hang()
    assert verdict.triage is not None
    nodes = [
        dataclasses.replace(node, stack=[f"frame_{number} (/job/train.py:{number})"])
        for number, node in enumerate(verdict.triage.nodes, 100)
    ]
    verdict = dataclasses.replace(verdict, triage=dataclasses.replace(verdict.triage, nodes=nodes))
    (tmp_path / "report.html").write_text(render(verdict, "html"), encoding="utf-8")
    printing = [*HEADLESS, "--print-to-pdf=report.pdf", "report.html"]
    subprocess.run(printing, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    page = subprocess.run([reader, "report.pdf", "-"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert {f"frame_{number}" for number in range(100, 108)} <= set(re.findall(r"frame_\d+", page))


@pytest.mark.parametrize(("state", "is_open"), [("ruled out", False), ("confirmed", True)])
def test_details_are_printed_where_the_verdict_rests_on_them(state: CheckState, is_open: bool, tmp_path: Path) -> None:
    """By the number of pages: a thousand details take more than ten."""
    verdict = examples.equivalent()
    assert verdict.parity is not None
    details = {f"detail {number}": number for number in range(1000)}
    checks = [Check("tokens", state, "4,711 of 4,711 tokens equal", details=details)]
    verdict = dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, checks=checks))
    (tmp_path / "report.html").write_text(render(verdict, "html"), encoding="utf-8")
    printing = [*HEADLESS, "--print-to-pdf=report.pdf", "report.html"]
    subprocess.run(printing, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    pages = len(re.findall(rb"/Type\s*/Page[^s]", (tmp_path / "report.pdf").read_bytes()))
    assert (pages > 15) is is_open
