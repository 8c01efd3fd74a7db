"""Ray calls `environment` at `ray.init` (RAY_RUNTIME_ENV_HOOK), and it adds the watch's variables to the runtime
environment.

Two kinds of workers need that. Workers of a cluster that existed before inherit nothing from the driver. Workers of a
job whose runtime environment sets PYTHONPATH do not get the PYTHONPATH that they would inherit.
"""

import os
import sys

_TOLD = (
    "RLHF_HARNESS_WATCH", "RLHF_HARNESS_SOCKETS", "RLHF_HARNESS_ADAPTER", "RLHF_HARNESS_DIGESTS",
    "RLHF_HARNESS_ENGINES",
)  # fmt: skip
_FILE = "/tmp/ray/ray_current_cluster"  # where Ray notes the cluster that a plain `ray.init()` joins


def environment(runtime_env):
    """Return the job's runtime environment with the variables of the watch, where its workers would not inherit
    them.
    """
    if os.environ.get("RAY_RUNTIME_ENV_HOOK") == f"{__name__}.environment":
        del os.environ["RAY_RUNTIME_ENV_HOOK"]  # otherwise the processes that Ray starts next would inherit it
    # "local" starts a cluster, whose workers inherit this process's variables. Any other address, and a cluster that
    # Ray remembers, is one that existed before.
    address = _init_address()
    joined = address != "local" and (address or os.environ.get("RAY_ADDRESS") or os.path.exists(_FILE))
    directory = os.environ.get("RLHF_HARNESS_WATCH")
    job_env = dict(runtime_env or {})
    variables = dict(job_env.get("env_vars") or {})
    if not directory or not (joined or "PYTHONPATH" in variables):
        return runtime_env
    here = os.path.dirname(os.path.abspath(__file__))
    for name in _TOLD:
        if name in os.environ:  # a value that the job sets itself stays
            variables.setdefault(name, os.environ[name])
    variables["PYTHONPATH"] = here + os.pathsep + variables.get("PYTHONPATH", "${PYTHONPATH}")
    job_env["env_vars"] = variables
    return job_env


def _init_address():
    """Return the address that `ray.init` was called with, which Ray does not pass to its hook; None without one."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_name != "init":
        frame = frame.f_back
    return frame.f_locals.get("address") if frame is not None else None
