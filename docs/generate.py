"""A mkdocs hook that writes the reference pages from the code's registries, so that no list is kept twice.

`pages()` returns every generated page as Markdown; mkdocs adds them to the site through `on_files`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout: mkdocs does not import from the current folder


def _cell(text: object) -> str:
    """Text for one cell of a table."""
    escaped = " ".join(str(text).split()).replace("|", "\\|")
    return escaped.replace("<", "&lt;").replace(">", "&gt;")


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the command line: its words without `harness`, and the parser's own object."""
    import typer

    from harness.cli import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                yield from walk(child, (*words, name))
        else:
            yield " ".join(words), command

    return walk(typer.main.get_command(app), ())


def command_line() -> str:
    parts = [
        "# Command line\n",
        "`harness --help` lists the commands and `harness COMMAND --help` prints what stands here. "
        "[Exit codes](exit-codes.md) are on a page of their own.\n",
    ]
    for words, command in commands():
        parts.append(f"## harness {words}\n")
        parts.append(_fenced((command.help or "").replace("<", "&lt;")) + "\n")
        arguments = [item for item in command.params if item.param_type_name == "argument"]
        options = [item for item in command.params if item.param_type_name == "option" and item.name != "help"]
        if arguments:
            named = [(f"`{(item.metavar or item.name).upper()}`", item.help or "") for item in arguments]
            parts.append(_table(("argument", "meaning"), named))
        if options:
            rows = [(", ".join(f"`{name}`" for name in [*item.opts, *item.secondary_opts]), item.help or "",
                     _default(item)) for item in options]  # fmt: skip
            parts.append(_table(("option", "meaning", "default"), rows))
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """Help whose paragraphs that begin with \\b, which are not wrapped, are blocks of code: examples, or TOML."""
    text = re.sub(r"\x08\nExample:\n(.*?)(?=\n\n|\Z)", r"```\n\1\n```", text, flags=re.DOTALL)
    return re.sub(r"\x08\n(.*?)(?=\n\n|\Z)", r"```toml\n\1\n```", text, flags=re.DOTALL)


def _default(option: Any) -> str:
    value = option.default
    if callable(value) or value in (None, "", (), []) or "Sentinel" in type(value).__name__:
        return ""
    return f"`{'on' if value is True else 'off' if value is False else value}`"


def exit_codes() -> str:
    from harness.exit_codes import EXITS

    rows = [(f"`{one.code}`", one.commands, f"`{one.meaning}`" if one.meaning.isupper() else one.meaning)
            for one in EXITS]  # fmt: skip
    return (
        "# Exit codes\n\nGate on the exit code, not on printed text. "
        "[Verdicts](verdicts.md) says what each verdict means.\n\n" + _table(("code", "from", "meaning"), rows)
    )


def causes() -> str:
    from harness.parity.causes.registry import families

    rows = []
    for name, family in sorted(families().items()):
        rivals = "; ".join(
            f"{rival.cause}, unless " + " or ".join(str(seen) for seen in rival.excluded_by)
            for rival in family.every_rival
        )
        rows.append(
            (f"`{name}`", family.meaning, family.proof.in_words(), rivals or f"none: {family.alone}", family.fix)
        )
    return (
        "# Causes\n\nA cause is printed as its name, a detail in parentheses, and the party that is at fault. It is "
        "*proven* when an intervention removed the difference and every rival was excluded "
        "([what a proof is](../explanation/proof.md)). `harness explain NAME` "
        "prints what stands here. [Verdicts](verdicts.md#causes-that-recordings-show) lists what shows each cause, and "
        "[attribution](../explanation/attribution.md) describes the interventions.\n\n"
        + _table(("cause", "meaning", "proof", "rivals that would look the same", "what to do"), rows)
    )


