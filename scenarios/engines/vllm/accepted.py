"""What vLLM accepts: asked of the installed version, in its own interpreter."""

from __future__ import annotations

import argparse
import dataclasses
import inspect

from scenarios.engines.accepted import Accepted, choices, options


def accepted() -> Accepted:
    """Return what vLLM accepts: `vllm.LLM` passes arguments that it does not name on to `EngineArgs`."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    called = inspect.signature(vllm.LLM).parameters.values()
    named = {argument.name for argument in called if argument.kind is not argument.VAR_KEYWORD}
    sizes: tuple[int, ...] = ()
    if current_platform.is_cpu():  # on a GPU, several backends accept different sizes
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        sizes = tuple(CPUAttentionBackend.get_supported_head_sizes())
    arguments = {field.name for field in dataclasses.fields(EngineArgs)}
    return Accepted(
        engine=tuple(sorted(named | arguments)),
        sampling=tuple(sorted(inspect.signature(vllm.SamplingParams).parameters)),
        head_sizes=sizes,
        server=_server(),
        choices=_choices(arguments),
    )


def _choices(arguments: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the words that `EngineArgs` lists for its options; empty for a version whose parser is somewhere else."""
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser: argparse.ArgumentParser = FlexibleArgumentParser()
        EngineArgs.add_cli_args(parser)
        return choices(parser, arguments)
    except (ImportError, AttributeError):
        return {}


def _server() -> tuple[str, ...]:
    """Return the options of `vllm serve`; empty for a version whose parser is somewhere else."""
    try:
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        commands: argparse._SubParsersAction[argparse.ArgumentParser] = FlexibleArgumentParser().add_subparsers()
        return options(ServeSubcommand().subparser_init(commands))
    except (ImportError, AttributeError):
        return ()
