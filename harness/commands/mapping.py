"""`harness mapping`: does a mapping of settings from one engine to another carry them all?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import completion
from harness.commands.options import TextOrJson
from harness.commands.showing import show_json
from harness.errors import BadInput, closest
from reports.layout import Page
from reports.sections import titles

if TYPE_CHECKING:
    from harness.mapping.judge import Arrival, Mapping
    from reports.layout import Page


def mapping(
    file: Annotated[
        str,
        typer.Argument(help="the Python file whose functions map settings of one engine to another", metavar="FILE"),
    ],
    engine: Annotated[
        str,
        typer.Option(
            help="the engine that the settings are mapped to: sglang, vllm, ...",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="the engine that the settings are of; default: vllm, or sglang where they are mapped to vllm",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ] = "",
    function: Annotated[
        list[str] | None,
        typer.Option(help="a function of the file; may be repeated; default: those that map", show_default=False),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="a setting that your framework never sets; may be repeated", show_default=False),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="another setting that the function reads, NAME=VALUE; may be repeated", show_default=False
        ),
    ] = None,
    python: Annotated[
        str,
        typer.Option(
            help="the Python interpreter that runs the file, with its packages; default: this one, with stand-ins",
            show_default=False,
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(help="seconds that the file may take", min=1)] = 60.0,
    format: TextOrJson = "text",
) -> None:
    """Check your mapping of settings from one engine to another by calling it, in seconds and without a run.

    Each setting is changed alone. A setting that is dropped, inverted, shifted, renamed or tied to another shows by
    what your function returns, as does an argument that the installed engine does not take. Exits with 0 if all
    settings arrive, 1 if one does not, 2 if the file cannot be called.

    These are recognised: def f(args), where args is read as args["seed"], args.get("seed") or args.seed;
    def f(seed, dtype=...), def f(**settings) and def f(model, **settings), called with settings by name; a dictionary
    from names to names; and the functions of `harness parity --mapping`. A function returns a dictionary, or an object
    with attributes. One function may map the engine's settings and the sampling's, or each has its own. Packages of
    engines and frameworks (vllm, sglang, torch, ray, ...) need not be installed: stand-ins take their places.

    \b
    Example:
      harness mapping my_mapping.py --engine sglang
    """
    from harness.mapping.file import Asked, check, check_file, installed
    from harness.mapping.judge import Takes
    from scenarios.engines import registry

    check_file(file)
    default_source = next(name for name in registry.names(embedded=False) if name != engine)
    _check_engine(engine, "--engine", sorted(registry.names(embedded=False))[0])
    if source:
        _check_engine(source, "--from", default_source)
    source = source or default_source
    judged = check(
        Asked(
            file=file,
            engine=engine,
            source=source,
            functions=tuple(function or ()),
            ignored=tuple(ignore or ()),
            more=tuple(_named(item) for item in more or ()),
            python=python,
            timeout_s=timeout,
        ),
        Takes(installed(source), installed(engine)),
    )
    if format == "json":
        import dataclasses

        derived = {
            "verdict": judged.verdict,
            "arrived": judged.arrived,
            "exit_code": judged.exit_code,
            "reason": judged.reason,
        }
        show_json(dataclasses.asdict(judged) | derived)
    else:
        with Page() as page:
            _print(page, judged)
    raise typer.Exit(judged.exit_code)


def _check_engine(name: str, option: str, default: str) -> None:
    """Raises BadInput for a name that is no engine's, with the nearest that is, or else the default."""
    import difflib

    from scenarios.engines import registry

    if registry.find(name) is not None or registry.refusal(name):
        return
    engines = registry.names()
    near, *_ = [*difflib.get_close_matches(name, engines, n=1), default]
    if not name:
        text = f"harness mapping needs {option}, the engine that the settings are mapped to"
        raise BadInput(f"{text}: {registry.alternatives(engines)}", fix=f"{option} {near}")
    raise BadInput(
        f"{option} {name}: there is no such engine{closest(name, engines)}; there are: {', '.join(engines)}",
        fix=f"{option} {near}",
    )


def _named(item: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON or Python spells it, or else as text. Raises BadInput."""
    import ast
    import json
    import shlex

    name, sign, text = item.partition("=")
    if not sign or not name:
        setting = shlex.quote(f"{name or 'NAME'}=VALUE")
        raise BadInput(f"--with {item}: a setting is NAME=VALUE", fix=f"--with {setting}", instead=item)
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
            json.dumps(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        return name, value
    return name, text


def _print(page: Page, judged: Mapping) -> None:
    from rich.text import Text

    page.prose(Text.assemble((judged.verdict, "bold"), f"  {judged.reason}"))
    functions = ", ".join(dict.fromkeys(judged.functions.values()))
    page.prose(f"{judged.file}: {functions}, from {judged.source} to {judged.engine}")
    wrong = [item for item in judged.findings if item.kind != "dropped"]
    dropped = [item for item in judged.findings if item.kind == "dropped"]
    if wrong:
        page.heading(titles.WRONG, str(len(wrong)))
    for item in wrong:
        _wrong(page, item)
    if dropped:
        page.heading(titles.DROPPED, f"{len(dropped)}; --ignore NAME leaves out what your framework never sets")
    for item in dropped:
        _dropped(page, item)
    for title, lines in (
        (titles.LEFT_OUT, judged.left_out),
        (titles.NEVER_EQUAL, judged.differs),
        (titles.NOTES, judged.notes),
    ):
        if lines:
            page.heading(title)
        for line in lines:
            page.prose(line, "  ")


def _dropped(page: Page, item: Arrival) -> None:
    from rich.text import Text

    page.prose(Text.assemble((item.setting, "bold"), f"={item.asked!r} -> {item.text}"), "", "    ")
    page.prose(item.fix, "    fix: ")


def _wrong(page: Page, item: Arrival) -> None:
    from rich.text import Text

    gets = ", ".join(f"{name}={value!r}" for name, value in item.gets.items())
    setting_text = "" if item.asked is None else f"{item.setting}={item.asked!r} "
    arrow = "" if item.asked is None else "-> "
    page.prose(Text.assemble((item.setting, "bold"), f"  {item.kind}"))
    page.prose(f"{setting_text}{arrow}{gets + ', ' if gets and gets not in item.text else ''}{item.text}", "  ")
    if item.meaning:
        page.prose(item.meaning, "  there: ")
    page.prose(item.fix, "  fix: ")
