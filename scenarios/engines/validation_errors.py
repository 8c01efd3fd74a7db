"""Shortens the text of a pydantic ValidationError, with which vLLM refuses a value, to what is wrong.

Its first line only counts the errors, and its last one is the address of a manual.
"""

from __future__ import annotations

import re

_HEAD = re.compile(r"\d+ validation errors? for (?P<model>\w+)\n")
_MANUAL = re.compile(r"\n +For further information visit \S+(?:\n|$)")
# "place\n  message [type=literal_error, input_value='float33', input_type=str]"; an error of the whole has no place.
_ERROR = re.compile(
    r"(?:(?P<place>\S.*)\n)? +(?P<message>\S.*?)\s*\[type=(?P<type>\w+), input_value=(?P<value>.*), input_type=\w+\]",
    re.DOTALL,
)


def shortened(text: str) -> str:
    """Return "Model: place=value: message; ..." of the error's text; empty for text of any other form.

    A place that was tried in several ways, as a union's, is reported once, by the first way: a list of choices comes
    before the types that are taken beside them.
    """
    head = _HEAD.match(text)
    if head is None:
        return ""
    by_place: dict[str, str] = {}
    for error in _MANUAL.split(text[head.end() :]):
        if match := _ERROR.match(error):
            place = (match["place"] or "").partition("[")[0]
            place = place.rpartition(".")[0] if "[" in (match["place"] or "") else place
            message = " ".join(match["message"].split())
            by_place.setdefault(place, f"{place}={match['value']}: {message}" if place else message)
    return f"{head['model']}: {'; '.join(by_place.values())}" if by_place else ""
