"""The first line of an answer: the verdict and one fact, short enough to be read at a glance."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST = 20  # words, the verdict's included: what readers of our first reports asked for


def fits(*parts: str) -> bool:
    """Whether these parts together are short enough for a first line."""
    return sum(len(part.split()) for part in parts) <= MOST


def headline(verdict: str, sentence: str, otherwise: str) -> tuple[str, list[str]]:
    """Return the sentence where it is short enough; else `otherwise`, with the sentence as evidence below it.

    A sentence that contains a name, a path or an engine's own words may have any length.
    """
    return (sentence, []) if fits(verdict, sentence) else (otherwise, [sentence])


def beginning(parts: Sequence[str], words: int) -> str:
    """At most the first `words` words of a longer text, ended earlier where a cut would part a figure from its unit, or
    a word or an option from its name, figure or value.

    A text in which every cut does so is cut where it must be.
    """
    ends = range(words, max(words - _MOST_LEFT_OUT, 1) - 1, -1)
    end = next((end for end in ends if not _parts(["", *parts][end - 1 : end + 2])), words)
    return " ".join(parts[:end]).rstrip(",;:(")


_FIGURE = re.compile(r"[(\[~<>=]*[+-]?\d[\d.,:/x]*")
_UNIT = re.compile(r"[^\W\d]|%")
# Words and options that any next word completes, and words that a number completes.
_LINKS = re.compile(r"(?i)of|to|at|in|on|by|for|from|with|than|the|an?|and|or|after|before|is|was|-{1,2}[a-z][\w-]*")
_NUMBERED = re.compile(
    r"(?i)ranks?|pid|process|group|node|line|step|gpu|device|port|code|signal|errno|status|version|number"
)
_NUMBER = re.compile(r"[#'\"(\[]?[+-]?\d")
_MOST_LEFT_OUT = 3  # words by which a cut comes earlier


def _parts(around: Sequence[str]) -> bool:
    """Whether a cut between the last two of three words parts what belongs together."""
    before, last, following = around
    if _LINKS.fullmatch(last) or (_NUMBERED.fullmatch(last) and _NUMBER.match(following)):
        return True
    is_figure = _FIGURE.fullmatch(last) is not None and not _NUMBERED.fullmatch(before)
    return is_figure and _UNIT.match(following) is not None and not _LINKS.fullmatch(following)
