"""Joining a Ray cluster that asks for its token."""

from __future__ import annotations


def authenticate() -> None:
    """Use the token that Ray keeps in the user's home: clusters of Ray 2.52 and later ask for it by default, and
    ray.init given an address sends none (after 20 s it says that it failed to connect)."""
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:  # an older Ray has no tokens
        return
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
