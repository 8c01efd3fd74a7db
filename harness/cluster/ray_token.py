"""Joining a Ray cluster that asks for its token."""

from __future__ import annotations

import logging

ANSWER_S = 60.0  # Ray's own limit for the start of a worker (worker_register_timeout_seconds)


def authenticate() -> None:
    """Use the token that Ray keeps in the user's home: clusters of Ray 2.52 and later ask for it by default, and
    ray.init given an address sends none (after 20 s it says that it failed to connect)."""
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:  # an older Ray has no tokens
        return
    logger = logging.getLogger(setup.__name__)
    was_disabled, logger.disabled = (
        logger.disabled,
        True,
    )  # a warning that the cluster, which is somebody's, may opt out
    try:
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    finally:
        logger.disabled = was_disabled


def unwanted() -> bool:
    """Whether this process sends a token to a cluster, just joined, that has none. Tasks run there all the same; an
    actor never starts, and Ray 2.60 says that all references to it were removed: the cluster asks the driver who holds
    it, and the driver refuses whoever brings no token. A process that sent one cannot leave that off later."""
    import ray

    def in_use() -> bool:
        from ray._private.authentication import authentication_utils

        return authentication_utils.is_token_auth_enabled()

    try:
        if not in_use():
            return False
    except ImportError:
        return False
    remote = ray.remote(num_cpus=0)(in_use)
    return not ray.get(remote.remote(), timeout=ANSWER_S)
