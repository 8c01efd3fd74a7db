"""The first line of an answer: the verdict and one fact, short enough to be read at a glance."""

from __future__ import annotations

MOST = 20  # words, the verdict's included: what readers of our first reports asked for


def fits(*parts: str) -> bool:
    """Whether these parts together are short enough for a first line."""
    return sum(len(part.split()) for part in parts) <= MOST


def headline(verdict: str, sentence: str, otherwise: str) -> tuple[str, list[str]]:
    """Return the sentence where it is short enough; else `otherwise`, with the sentence as evidence below it.

    A sentence that contains a name, a path or an engine's own words may have any length.
    """
    return (sentence, []) if fits(verdict, sentence) else (otherwise, [sentence])
