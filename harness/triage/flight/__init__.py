"""Flight recorder dumps: read any of them safely, compare all ranks, and say what the dumps alone can say.

flights = load_directory("/tmp/dumps")
comparison = compare(flights, memberships)
opinion = suspects(comparison)
"""

from harness.triage.flight.compare import compare, laggards, without_entry
from harness.triage.flight.flight import Flight, FlightError, NotADump
from harness.triage.flight.loading import Flights, load, load_directory
from harness.triage.flight.suspects import Blocked, Opinion, blocked, odd_side, suspects
from harness.triage.flight.worlds import worlds

__all__ = [
    "Blocked", "Flight", "FlightError", "Flights", "NotADump", "Opinion", "blocked", "compare", "laggards", "load",
    "load_directory", "odd_side", "suspects", "without_entry", "worlds",
]  # fmt: skip