def checks() -> str:
    from harness.parity.checks import registry
    from harness.parity.subjects.log_probabilities.observed_properties import PROPERTIES
    from reports.model import SUSPICIONS

    found = registry.checks()
    rows = [(f"`{item.name}`", item.number or "", item.meaning) for item in found]
    unregistered = [(f"`{name}`", number, "") for number, name in SUSPICIONS.items()
                    if name not in {item.name for item in found}]  # fmt: skip
    return (
        "# Parity checks\n\nEach check is *ruled out*, *confirmed*, *not tested*, or *undecided*: tested, with too "
        "little data for an answer. The last two never count as a pass. The number is the check's place among "
        "[the eleven suspicions](verdicts.md#the-eleven-suspicions).\n\n"
        + _table(("check", "number", "what it compares"), [*rows, *unregistered])
        + "\n## Where differences stand\n\nThese properties of a token, or of its sample, are tried where an engine "
        "differs from its learner ([how](../explanation/attribution.md#where-differences-stand)). N stands for a label "
        "or an amount that is found.\n\n" + "".join(f"- {trait.name.format('N')}\n" for trait in PROPERTIES)
    )


def doctor_checks() -> str:
    from harness.doctor.checks import CHECKS, COMPARISONS

    def rows(items: Sequence[Any]) -> list[tuple[object, ...]]:
        return [(f"`{item.name}`", ", ".join(item.needs) or "-", item.rule) for item in items]

    return (
        "# Doctor checks\n\n[Check a machine or a job](../how-to/doctor.md) says which problem each check prevents. "
        "This page says what each reads, when it confirms the problem, and the source of the rule. A check whose facts "
        "could not be read is reported as not checked.\n\n## On every machine\n\n"
        + _table(("check", "facts", "rule"), rows(CHECKS))
        + "\n## Between machines\n\n"
        + _table(("check", "facts", "rule"), rows(COMPARISONS))
    )


def hang_kinds() -> str:
    from reports.model import HANGS

    rows = [(f"`{key}`", kind.name, kind.shows, kind.named, kind.fix) for key, kind in HANGS.items()]
    return (
        "# Hang kinds\n\nA `HUNG` verdict names one kind. `harness explain KIND` prints what stands here. [The wait "
        "graph](../explanation/wait-graph.md#how-it-decides) says how it is found.\n\n"
        + _table(("kind", "name", "what shows it", "who is named as the culprit", "what to do"), rows)
    )


def glossary() -> str:
    from harness.terms import TERMS

    sections = (
        f"## {title}\n\n" + _table(("term", "meaning"), [(f"**{name}**", meaning) for name, meaning in terms.items()])
        for title, terms in TERMS.items()
    )
    return (
        "# Glossary\n\nCode, output and these pages use these words, and no synonyms for them. `harness explain TERM` "
        "prints what stands here.\n\n" + "\n".join(sections)
    )


def json_schemas() -> dict[str, str]:
    """Path below docs/ -> the JSON Schema of each kind of output."""
    import json

    from harness.schemas import schemas

    return {f"reference/schemas/{item.name}.json": f"{json.dumps(item.json(), indent=2)}\n" for item in schemas()}


def json_output() -> str:
    from harness.schemas import schemas

    rows = [
        (f"[{item.name}](schemas/{item.name}.json)", ", ".join(f"`harness {words}`" for words in item.commands))
        for item in schemas()
    ]
    return (
        "# JSON output\n\n`--format json` prints one JSON document on stdout (`harness watch`: on stderr), which these "
        "schemas describe. They are made from the types that print it. Not a number and infinity are the strings "
        '`"nan"`, `"inf"` and `"-inf"`. A reader should ignore properties that it does not know; `schema_version`, '
        "where there is one, rises when one that it knows changes. [Verdicts](verdicts.md) says what the fields of a "
        "verdict mean.\n\n" + _table(("schema", "printed by"), rows)
    )


def pages() -> dict[str, str]:
    """Path below docs/ -> content, for everything that is generated: Markdown, and the schemas."""
    return {
        "reference/json.md": json_output(),
        **json_schemas(),
        "reference/command-line.md": command_line(),
        "reference/exit-codes.md": exit_codes(),
        "reference/causes.md": causes(),
        "reference/checks.md": checks(),
        "reference/doctor-checks.md": doctor_checks(),
        "reference/hang-kinds.md": hang_kinds(),
        "reference/glossary.md": glossary(),
    }


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page: on the site, a link to the list of generated pages leads to the page itself."""
    return re.sub(r"generated\.md#([a-z-]+)\)", r"\1.md)", markdown)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs once the pages that lie in docs/ are known."""
    from mkdocs.structure.files import File

    for path, content in pages().items():
        files.append(File.generated(config, path, content=content))
    return files
