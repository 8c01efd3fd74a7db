#!/usr/bin/env python3
"""Runs cases after public reports of mismatches, and says which were found and named right.

    HARNESS=.venv/bin/harness run.py [--cases FILE] [--work DIR] [CASE ...]

Three routes: `parity` on models that it makes in DIR; the same with a patch that an overlay of an environment loads at start (of the harness's own
interpreter for the embedded engine and the trainer, of an engine's environment, registered by `harness env add`); `record` and `audit` of a TRL job.
One line of JSON a case, the counts at the end. A planted case that left no mark did not act, and does not count.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser()
parser.add_argument("--cases", type=Path, default=HERE / "cases.json")
parser.add_argument("--work", type=Path, default=Path("build/blind-reports"))
parser.add_argument("names", nargs="*")
asked = parser.parse_args()
CASES = {name: case for name, case in json.loads(asked.cases.read_text()).items() if name != "_"}
FOLDER = asked.cases.resolve().parent
WORK = asked.work.resolve()
HARNESS = Path(os.environ["HARNESS"]).absolute()
OWN = HARNESS.parent / "python"


def run(command, limit, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit, env={**os.environ, **environment})


def model_of(case):
    """Make the case's model once; its folder."""
    kind, *words = shlex.split(case["model"].replace('"', '\\"'))
    directory = WORK / "models" / f"{kind}-{hashlib.sha256(case['model'].encode()).hexdigest()[:8]}"
    if not (directory / "config.json").exists():
        made = run([OWN, HERE / "models.py", kind, directory, *words], 600)
        if made.returncode:
            raise SystemExit(f"{case['name']}: no model: {made.stderr[-400:]}")
    return directory


