"""Python runs this file at the start of every process of a lab trial that has a condition: see device.py."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _program():
    """Whether this process runs a program of the lab, or a Ray worker for one; its launcher does not count."""
    script = next((word for word in sys.orig_argv[1:] if not word.startswith("-")), "")
    programs = os.path.join(os.path.dirname(_HERE), "programs")
    of_ray = script.endswith("/ray/_private/workers/default_worker.py")
    return of_ray or os.path.dirname(os.path.abspath(script)) == programs


def _switch_on(condition):
    with open(os.path.join(_HERE, "device.py")) as text:
        code = compile(text.read(), "<device>", "exec")  # not a file: its frames must not look like the user's own code
    names: dict = {"__name__": "device"}
    exec(code, names)
    names["switch_on"](condition)


if os.environ.get("RLHF_HARNESS_LAB_CONDITION") and _program():
    _switch_on(os.environ["RLHF_HARNESS_LAB_CONDITION"])
