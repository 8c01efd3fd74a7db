"""The material of the TRL jobs, by the project's own maker. Run with the harness's interpreter: material.py DIR"""

import sys
from pathlib import Path

import harness

sys.path.insert(0, str(Path(harness.__file__).parents[1] / "tests" / "frameworks"))
from jobs.material import prepare

print(prepare(Path(sys.argv[1]).absolute()))
