"""Values as text: digits that show a difference, nothing invisible, limits found by name."""

from __future__ import annotations

import math

import numpy
import pytest
from cause_keys import of
from hypothesis import given
from hypothesis import strategies as st

from reports.limits import limit_of
from reports.model import SUSPICIONS, Cause, Check, Parity, Proof, RunSummary
from reports.sections import parity as arrange
from reports.text import agreeing, clean, flatten, part_of, reads_same, show, show_apart


@given(st.text())
def test_clean_text_is_one_visible_line_that_encodes(text):
    shown = clean(text)
    shown.encode("utf-8")
    assert shown.isprintable() or all(char.isprintable() or ord(char) > 0x7F for char in shown)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown and "\x00" not in shown and "\u202e" not in shown


def test_clean_escapes_what_could_drive_a_terminal_or_hide():
    assert clean("a\x1b[31m\n\u202e\ud800\ufffe") == "a\\x1b[31m\\n\\u202e\\ud800\\ufffe"
    assert clean("Ünïcode, 日本語, Δ ≤ 3") == "Ünïcode, 日本語, Δ ≤ 3"


def test_counts_have_separators_whether_they_are_integers_or_not() -> None:
    assert part_of(7971, 8801, "token") == "7,971 of 8,801 tokens" and part_of(1, 1, "sample") == "1 of 1 sample"
    cause = of("RNG", "candidate", "", proofs=[Proof("sync again", 8801, 830)])
    assert "7,971 of 8,801" in arrange.proofs(cause)[0]


@pytest.mark.parametrize(("number", "verb"), [(0, "wait"), (1, "waits"), (2, "wait"), (1_000, "wait")])
def test_a_verb_agrees_with_a_number(number: int, verb: str) -> None:
    assert agreeing(number, "waits", "wait") == verb


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "true"),
        (7, "7"),
        (16384, "16384"),
        (0.0, "0"),
        (1.0, "1"),
        (0.9999999, "1.000"),
        (362.967519, "363.0"),
        (2322.25, "2,322"),
        (0.03999999, "0.04"),
        (1e-4, "0.0001"),
        (2.38e-5, "2.38e-5"),
        (1.5e-12, "1.5e-12"),
        (123456.7, "123,457"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        ("", '""'),
        ([], "none"),
        ([1, 2], "1, 2"),
        (["a, b", "c"], "a, b; c"),
        ({"k": 1.5}, "k=1.5"),
        (numpy.float32(0.5), "0.5"),
        (numpy.int64(3), "3"),
    ],
)
def test_values_as_a_person_writes_them(value, text):
    assert show(value) == text


def test_thousands_are_separated_on_request():
    assert show(4711, group=True) == "4,711"


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.5, 0.5], ["0.5", "0.5"]),
        ([0.12345678, 0.12345679], ["0.12345678", "0.12345679"]),
        ([1, "1"], ["1", '"1"']),
        ([1.0, 1.0 + 2**-52], ["1.0", "1.0000000000000002"]),
        ([1.0, 0.9999], ["1", "0.9999"]),
        ([1.0, 0.99999], ["1", "0.99999"]),
        ([None, "–"], ["null", '"–"']),
    ],
)
def test_unequal_values_look_unequal(values, texts):
    assert show_apart(values) == texts


def test_equality_is_a_readers():
    assert reads_same(math.nan, "nan") and reads_same((1, 2), [1, 2.0]) and reads_same({"a": math.nan}, {"a": math.nan})
    assert (
        not reads_same(True, 1)
        and not reads_same("1", 1)
        and not reads_same([1], [1, 2])
        and not reads_same({"a": 1}, {"b": 1})
    )


def test_nested_dictionaries_flatten_with_their_groups():
    data = {"a": {"x": 1, "deep": {"y": 2}}, "b": 3, "none": {}}
    assert list(flatten(data)) == [("", "b", 3), ("", "none", {}), ("a", "x", 1), ("a / deep", "y", 2)]


@pytest.mark.parametrize(
    ("name", "value", "outside"),
    [
        ("token_mult_prob_error", 1.051, True),
        ("token_mult_prob_error", 1.05, False),
        ("rollout_corr/kl", -0.11, True),
        ("k3", 0.014, False),
        ("training.rollout_probs_diff_mean", 0.011, True),
        ("Effective sample size", 0.2, True),
        ("importance_weight_mean", 0.4, True),
        ("importance_weight_mean", "nan", False),
        ("mean_delta_logprob", math.inf, True),
    ],
)
def test_published_limits(name, value, outside):
    limit = limit_of(name)
    assert limit is not None and limit.outside(value) is outside and "(" in limit.text


def test_buckets_fold_into_one_row_each():
    buckets = {"cached": {"yes": {"tokens": 4711, "mean": 2e-7}, "no": {"tokens": 2, "mean": 1e-7}}}
    found = arrange.metrics(Parity(None, {}, [], [], {"k3": 0.0, "buckets": buckets, "other": {"k1": 0.2, "p50": 1.0}}))
    assert [(metric.group, metric.name, metric.value, metric.deep, metric.outside) for metric in found] == [
        ("", "k3", "0", False, False),
        ("buckets / cached", "yes", "tokens=4,711, mean=2e-7", True, False),
        ("buckets / cached", "no", "tokens=2, mean=1e-7", True, False),
        ("other", "k1", "0.2", False, True),
        ("other", "p50", "1", False, False),
    ]


def test_a_metric_without_a_published_limit_has_none():
    assert limit_of("p95") is None


def test_changed_rows_come_first_and_measured_ones_are_never_changed():
    runs = [
        RunSummary("baseline", "a", "", {"same": 1, "other": math.nan, "x": 0.1}, measured={"s": 2.0}),
        RunSummary(
            "candidate", "b", "", {"same": 1.0, "other": "nan", "x": 0.1 + 1e-9, "only": None}, measured={"s": 3.0}
        ),
    ]
    rows = arrange.side_by_side(runs)
    assert [(row.title, row.state) for row in rows] == [
        ("backend", "changed"),
        ("x", "changed"),
        ("same", "equal"),
        ("other", "equal"),
        ("only", "equal"),
        ("s", "measured"),
    ]
    assert rows[1].values[0] != rows[1].values[1] and rows[-1].ratio == "×1.50"


def test_all_eleven_suspicions_are_listed_whatever_the_verdict_holds():
    parity = Parity(
        None,
        {},
        [Check("own name", "confirmed", "", 4), Check("z", "ruled out", ""), Check("y", "confirmed", "")],
        [],
    )
    listed = arrange.suspicions(parity)
    assert [check.number for check in listed] == list(SUSPICIONS) == list(range(1, 12))
    assert listed[3].name == "own name" and {check.state for check in listed if check.number != 4} == {"not tested"}
    assert [check.name for check in arrange.other_checks(parity)] == ["y", "z"]
    assert arrange.tally(listed) == "1 confirmed, 10 not tested"


def test_a_named_cause_without_a_proof_says_so():
    proof = Proof("flush the prefix cache", 9, 0, "differences", "live engines", 0.5)
    (said,) = arrange.proofs(Cause("STALE_KV", "candidate", "", proofs=[proof]))
    assert said.startswith("proven: flush the prefix cache removed 9 of 9")
    (said,) = arrange.proofs(Cause("CONFIG(dtype)", "mapping", ""))
    assert said.startswith("not proven: what was recorded supports it")
    assert not arrange.proofs(of("UNEXPLAINED", "candidate", ""))  # its name says so
