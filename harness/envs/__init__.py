"""Engine environments: one interpreter per rollout engine, beside the small environment of the driver.

The harness makes them, or the user registers existing interpreters. Modules here import only the standard library,
until uv or a progress bar is needed.
"""

from harness.envs.bundles import bundle
from harness.envs.checking import Check, check
from harness.envs.creation import create, order
from harness.envs.environment import Environment, all_environments, get
from harness.envs.registration import add, remove
from harness.envs.resolution import Backend, exists, parse, refuse_unreleased, resolve

__all__ = [
    "Backend",
    "Check",
    "Environment",
    "add",
    "all_environments",
    "bundle",
    "check",
    "create",
    "exists",
    "get",
    "order",
    "parse",
    "refuse_unreleased",
    "remove",
    "resolve",
]
