"""The HTML report in a browser as wide as a phone, and on paper: measured boxes, not markup."""

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
from reports.model import Place, Verdict

pytestmark = pytest.mark.slow
WIDTH = 400
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
    return { text: element.textContent, left: box.left, right: box.right, height: box.height };
  });
  parent.postMessage(JSON.stringify({
    broken, page: document.documentElement.scrollWidth, labels: boxes(".waits text"), cells: boxes(".row > *"),
    first: boxes(".pair.first:not(.legend *)"), rows: boxes(".row").map((row) => row.text),
    scrolls: [...document.querySelectorAll(".scroll")].map((element) => [element.scrollWidth, element.clientWidth]),
  }), "*");
}, 200));</script>"""
FRAME = f"""<iframe src="report.html" width="{WIDTH}" height="2000" style="border: 0"></iframe><pre></pre>
<script>addEventListener("message", (event) => {{
  document.querySelector("pre").textContent = event.data;
}});</script>"""


@pytest.fixture(autouse=True)
def browser() -> None:
    if CHROMIUM is None:
        pytest.skip("needs chromium")


def measured(verdict: Verdict, folder: Path) -> dict:
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(verdict, "html"))
    (folder / "report.html").write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    (folder / "phone.html").write_text(FRAME, encoding="utf-8")  # a window itself has at least 500 pixels
    command = [*HEADLESS, "--hide-scrollbars", "--dump-dom", "phone.html"]
    dom = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120).stdout
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
    assert len(figures["labels"]) == 8 and min(label["height"] for label in figures["labels"]) > 11
    assert any(whole > visible for whole, visible in figures["scrolls"])


@pytest.mark.parametrize("verdict", [examples.equivalent, examples.stale_tensor], ids=["equivalent", "divergent"])
def test_two_runs_on_a_phone_keep_their_words(verdict, tmp_path: Path) -> None:
    figures = measured(verdict(), tmp_path)
    assert figures["broken"] == [] and figures["page"] <= WIDTH


def test_the_list_of_samples_is_whole_on_a_phone_and_marks_the_first_divergence(tmp_path: Path) -> None:
    outputs = [[273, 6, 2], [7, 2]]
    record(tmp_path / "baseline", outputs, [[-0.5, -1.0, -0.1], [-2.0, -0.2]], "length")
    record(tmp_path / "candidate", [[273, 9, 2], [7, 2]], [[-0.7, -3.0, -0.1], [-2.0, -0.2]], "length")
    figures = measured(of(tmp_path, Place(0, "rollout", 0, 0, 1, "token", 6, 9)), tmp_path)
    assert figures["broken"] == [] and figures["page"] <= WIDTH
    assert len(figures["cells"]) == 4 + 1 + 4
    assert all(cell["left"] >= 0 and cell["right"] <= WIDTH for cell in figures["cells"])
    assert [pair["text"] for pair in figures["first"]] == ["69"]  # position 1, not the equal tokens at 0
    assert "another token at position 1" in figures["rows"][0] and "token at position 1" in figures["rows"][0]


def test_what_is_folded_is_open_on_paper(tmp_path: Path) -> None:
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
    subprocess.run(printing, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    page = subprocess.run([reader, "report.pdf", "-"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert {f"frame_{number}" for number in range(100, 108)} <= set(re.findall(r"frame_\d+", page))
