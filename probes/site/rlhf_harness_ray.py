"""Ray calls `environment` at `ray.init` (RAY_RUNTIME_ENV_HOOK): workers of a cluster that was there before inherit
nothing from the driver, and are told the watch directory through their runtime environment."""

import os

_TOLD = ("RLHF_HARNESS_WATCH", "RLHF_HARNESS_SOCKETS", "RLHF_HARNESS_ADAPTER", "RLHF_HARNESS_DIGESTS")
_FILE = "/tmp/ray/ray_current_cluster"  # where Ray notes the cluster that a plain `ray.init()` joins


def environment(runtime_env):
    """The job's runtime environment with the variables of the watch; a cluster of its own inherits them already."""
    joined = os.environ.get("RAY_ADDRESS") or os.path.exists(_FILE)
    directory = os.environ.get("RLHF_HARNESS_WATCH")
    if not joined or not directory:
        return runtime_env
    found = dict(runtime_env or {})
    given = dict(found.get("env_vars") or {})
    here = os.path.dirname(os.path.abspath(__file__))
    for name in _TOLD:
        if name in os.environ:
            given.setdefault(name, os.environ[name])
    given["PYTHONPATH"] = here + os.pathsep + given.get("PYTHONPATH", "${PYTHONPATH}")
    found["env_vars"] = given
    return found
