"""Parameters that an engine was given otherwise than they were asked."""

from __future__ import annotations

from harness.parity.causes.ends import STOP
from harness.parity.causes.family import CauseFamily, Rival, Seen
from harness.parity.facts.parameters import Altered
from reports.model import CauseKey

SAMPLING_PARAM = CauseFamily(
    "SAMPLING_PARAM",
    fix="pass the named parameter explicitly to both engines, with the same value",
    rivals=(Rival("another sampling parameter", (Seen.GIVEN, Seen.ALONE_EXPLAINS, Seen.LIKELIER, Seen.AT_THE_LIMIT)),),
    suspicion=7,
    drawn=True,
)
CONFIG = CauseFamily(
    "CONFIG",
    fix="set the named parameter to the same value on both engines",
    alone="its proof puts the parameter back, and takes it away again where others were put back beside it",
    suspicion=6,
)

GENERATION_CONFIG = CONFIG.key("generation_config")
_STOPS = {"stop_token_ids": STOP.key("other end set"), "ignore_eos": STOP.key("ignore_eos")}

FAMILIES = (SAMPLING_PARAM, CONFIG)


def sampling_key(name: str) -> CauseKey:
    """The cause that a sampling parameter is when it was given otherwise than asked."""
    return _STOPS.get(name) or SAMPLING_PARAM.key(name)


def altered_key(one: Altered) -> CauseKey:
    return GENERATION_CONFIG if one.leaked else sampling_key(one.by)
