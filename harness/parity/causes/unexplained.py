"""The causes UNEXPLAINED and COMPUTATION: no recording explains a difference; all that is known is its narrowest place
or layer.
"""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen
from harness.parity.causes.proof import supported

COMPUTATION = CauseFamily(
    "COMPUTATION",
    meaning="with the learner's weights and equal ids the engine computes other hidden states",
    fix="try another attention backend or kernel: the engine computes something else than the learner",
    named="the first place of the model whose numbers differ",
    rivals=(Rival("WEIGHTS", (Seen.HELD_EQUAL, Seen.SCORES_AGREE)),),
    proof=supported("what could be read of the engine is right; no operator was exchanged"),
)
UNEXPLAINED = CauseFamily(
    "UNEXPLAINED",
    meaning="no rule and no intervention explains this difference",
    fix="start at the first place; run again with --verbose, and compare the two samples there",
    alone="it carries no proof",
    proof=supported("the place where a difference begins is no cause"),
)

FAMILIES = (COMPUTATION, UNEXPLAINED)
