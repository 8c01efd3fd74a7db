"""Interrupts that Python loses: the handler of a signal may run inside a callback of the interpreter (of a weak
reference, a finalizer), where an exception is printed and ignored. The signal is then sent again."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from harness.errors import Terminated

AGAIN_S = 0.1  # after the callback has returned, which takes microseconds


def send_again() -> None:
    """From now on an interrupt of this process that is ignored comes again. Called by the main thread."""
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            usual(unraisable)
            return
        Terminated.lost = True
        number = Terminated.arrived or signal.SIGINT
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
