"""Flight recorder dumps: read any of them safely, compare all ranks, and say what the dumps alone can say.

`load` and `load_directory` make Flights, `compare` puts them side by side, `suspects` is what they say by themselves.
"""

from harness.triage.flight.compare import compare, laggards, without_entry
from harness.triage.flight.flight import Flight, FlightError, NotADump
from harness.triage.flight.loading import Flights, load, load_directory
from harness.triage.flight.model import Comparison
from harness.triage.flight.suspects import Blocked, Opinion, blocked, odd_side, suspects
from harness.triage.flight.worlds import worlds

__all__ = [
    "Blocked", "Comparison", "Flight", "FlightError", "Flights", "NotADump", "Opinion", "blocked", "compare",
    "laggards", "load", "load_directory", "odd_side", "suspects", "without_entry", "worlds",
]  # fmt: skip
