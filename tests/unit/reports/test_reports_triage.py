"""A triage verdict in every format: who, why, the cycle, the victims; nothing from outside becomes markup."""

from __future__ import annotations

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest
import reports_examples
import triage_trial as trial
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.triage.judge import triage
from reports import render
from reports.model import Node, Party, Triage, Verdict, Wait
from reports.renderers import names as formats
from reports.sections import graph as triage_graph
from reports.sections import triage as triage_arrange

HUNG = triage(*trial.late(8, 3, "main:10 step:44 keep_alive"))
RING = triage(*next(iter(trial.order(4, 1))).built)
SLOW = triage(*next(iter(trial.controls(4, 1))).built)
BLIND = triage(*next(iter(trial.wedge(2, 0))).built)


@pytest.mark.slow
@pytest.mark.parametrize("format", formats("triage"))
@pytest.mark.parametrize("verdict", [HUNG, RING, SLOW, BLIND], ids=["hung", "ring", "slow", "wedge"])
def test_every_format_says_verdict_kind_and_reason(verdict, format):
    text = render(verdict, format)
    assert verdict.verdict in text and verdict.triage.hang in text
    if format == "openmetrics":  # figures: a label would make a series of each reason
        return
    for word in re.findall(r"[a-z_]{5,}", verdict.reason)[:6]:
        assert word in text


@pytest.mark.parametrize("format", ["text", "md", "html", "junit"])
def test_a_culprit_has_rank_process_reason_and_frame(format):
    text = render(HUNG, format).replace("&#95;", "_")
    for part in ("rank 3", "node0:103", "outside any collective", "train.py:1 in keep_alive"):
        assert part in text
    assert "7 ranks wait in all_reduce" in text and "0-2, 4-7" in text


def test_a_culprit_of_a_dump_alone_is_named_once():
    rank, named = Party("rank 0", "has enqueued nothing more", 0), Party("trace_0", "has enqueued nothing more", 0)
    blamed = dataclasses.replace(HUNG.triage, culprits=[rank, named])
    assert [row.process for row in triage_arrange.culprits(blamed)] == ["", "trace_0"]


def test_a_verdict_without_a_body_renders():
    for format in formats("triage"):
        assert "INSUFFICIENT" in render(Verdict("triage", "INSUFFICIENT", 3, "nothing was seen"), format)


def test_the_last_line_of_a_pipe_is_the_verdict():
    assert render(HUNG).splitlines()[-1].startswith("HUNG K4 absent peer (exit code 1): rank 3")


def test_a_cycle_is_drawn_in_order_and_names_nobody():
    text = render(RING)
    assert "Cycle" in text and "Culprit" not in text
    steps = triage_arrange.cycle(RING.triage)
    assert [step.target for step in steps] == [*[step.waiter for step in steps[1:]], steps[0].waiter]
    assert "HUNG K2 order inversion" in text


def test_a_step_of_a_cycle_without_a_known_edge_says_where_the_process_waits():
    """Of two ranks that stand in different operations nothing shows for which peer each waits."""
    states = ["in all_reduce, train.py:12 in step", "in recv, train.py:30 in last"]
    nodes = [Node(f"h:{number}", f"rank {number}", state, "suspect") for number, state in enumerate(states)]
    body = Triage("K2", [], [], ["h:0", "h:1"], nodes, [], [])
    assert [step.because for step in triage_arrange.cycle(body)] == states


def test_victims_are_counted_not_listed_one_by_one():
    parties = [Party(f"h:{n}", "all_reduce #17 of tp: rank 9 has not come", n) for n in (0, 1, 2, 5)]
    other = Party("h:77", "ray.get of step", role="driver")
    body = Triage("K4", [], [*parties, other], [], [], [], [])
    big, small = triage_arrange.victims(body)
    assert (big.count, big.who, big.line) == (4, "0-2, 5", "4 ranks wait in all_reduce #17 of tp: rank 9 has not come")
    assert (small.count, small.who) == (1, "driver") and small.line.startswith("1 process waits in ")


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_in_few_words(numbers):
    found = set()
    for part in triage_arrange.ranks(numbers).split(" and ")[0].split(", "):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    assert found <= numbers and (found == numbers or " more" in triage_arrange.ranks(numbers))


