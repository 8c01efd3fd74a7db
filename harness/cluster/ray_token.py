"""Joins a Ray cluster that requires a token."""

from __future__ import annotations

import logging

ANSWER_S = 60.0  # seconds: Ray's own limit for the start of a worker (worker_register_timeout_seconds)


def authenticate() -> None:
    """Use the token that Ray keeps in the user's home.

    Clusters of Ray 2.52 and later require it by default, but ray.init with an address sends none, and after 20 s
    reports that it could not connect.
    """
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:  # an older Ray has no tokens
        return
    logger = logging.getLogger(setup.__name__)
    was_disabled, logger.disabled = (
        logger.disabled,
        True,
    )  # no warning about a cluster that may have opted out
    try:
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    finally:
        logger.disabled = was_disabled


def in_use() -> bool:
    """Whether this process sends a token."""
    try:
        from ray._private.authentication import authentication_utils
    except ImportError:
        return False
    return bool(authentication_utils.is_token_auth_enabled())


def command(line: str) -> str:
    """Return a command line of Ray that reaches the cluster as this process does: Ray's own sends no token unasked."""
    return f"RAY_AUTH_MODE=token {line}" if in_use() else line


def unwanted() -> bool:
    """Whether this process sends a token to a cluster, just joined, that has none.

    Tasks run there all the same, but an actor never starts, and Ray 2.60 reports that all references to it were
    removed: the cluster asks the driver who holds the actor, and the driver refuses a request without a token. A
    process that once sent a token cannot stop sending it.
    """
    import ray

    if not in_use():
        return False

    def in_use_there() -> bool:  # Ray sends the code of a nested function: a node need not have the harness
        from ray._private.authentication import authentication_utils

        return authentication_utils.is_token_auth_enabled()

    remote = ray.remote(num_cpus=0)(in_use_there)
    return not ray.get(remote.remote(), timeout=ANSWER_S)
