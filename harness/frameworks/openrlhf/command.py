"""OpenRLHF's command, checked against the parser that the installed module builds."""

from __future__ import annotations

import re

from harness.doctor.outcome import Fine, Outcome, Unseen
from harness.frameworks.argv import Start
from harness.frameworks.installed import Installation
from harness.frameworks.openrlhf.traps import FOREIGN
from harness.frameworks.options import DESCRIBE, Parser, against, called, dashed, from_shell, values
from harness.frameworks.settings import Settings
from harness.frameworks.spec import Examined

# A module of openrlhf.cli builds its parser below `if __name__ == "__main__"`. That block is run up to the point where
# it parses, with the file's imports from the standard library. OpenRLHF itself is not imported.
_PARSER = f"""
import ast
{DESCRIBE}
tree = ast.parse(open(sys.argv[1], encoding="utf-8").read())
imports = [one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom)) and
           (getattr(one, "module", None) or one.names[0].name).split(".")[0] in sys.stdlib_module_names]
block = next(one.body for one in tree.body if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test))
end = next(at for at, one in enumerate(block) if "parse_args" in ast.unparse(one))
names = {{}}
exec(compile(ast.Module([*imports, *block[:end]], []), sys.argv[1], "exec"), names)
answer(options=described(names["parser"]))
"""


def examine(start: Start, installed: Installation | None) -> Examined:
    """The settings of a command, with the defaults of the installed parser if it can be queried."""
    options = list(dashed(start.arguments))
    known_values, unknown = values(options)
    unread = from_shell(start.arguments)
    module = re.search(r"(?:^|[./])openrlhf[./]cli[./](\w+?)(?:\.py)?$", start.entry)
    parser = Parser()
    if not module:
        unread = f"{start.entry} is no module of openrlhf.cli: what it takes and does is not known here"
        unknown[FOREIGN] = unread
    elif installed is not None and (file := installed.source(f"openrlhf.cli.{module[1]}")):
        answer = installed.query(_PARSER, str(file))
        parser = Parser.of(f"openrlhf.cli.{module[1]}", answer.get("options", {}))
        if "unknown" in answer:
            parser = Parser(parser.where, unknown=str(answer["unknown"]))
    judged: list[Outcome] = []
    if not parser.names:
        judged.append(Unseen(parser.unknown or "the command does not name a module of openrlhf.cli whose options could "
                             "be looked up"))  # fmt: skip
    else:
        judged += against(options, parser, called("openrlhf", installed))
        judged = judged or [Fine(f"all {len(options)} options are among {parser.where}'s")]
    if not unread:
        known_values = {**parser.defaults, **known_values}
    return Examined(Settings(known_values, unknown, unread, start.variables), tuple(judged))
