"""Attribution by intervention on live engines: a named cause is one whose removal removes the symptom.

`attribute` takes a judged comparison, and a bench with the engines still up. It reproduces the symptom on a few samples
and changes one thing at a time: in the reference, which then makes the same mistake, or on the engine, where the fault
disappears. docs/explanation/attribution.md says what each intervention proves, and what it cannot.
"""

from harness.parity.attribution.attribute import attribute, search
from harness.parity.attribution.merge import merged

__all__ = ["attribute", "merged", "search"]
