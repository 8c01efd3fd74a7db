"""Flight recorder dumps: read any of them safely, and compare all ranks.

`load` and `load_directory` read Flights, and `compare` compares them across ranks. `harness.triage.judge` says what the
comparison means.
"""

from harness.triage.flight.compare import compare, laggards, without_entry
from harness.triage.flight.flight import Flight, FlightError, NotADump
from harness.triage.flight.loading import Flights, load, load_directory, load_each, load_files
from harness.triage.flight.model import Comparison
from harness.triage.flight.worlds import worlds

__all__ = [
    "Comparison", "Flight", "FlightError", "Flights", "NotADump", "compare", "laggards", "load", "load_directory",
    "load_each", "load_files", "without_entry", "worlds",
]  # fmt: skip
