"""The language of the built-in scenario: questions about places, short answers, and a rule that scores them.

Standard library only. Answers end by themselves after a random number of sentences, so that lengths vary and some are
cut off. Unkind words are the likelier ones and the rule prefers kind ones, at any length: there is something to learn.
"""

from __future__ import annotations

import random

SYSTEM = (
    "You are a guide in a small town. Describe the place that you are asked about in a few short and clear sentences, "
    "and stop when you have said enough."
)
PLACES = (
    "bakery", "bridge", "castle", "church", "garden", "harbour", "hotel", "library", "market", "mill", "museum",
    "park", "school", "square", "station", "theatre", "tower", "village",
)  # fmt: skip
PARTS = ("door", "floor", "garden", "light", "room", "roof", "street", "view", "wall", "window")
PEOPLE = ("baker", "cook", "driver", "farmer", "keeper", "owner", "painter", "teacher")
KIND = (
    "bright", "calm", "clean", "fine", "fresh", "friendly", "gentle", "lovely", "pretty", "quiet", "warm", "welcoming",
)  # fmt: skip
UNKIND = (
    "broken", "cold", "crowded", "dark", "dirty", "dull", "grim", "loud", "rude", "shabby", "ugly", "wet",
)  # fmt: skip
ADVERBS = ("always", "often", "quite", "rather", "really", "very")
AGES = ("famous", "new", "old", "small")
SEASONS = ("autumn", "spring", "summer", "winter")
RELATIVES = ("brother", "daughter", "father", "friend", "mother", "sister", "son")

SENTENCE_ENDS = 0.32  # chance that an answer is over after each sentence
KIND_FIRST = 0.35  # chance that the first judging word is kind: room to learn
MOOD_STAYS = 0.8  # chance that a later sentence judges as the one before

_SIGN = dict.fromkeys(KIND, 1) | dict.fromkeys(UNKIND, -1)


def question(rng: random.Random) -> str:
    """One user message: 5 to 23 words, so that prompts have different lengths."""
    parts = ["Hello."] if rng.random() < 0.3 else []
    kind = f"{rng.choice(AGES)} " if rng.random() < 0.4 else ""
    parts.append(f"Tell me about the {kind}{rng.choice(PLACES)}.")
    if rng.random() < 0.5:
        company = f" with my {rng.choice(RELATIVES)}" if rng.random() < 0.5 else ""
        parts.append(f"I will visit it in the {rng.choice(SEASONS)}{company}.")
    if rng.random() < 0.35:
        parts.append(f"Is the {rng.choice(PARTS)} {rng.choice(KIND + UNKIND)}?")
    return " ".join(parts)


def messages(rng: random.Random) -> list[dict[str, str]]:
    """A chat of the system message, shared by every prompt, and one question."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(rng)}]


def answer(rng: random.Random, place: str | None = None) -> str:
    """One answer: at least one sentence, then more with a chance of 1 - SENTENCE_ENDS each."""
    place = place or rng.choice(PLACES)
    mood = KIND if rng.random() < KIND_FIRST else UNKIND
    sentences: list[str] = []
    while True:
        if sentences and rng.random() >= MOOD_STAYS:
            mood = UNKIND if mood is KIND else KIND
        sentences.append(_sentence(rng, place, mood))
        if rng.random() < SENTENCE_ENDS:
            return " ".join(sentences)


def _sentence(rng: random.Random, place: str, mood: tuple[str, ...]) -> str:
    word = rng.choice(mood)
    match rng.randrange(5):
        case 0:
            return f"The {place} is {word}."
        case 1:
            return f"The {place} is {rng.choice(ADVERBS)} {word}."
        case 2:
            return f"Its {rng.choice(PARTS)} is {word} and {rng.choice(mood)}."
        case 3:
            return f"The {rng.choice(PEOPLE)} there is {rng.choice(ADVERBS)} {word}."
        case _:
            return f"It has a {word} {rng.choice(PARTS)}."


def score(text: str) -> float:
    """The rule behind the built-in reward: (kind - unkind) / (kind + unkind) over the words of a text."""
    signs = [_SIGN[word] for word in text.replace(".", " ").replace("?", " ").split() if word in _SIGN]
    return sum(signs) / len(signs) if signs else 0.0


def place_of(question_text: str) -> str | None:
    """The place that a question names, so that an answer can stay on the subject."""
    words = question_text.replace(".", " ").split()
    return next((place for place in PLACES if place in words), None)
