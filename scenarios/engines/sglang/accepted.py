"""What SGLang accepts: asked of the installed version, in its own interpreter."""

from __future__ import annotations

import argparse
import contextlib
import inspect

from scenarios.engines.accepted import Accepted, choices, options


def accepted() -> Accepted:
    """Return what SGLang accepts: `sglang.Engine` makes `ServerArgs` of its arguments, and `SamplingParams` of a
    request's.
    """
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs

    with contextlib.suppress(ImportError):  # an engine loads them before it reads its arguments, and they add choices
        from sglang.srt.plugins import load_plugins

        load_plugins()
    server = argparse.ArgumentParser()
    ServerArgs.add_cli_args(server)
    arguments = {*inspect.signature(ServerArgs).parameters}
    return Accepted(
        engine=tuple(sorted({*arguments, "server_args"})),
        sampling=tuple(sorted(inspect.signature(SamplingParams).parameters)),
        server=options(server),
        choices=choices(server, arguments),
    )
