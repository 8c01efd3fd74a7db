"""Run cases after public reports of mismatches, and say which were found and named right.

    python tests/cases/parity/run.py [--cases FILE] [--work DIR] [--keep-answers] [CASE ...]      # from the checkout

`cases.json`, or FILE with its folder, says of each case its mechanism, the truth, and what counts as right. There are
three routes: `parity` on models that are made in DIR; the same with a patch that an overlay of an environment loads at
start (of the harness's own interpreter for the embedded engine and the trainer, of an engine's environment, registered
by `harness env add`); `record` and `audit` of a TRL job, for which TRL_PYTHON names an interpreter with TRL (12 and C6
need peft beside it).
A line of JSON a case, the counts at the end. A planted case that left no mark did not act, and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
OWN = Path(sys.executable)
HARNESS: list[str | Path] = [OWN, "-m", "harness.entry"]
DIFFERS = ("DIVERGENT", "UNSOUND")
OF_EITHER_SIDE = ("unknown", "comparison", "mapping")  # parties that accuse nobody who is innocent
TRL_ON_A_CPU = {
    "FRAMEWORKS_CPU": "trl", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip

Case = dict[str, Any]


def cases(file: Path = HERE / "cases.json") -> dict[str, Case]:
    return {name: case for name, case in json.loads(file.read_text()).items() if name != "_"}


@dataclass(frozen=True)
class Bench:
    """Where cases are run. `home`: the folder of their models and patches. `keep_answers`: of live engines, beside
    each pair, for the golden table."""

    work: Path
    home: Path = HERE
    keep_answers: bool = False

    def judged(self, name: str, case: Case) -> tuple[dict[str, Any], bool]:
        """The verdict on a case, and whether what is planted acted."""
        out = self.work / "runs" / name
        shutil.rmtree(out, ignore_errors=True)
        marks = self.work / f"{name}.marks"
        marks.unlink(missing_ok=True)
        done = self._compared(case, out, marks) if "parity" in case else self._audited(case, out)
        try:
            verdict = json.loads(done.stdout)
        except ValueError:
            verdict = {"verdict": "none", "reason": (done.stderr or done.stdout).strip()[-300:]}
        return verdict, "patch" not in case or marks.exists()

    def _compared(self, case: Case, out: Path, marks: Path) -> subprocess.CompletedProcess[str]:
        model = self._model(case) if "model" in case else None
        engine, harness, planted = case.get("engine", ""), HARNESS, {}
        if "patch" in case:
            planted = {"CASE_PATCH": str(self.home / "patches" / f"{case['patch']}.py"), "CASE_MARKS": str(marks)}
            if engine:
                engine = self._register_overlay(engine)
            else:
                harness = [self._overlay("own", OWN), *HARNESS[1:]]
            if self.keep_answers:
                out.parent.mkdir(parents=True, exist_ok=True)
                planted["CASE_ANSWERS"] = f"{out}.bench.jsonl"
                Path(planted["CASE_ANSWERS"]).unlink(missing_ok=True)
        words = shlex.split(case["parity"].format(here=self.home, folder=self.home, engine=engine, model=model))
        options = ["--model", model] if model else []
        command = [*harness, "parity", *words, *options, "--set", "native.samples=128", "--out", out]
        return _run([*command, "--format", "json"], 900, **planted)

    def _audited(self, case: Case, out: Path) -> subprocess.CompletedProcess[str]:
        material = self.work / "material"
        if not (material / "prompts.jsonl").exists():
            _run([OWN, self.home / "material.py", material], 300)
        script = self.home / case.get("script", "grpo_user.py")
        model = self._model(case) if "model" in case else ""
        words = shlex.split(case["audit"].format(model=model))
        job = [os.environ["TRL_PYTHON"], script, material, f"{out}-job", *words]
        _run([*HARNESS, "record", "--digests", "--out", out, "--", *job], 900, **TRL_ON_A_CPU)
        return _run([*HARNESS, "audit", out, "--format", "json"], 300)

    def _model(self, case: Case) -> Path:
        """The folder of the case's model, which is made once."""
        kind, *words = shlex.split(case["model"].replace('"', '\\"'))
        directory = self.work / "models" / f"{kind}-{case['name']}"
        if not (directory / "config.json").exists():
            made = _run([OWN, self.home / "models.py", kind, directory, *words], 600)
            if made.returncode:
                raise RuntimeError(f"{case['name']}: no model: {made.stderr[-400:]}")
        return directory

    def _register_overlay(self, engine: str) -> str:
        """The name of an environment of this engine that loads the patch."""
        name = f"case-{engine}"
        listed = json.loads(_run([*HARNESS, "env", "list", "--format", "json"], 60).stdout)
        rows = listed["environments"] if isinstance(listed, dict) else listed
        python = next(Path(row["python"]) for row in rows if row["name"] == engine)
        _run([*HARNESS, "env", "remove", name], 60)
        overlay = self._overlay(engine, python)
        added = _run([*HARNESS, "env", "add", name, "--engine", engine, "--python", overlay], 300)
        if added.returncode:
            raise RuntimeError(added.stderr[-300:])
        return f"{engine}@{name}"

    def _overlay(self, name: str, python: Path) -> Path:
        """An interpreter with another's packages that imports patches/plant.py at start."""
        venv = python.parent.parent
        lines = (venv / "pyvenv.cfg").read_text().splitlines()
        config = dict(line.split(" = ", 1) for line in lines if " = " in line)
        site = next((venv / "lib").glob("python3*")) / "site-packages"
        version = site.parent.name
        folder = self.work / "environments" / name
        shutil.rmtree(folder, ignore_errors=True)
        packages = folder / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (folder / "bin").mkdir()
        for link in ("python", "python3", version):
            (folder / "bin" / link).symlink_to(Path(config["home"]) / version)
        number = config.get("version", config.get("version_info"))
        text = f"home = {config['home']}\ninclude-system-site-packages = false\nversion = {number}\n"
        (folder / "pyvenv.cfg").write_text(text)
        at_start = [
            f"import site; site.addsitedir({str(site)!r})",
            f"import sys; sys.path.append({str(self.home / 'patches')!r}); import plant",
        ]
        (packages / "0_plant.pth").write_text("\n".join(at_start) + "\n")
        return folder / "bin" / "python"


