"""verl's reward of our jobs: kind words against unkind ones. Standard library only, verl loads it by its path."""

from __future__ import annotations

KIND = [
    "bright",
    "calm",
    "clean",
    "fine",
    "fresh",
    "friendly",
    "gentle",
    "lovely",
    "pretty",
    "quiet",
    "warm",
    "welcoming",
]
UNKIND = ["broken", "cold", "crowded", "dark", "dirty", "dull", "grim", "loud", "rude", "shabby", "ugly", "wet"]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    words = solution_str.replace(".", " ").replace("?", " ").split()
    signs = [1] * sum(word in KIND for word in words) + [-1] * sum(word in UNKIND for word in words)
    return sum(signs) / len(signs) if signs else 0.0
