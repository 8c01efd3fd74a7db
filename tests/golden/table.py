"""The golden table on disk: a JSON object, a row for each kept input, a line for each column and for each cause.

Columns that people write say what is kept and how it is judged; all others are what is said of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("verdicts.json")
WRITTEN = ("shows", "made_by", "input", "command", "known_wrong")

Row = dict[str, Any]
Table = dict[str, Row]


def read() -> Table:
    table: Table = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    return table


def write(table: Table) -> None:
    PATH.write_text(text(table), "utf-8")


def text(table: Table) -> str:
    return "{\n" + ",\n".join(_row(name, table[name]) for name in sorted(table)) + "\n}\n"


def expected(row: Row) -> Row:
    """The columns that are said of a row."""
    return {name: value for name, value in row.items() if name not in WRITTEN}


def _row(name: str, row: Row) -> str:
    columns = [f"  {json.dumps(column)}: {_value(value)}" for column, value in row.items()]
    return f" {json.dumps(name)}: {{\n" + ",\n".join(columns) + "\n }"


def _value(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, dict) or " " in item for item in value):
        return "[\n" + ",\n".join(f"   {json.dumps(item, ensure_ascii=False)}" for item in value) + "\n  ]"
    return json.dumps(value, ensure_ascii=False)
