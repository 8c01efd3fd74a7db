"""What SGLang accepts: asked of the installed version, in its own interpreter."""

from __future__ import annotations

import argparse
import inspect

from scenarios.engines.accepted import Accepted, options


def accepted() -> Accepted:
    """Return what SGLang accepts: `sglang.Engine` makes `ServerArgs` of its arguments, and `SamplingParams` of a
    request's.
    """
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs

    server = argparse.ArgumentParser()
    ServerArgs.add_cli_args(server)
    return Accepted(
        engine=tuple(sorted({*inspect.signature(ServerArgs).parameters, "server_args"})),
        sampling=tuple(sorted(inspect.signature(SamplingParams).parameters)),
        server=options(server),
    )