def hostile(verdict: Verdict) -> Verdict:
    """The same with every text an attack on a page, a terminal or a table."""

    def poison(value):
        if dataclasses.is_dataclass(value):
            return type(value)(**{f.name: poison(getattr(value, f.name)) for f in dataclasses.fields(value)})
        if isinstance(value, list):
            return [poison(item) for item in value]
        return reports_examples.HOSTILE + value if isinstance(value, str) else value

    body = poison(verdict.triage)
    return dataclasses.replace(
        verdict, reason=reports_examples.HOSTILE, triage=body, missing=[reports_examples.HOSTILE]
    )


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [HUNG, RING], ids=["hung", "ring"])
def test_text_from_outside_stays_text(verdict):
    evil = hostile(verdict)
    page = render(evil, "html")
    assert "<script" not in page and "<img" not in page and "onerror=" not in re.sub(r">[^<]*<", "><", page)
    assert "\x1b" not in render(evil) and "\u202e" not in render(evil)
    assert "<script" not in render(evil, "md")
    ElementTree.fromstring(render(evil, "junit"))


def test_the_page_is_allowed_its_own_style_and_nothing_else():
    page = render(HUNG, "html")
    assert 'class="waits"' in page and "style=" not in page and "<script" not in page
    ElementTree.fromstring(triage_graph.svg(HUNG.triage))
    assert page == render(HUNG, "html")


def test_a_graph_of_a_thousand_is_drawn_small():
    nodes = [Node(f"rank {n}", f"rank {n}", "waits", "victim" if n else "culprit") for n in range(1024)]
    waits = [Wait(f"rank {n}", "rank 0", "collective", "x") for n in range(1, 1024)]
    drawn = triage_graph.svg(Triage("K4", [], [], [], nodes, waits, []))
    assert drawn.count("<rect") == 2 and "1023 like rank 1" in drawn and len(drawn) < 4000


def test_nobody_waits_nothing_is_drawn():
    assert triage_graph.svg(Triage("", [], [], [], [Node("a", "a", "idle")], [], [])) == ""


names = st.text(max_size=8)
bodies = st.lists(names, min_size=1, max_size=6, unique=True).flatmap(
    lambda keys: st.builds(
        Triage,
        st.sampled_from(["", "K1", "K2", "K12", "K99"]),
        st.lists(st.builds(Party, st.sampled_from(keys), names, st.none() | st.integers(0, 9), names), max_size=2),
        st.lists(st.builds(Party, st.sampled_from(keys), names, st.none() | st.integers(0, 9), names), max_size=4),
        st.lists(st.sampled_from(keys), max_size=4),
        st.lists(st.builds(Node, st.sampled_from(keys), names, names, names), max_size=6),
        st.lists(st.builds(Wait, st.sampled_from(keys), st.sampled_from(keys), names, names), max_size=8),
        st.lists(names, max_size=2),
        names,
    )
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(bodies)
def test_any_body_renders_and_round_trips(body):
    verdict = Verdict("triage", "HUNG", 1, "x", triage=body)
    again = Verdict.from_dict(json.loads(verdict.to_json()))
    assert again.to_json() == verdict.to_json()
    for format in ("text", "md", "junit"):
        assert render(again, format) == render(verdict, format)
    assert "<script" not in render(again, "html")
    if svg := triage_graph.svg(body):
        ElementTree.fromstring(svg)


def test_victims_of_two_engines_that_bear_one_number_are_told_apart():
    party = Party("node0:101", "waits in broadcast", 1, "process", "node0", 101)
    two = [party, dataclasses.replace(party, key="node0:201", pid=201), dataclasses.replace(party, key="x", rank=2)]
    [row] = triage_arrange.victims(dataclasses.replace(HUNG.triage, victims=two))
    assert row.who == "rank 1 (node0:101), rank 1 (node0:201), rank 2"


def test_html_shows_each_frame_of_a_stack_on_its_own_line() -> None:
    html = render(HUNG, "html")
    stack = html[html.index("<pre>") : html.index("</pre>")]
    assert "\\n" not in stack and stack.count("\n") >= 1


def test_markdown_of_a_hang_has_no_paragraph_of_the_kind_alone_and_no_needless_escapes() -> None:
    verdict = Verdict("triage", "HUNG", 1, "rank 1 waits in all_reduce #1", triage=Triage("K4", [], [], [], [], [], []))
    lines = render(verdict, "md").splitlines()
    assert "triage" not in lines and "rank 1 waits in all_reduce #<!-- -->1" in lines