def _run(command: list[Any], limit: int, **environment: str) -> subprocess.CompletedProcess[str]:
    words, env = [str(word) for word in command], {**os.environ, **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=limit, cwd=CHECKOUT, env=env)


def scored(name: str, case: Case, bench: Bench) -> dict[str, Any]:
    """Run a case and hold what the harness says against the truth."""
    began = time.time()
    verdict, acted = bench.judged(name, case)
    causes = verdict.get("causes") or []
    row: dict[str, Any] = {
        "case": name,
        "name": case["name"],
        "verdict": verdict.get("verdict"),
        "acted": acted,
        "seconds": round(time.time() - began),
        "causes": [(cause["name"], cause.get("party"), bool(cause.get("proofs"))) for cause in causes],
        "reason": verdict.get("reason", "")[:240],
    }
    if case.get("sound"):
        return {**row, "control": True, "alarm": row["verdict"] in DIFFERS}
    return row | _against_truth(verdict, case)


def _against_truth(verdict: dict[str, Any], case: Case) -> dict[str, Any]:
    causes = verdict.get("causes") or []
    named = [cause for cause in causes if cause["name"] != "UNEXPLAINED"]
    confirmed = [check for check in (verdict.get("parity") or {}).get("checks", ()) if check["state"] == "confirmed"]
    texts = [f"{cause['name']} {cause.get('summary', '')}" for cause in named]
    texts += [f"{check['name']} {check.get('evidence', '')}" for check in confirmed]
    innocent = [cause["party"] for cause in causes if cause.get("party") not in (*case["party"], *OF_EITHER_SIDE)]
    wrong = [cause for cause in named if re.search(case["wrong"], cause["name"])]
    differs = verdict.get("verdict") in DIFFERS
    right = any(re.search(case["right"], text) for text in texts)
    return {
        "found": differs,
        "right": differs and right and not wrong and not innocent,
        "false_proof": [cause["name"] for cause in wrong if cause.get("proofs")],
        "wrong_party": innocent,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, default=HERE / "cases.json")
    parser.add_argument("--work", type=Path, default=Path("build/public-parity"))
    parser.add_argument("--keep-answers", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    listed, home = cases(options.cases), options.cases.resolve().parent
    bench = Bench(options.work.resolve(), home, options.keep_answers)
    bench.work.mkdir(parents=True, exist_ok=True)
    counts = dict.fromkeys(("faults", "found", "right", "false_proof", "wrong_party"), 0)
    counts |= dict.fromkeys(("controls", "alarms", "did_not_act"), 0)
    for name in options.names or listed:
        try:
            row = scored(name, listed[name], bench)
        except (subprocess.TimeoutExpired, StopIteration, KeyError, RuntimeError) as error:
            row = {"case": name, "verdict": f"{type(error).__name__}: {str(error)[:200]}", "acted": True}
        print(json.dumps(row), flush=True)
        if not row["acted"]:
            counts["did_not_act"] += 1
        elif listed[name].get("sound"):
            counts["controls"] += 1
            counts["alarms"] += bool(row.get("alarm"))
        else:
            counts["faults"] += 1
            for key in ("found", "right", "false_proof", "wrong_party"):
                counts[key] += bool(row.get(key))
    print(json.dumps(counts))
    wrong = counts["false_proof"] or counts["wrong_party"] or counts["alarms"]
    return 0 if counts["right"] >= 0.9 * counts["faults"] and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
