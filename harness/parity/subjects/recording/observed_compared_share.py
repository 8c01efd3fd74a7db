"""The share of drawn tokens that was compared: nothing can be said about the others.

A run that is not guided is compared up to the first flip of each sample, a guided one up to where its guide was left.
Ties of float32 engines at the cap flip at most 2 in 10,000 tokens (`observed_floor.implausible`: 2 cap / T). That
leaves 90 % of responses of 1,024 tokens: (1 - exp(-rL)) / (rL) with r = 2e-4 and L = 1,024 is 0.904. So nine tokens in
ten are required. In half precision, where ties are common, that takes a guided run.
"""

from __future__ import annotations

from harness.parity.facts.evidence import Evidence


def too_small(e: Evidence, share: float) -> str:
    """Return a sentence where less than this share of the tokens was compared; "" where enough was."""
    drawn, compared = e.counts.drawn, e.counts.compared_tokens
    if not drawn or compared >= share * drawn:
        return ""
    return (
        f"only {compared / drawn:.0%} of the {drawn:,} tokens drawn were compared, at least {share:.0%} are needed: "
        "the others come after the first flip of their sample"
    )