def overlay(name, python):
    """An interpreter with another's packages that imports patches/plant.py at start."""
    venv = python.parent.parent
    config = dict(line.split(" = ", 1) for line in (venv / "pyvenv.cfg").read_text().splitlines() if " = " in line)
    site = next((venv / "lib").glob("python3*")) / "site-packages"
    version = site.parent.name
    folder = WORK / "environments" / name
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for link in ("python", "python3", version):
        (folder / "bin" / link).symlink_to(Path(config["home"]) / version)
    (folder / "pyvenv.cfg").write_text(f"home = {config['home']}\ninclude-system-site-packages = false\nversion = {config.get('version', config.get('version_info'))}\n")
    lines = [f"import site; site.addsitedir({str(site)!r})", f"import sys; sys.path.append({str(HERE / 'patches')!r}); import plant"]
    (packages / "0_plant.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


def engine_python(engine):
    rows = json.loads(run([HARNESS, "env", "list", "--format", "json"], 60).stdout)
    rows = rows["environments"] if isinstance(rows, dict) else rows
    return next(Path(row["python"]) for row in rows if row["name"] == engine)


def judged(case, name):
    """The verdict of the case as a dict, and whether what was planted acted."""
    marks, out = WORK / f"{name}.marks", WORK / "runs" / name
    shutil.rmtree(out, ignore_errors=True)
    marks.unlink(missing_ok=True)
    planted, harness, engine = {}, [HARNESS], case.get("engine", "")
    words = {"here": HERE, "folder": FOLDER, "engine": engine, "model": model_of(case) if "model" in case else ""}
    if "patch" in case:
        file = next(folder / "patches" / f"{case['patch']}.py" for folder in (FOLDER, HERE) if (folder / "patches" / f"{case['patch']}.py").exists())
        planted = {"CASE_PATCH": str(file), "CASE_MARKS": str(marks)}
        if engine:
            words["engine"] = f"{engine}@case-{engine}"
            run([HARNESS, "env", "remove", f"case-{engine}"], 60)
            added = run([HARNESS, "env", "add", f"case-{engine}", "--engine", engine, "--python", overlay(engine, engine_python(engine))], 300)
            if added.returncode:
                return {"verdict": "none", "reason": added.stderr[-300:]}, False
        else:
            harness = [overlay("own", OWN), "-P", HARNESS]
    if "parity" in case:
        asked_for = shlex.split(case["parity"].format(**words)) + (["--model", words["model"]] if words["model"] else [])
        done = run([*harness, "parity", *asked_for, "--set", "native.samples=128", "--out", out, "--format", "json"], 900, **planted)
    else:
        material = WORK / "material"
        if not (material / "prompts.jsonl").exists():
            run([OWN, HERE / "material.py", material], 300)
        script = next(folder / case.get("script", "grpo_user.py") for folder in (FOLDER, HERE) if (folder / case.get("script", "grpo_user.py")).exists())
        cpu = {"FRAMEWORKS_CPU": "trl", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "TRL_EXPERIMENTAL_SILENCE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        job = [os.environ["TRL_PYTHON"], script, material, f"{out}-job", *shlex.split(case["audit"].format(**words))]
        run([HARNESS, "record", "--digests", "--out", out, "--", *job], 900, **cpu)
        done = run([HARNESS, "audit", out, "--format", "json"], 300)
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        verdict = {"verdict": "none", "reason": (done.stderr or done.stdout).strip()[-300:]}
    return verdict, "patch" not in case or marks.exists()


def line_of(name, case):
    began = time.time()
    verdict, acted = judged(case, name)
    said = verdict.get("verdict")
    causes = [cause for cause in verdict.get("causes") or []]
    named = [cause for cause in causes if cause["name"] != "UNEXPLAINED"]
    held = [f"{cause['name']} {cause.get('summary', '')}" for cause in named]
    held += [f"{check['name']} {check.get('evidence', '')}" for check in verdict.get("checks") or verdict.get("parity", {}).get("checks") or [] if check.get("state") == "confirmed"]
    row = {"case": name, "name": case["name"], "said": said, "acted": acted, "seconds": round(time.time() - began), "causes": [(c["name"], c.get("party"), bool(c.get("proofs"))) for c in causes]}
    if case.get("sound"):
        return {**row, "control": True, "alarm": said in ("DIVERGENT", "UNSOUND")}
    right = re.compile(case["right"])
    heads = [cause["name"] for cause in named]
    row["found"] = said in ("DIVERGENT", "UNSOUND")
    row["false_proof"] = [cause["name"] for cause in named if cause.get("proofs") and re.search(case["wrong"], cause["name"])]
    row["wrong_party"] = [cause["party"] for cause in causes if cause.get("party") not in (*case["party"], "unknown", "comparison", "mapping")]
    wrong = [head for head in heads if re.search(case["wrong"], head)]
    row["right"] = row["found"] and any(right.search(text) for text in held) and not wrong and not row["wrong_party"]
    row["reason"] = verdict.get("reason", "")[:240]
    return row


WORK.mkdir(parents=True, exist_ok=True)
counts = dict.fromkeys(("faults", "found", "right", "false_proof", "wrong_party", "controls", "alarms", "did_not_act"), 0)
for name in asked.names or CASES:
    try:
        row = line_of(name, CASES[name])
    except (subprocess.TimeoutExpired, StopIteration, KeyError) as error:
        row = {"case": name, "name": CASES[name]["name"], "said": f"{type(error).__name__}: {str(error)[:200]}", "acted": True}
    print(json.dumps(row), flush=True)
    if not row["acted"]:
        counts["did_not_act"] += 1
    elif CASES[name].get("sound"):
        counts["controls"] += 1
        counts["alarms"] += bool(row.get("alarm"))
    else:
        counts["faults"] += 1
        for key in ("found", "right", "false_proof", "wrong_party"):
            counts[key] += bool(row.get(key))
print(json.dumps(counts))
sys.exit(0 if counts["right"] >= 0.9 * counts["faults"] and not counts["false_proof"] and not counts["wrong_party"] and not counts["alarms"] else 1)
