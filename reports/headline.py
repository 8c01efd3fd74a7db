"""The first line of an answer: the verdict and one fact, short enough to be read at a glance."""

from __future__ import annotations

MOST = 20  # words, those of the verdict among them: what the readers of our first reports asked for


def fits(*parts: str) -> bool:
    """Do these parts together make a first line?"""
    return sum(len(part.split()) for part in parts) <= MOST


def headline(verdict: str, sentence: str, otherwise: str) -> tuple[str, list[str]]:
    """The sentence where it is short enough, else `otherwise`, and the sentence as evidence below it.

    A sentence that holds a name, a path or an engine's own words is as long as those are.
    """
    return (sentence, []) if fits(verdict, sentence) else (otherwise, [sentence])
