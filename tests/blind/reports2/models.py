"""The models of the first reports' cases, made by the same script. models.py KIND DIR key=json ..."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "reports" / "models.py"), run_name="__main__")
