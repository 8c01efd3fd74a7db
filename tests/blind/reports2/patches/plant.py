"""The plant of the first reports: imported at the start of every process of an overlay."""

from pathlib import Path

_source = Path(__file__).parents[2] / "reports" / "patches" / "plant.py"
exec(compile(_source.read_text(), str(_source), "exec"))
