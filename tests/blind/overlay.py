"""Interpreters of our own in front of those that the harness uses: the same packages, plus `blind_sabotage` at start.

Nothing of the harness or of an engine's environment is changed: an overlay is a folder with a link to the same Python and one
.pth file that adds the other environment's site-packages and imports our module (which does nothing without BLIND_CASE).
"""
import json, os, pathlib, re, shutil, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "python3.11"


def overlay(name, python):
    python = pathlib.Path(python)
    venv = python.parent.parent
    config = dict(line.split(" = ", 1) for line in (venv / "pyvenv.cfg").read_text().splitlines() if " = " in line)
    site = venv / "lib" / VERSION / "site-packages"
    base = pathlib.Path(config["home"])
    folder = HERE / "overlay" / name
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "lib" / VERSION / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for link in ("python", "python3", VERSION):
        (folder / "bin" / link).symlink_to(base / VERSION)
    (folder / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\nversion = {config.get('version', config.get('version_info'))}\n")
    (packages / "0blind.pth").write_text(
        f"import site; site.addsitedir({str(site)!r})\n"
        f"import sys; sys.path.append({str(HERE / 'sabotage')!r}); import blind_sabotage\n")
    return folder / "bin" / "python"


def build(harness_bin):
    """Overlays of the harness's interpreter and of both engines; a home of our own in which the engines are registered.
    Returns (command that is `harness`, variables)."""
    first = pathlib.Path(harness_bin).read_text().splitlines()[0]
    python = first.removeprefix("#!").strip()
    driver = overlay("driver", python)
    home = HERE / "home"
    found = json.loads(subprocess.run([harness_bin, "env", "list", "--format", "json"], capture_output=True, text=True, check=True, cwd="/tmp").stdout)
    variables = {"HARNESS_HOME": str(home)}
    command = [str(driver), "-P", str(harness_bin)]
    for one in found if isinstance(found, list) else found.get("environments", []):
        if one["name"] in ("vllm", "sglang"):
            folder = home / "envs" / one["name"]
            if (folder / "env.json").exists() and (HERE / "overlay" / one["name"] / "bin" / "python").exists():
                continue
            engine = overlay(one["name"], one["path"] if "path" in one else one["python"])
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([*command, "env", "add", one["name"], "--engine", one["name"], "--python", str(engine)],
                           env=dict(os.environ, **variables), check=True, cwd="/tmp")
    return command, variables


if __name__ == "__main__":
    print(build(sys.argv[1]))
