"""Which names are near to one that does not exist."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from harness.similar_names import edits, fewest_edits, similar

NAMES = st.text("abc", max_size=8)


@given(NAMES, NAMES)
def test_the_letters_alone_never_need_more_edits_than_the_names(name: str, other: str) -> None:
    assert fewest_edits(Counter(name), Counter(other)) <= edits(name, other)


def test_names_of_the_same_letters_are_told_apart_by_their_order() -> None:
    assert similar("trian", ["train", "inrat"]) == ["train"]


def test_a_name_that_begins_with_it_is_near_whatever_follows() -> None:
    assert similar("mi", ["mine", "other"]) == ["mine"]
