"""A bisection over two commands of TRL's own job: which of their words makes two environments draw otherwise."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from framework_jobs import LIMIT_S, finished, interpreter, trl_words

pytestmark = [pytest.mark.timeout(8 * LIMIT_S), pytest.mark.night]


def overlay(place: Path, python: Path, line: str) -> Path:
    """An interpreter with the packages of another one, which runs `line` first."""
    base = python.resolve()
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    packages = place / "lib" / site.parent.name / "site-packages"
    packages.mkdir(parents=True)
    (place / "bin").mkdir()
    for name in sorted({"python", "python3", base.name}):
        (place / "bin" / name).symlink_to(base)
    config = (python.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8")
    (place / "pyvenv.cfg").write_text(config, encoding="utf-8")
    loader = f"{line}\nimport site; site.addsitedir({str(site)!r})\n"
    (packages / "0_overlay.pth").write_text(loader, encoding="utf-8")
    return place / "bin" / "python"


def test_one_variable_of_three_differences_is_named(tmp_path: Path) -> None:
    own = Path(interpreter("trl"))
    # In the second environment alone the variable makes the engine draw at another temperature.
    plant = 'import os; os.environ.get("FIELD_B") and os.environ.update(FRAMEWORKS_PLANT="engine-warm")'
    other = overlay(tmp_path / "other", own, plant)
    environ = {**os.environ, "HARNESS_HOME": str(tmp_path / "home")}
    for name, python in (("before", own), ("after", other)):
        code, said = finished(["env", "add", name, "--engine", "vllm", "--python", str(python)], environ)
        assert code == 0, said
    good = shlex.join(trl_words(tmp_path, "job", ["{python}"], "--vllm", "--steps", "2"))
    bad = shlex.join(trl_words(tmp_path, "job", ["{python}"], "--vllm", "--steps", "2", "--rate", "1e-4"))
    out = tmp_path / "search"
    code, said = finished(
        ["bisect", "vllm@after", "--against", "vllm@before", "--framework", "trl", "--good", f"FIELD_A=1 {good}",
         "--bad", f"FIELD_A=2 FIELD_B=1 {bad}", "--out", str(out), "--format", "json",
         "--metric", "candidate against learner: max_delta_logprob", "--above", "0.1", "--", "--mode", "coupled"],
        environ,
    )  # fmt: skip
    assert code == 0, said
    result = json.loads((out / "bisect.json").read_text(encoding="utf-8"))
    [culprit] = result["results"]
    assert len(culprit) == 1 and "FIELD_B" in culprit[0], result
    assert len(result["steps"]) <= 7, result
