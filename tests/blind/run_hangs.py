"""run_hangs.py HARNESS_BIN OUT [--only NAME ...] [--how watch|triage] [--limit 75] [--control-limit 120]

Starts each program under `HARNESS_BIN watch --stall 10s --on-stall report --out …` (or by itself, and `HARNESS_BIN triage PID` once it
stands still), ends everything afterwards by pid, and compares with truth.json and truth_topologies.json. OUT/results.json, OUT/results.txt.
"""
import argparse, json, os, pathlib, signal, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
CONTROLS = "cu"  # first letters of their names
TOPOLOGIES = "truth_topologies.json"


def stat(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def tree(root):
    kids = {}
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit() and (s := stat(p.name)):
            kids.setdefault(int(s[1]), []).append(int(p.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += kids.get(found[-1], [])
    return found


def kill(pids):
    for one in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, one)
            except OSError:
                pass
        time.sleep(1)


def notes(folder):
    return {int(p.read_text()): p.stem for p in pathlib.Path(folder).glob("*.pid") if p.stat().st_size}


def label(party, known):
    pid, rank = party.get("pid"), party.get("rank")
    if pid in known:
        return known[pid]
    if pid and (s := stat(pid)) and int(s[1]) in known:
        return known[int(s[1])] + "/child"
    if not pid and rank is not None:  # a rank of which no process is left
        return f"rank{rank}"
    return f"other:{party.get('key')}"


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def verdict_of(folder):
    """The first HUNG that was said, else the last verdict."""
    found = [v for p in sorted(folder.rglob("verdict.json"), key=lambda p: p.stat().st_mtime) if (v := read(p))]
    hung = [v for v in found if v.get("verdict") == "HUNG"]
    return hung[0] if hung else found[-1] if found else None


def one(args, truth, python):
    name = truth["name"]
    out = args.out / name
    out.mkdir(parents=True, exist_ok=True)
    run = out / "pids"
    temp = out / "tmp"
    temp.mkdir(exist_ok=True)
    env = dict(os.environ, BLIND_RUN=str(run), TMPDIR="/tmp")
    program = [python, str(HERE / "hangs" / f"{name}.py")]
    control = name[0] in CONTROLS
    limit = args.control_limit if control else args.limit
    command = program
    if args.how == "watch":
        command = [args.harness, "watch", "--stall", "10s", "--on-stall", "report", "--out", str(out / "watch"), "--format", "json", "--", *program]
    begin = time.time()
    with open(out / "stdout.txt", "wb") as stdout, open(out / "stderr.txt", "wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env, cwd=out, start_new_session=True)
    seen, verdict, known, size, since = [], None, {}, 0, time.time()
    pids, at = set(), None
    ready = begin  # the limit counts from the last process that said who it is: imports of a busy machine take a minute
    while time.time() - ready < limit and time.time() - begin < limit + 120 and process.poll() is None:
        time.sleep(0.5)
        if run.is_dir() and (new := notes(run)).keys() - known.keys():
            known |= new
            ready = time.time() if time.time() - begin < 120 else ready
        if args.how == "watch":
            now = verdict_of(out / "watch") if (out / "watch").exists() else None
            if now and (not seen or now != seen[-1]):
                seen.append(now)
                if now["verdict"] == "HUNG" and at is None:
                    verdict, at = now, round(time.time() - begin, 1)
            if at and not control and time.time() - begin > at + 1.5:
                break
        else:
            size_now = (out / "stdout.txt").stat().st_size
            if size_now != size:
                size, since = size_now, time.time()
            if known and time.time() - ready > 20 and time.time() - since > 12 or control and known and time.time() - ready > 25:
                subprocess.run([args.harness, "triage", str(process.pid), "--out", str(out / "triage"), "--format", "json"],
                               stdout=open(out / "triage.json", "wb"), stderr=subprocess.DEVNULL, timeout=120, cwd=out)
                break
    code = process.poll()
    if args.how == "triage":
        verdict = verdict_of(out / "triage") if (out / "triage").exists() else read(out / "triage.json")
    elif verdict is None and (out / "watch").exists():
        verdict = verdict_of(out / "watch")
    said = verdict["verdict"] if verdict else "NONE"
    body = (verdict or {}).get("triage") or {}
    named = sorted({label(p, known) for p in body.get("culprits", [])})
    kill([*tree(process.pid), *known])
    process.wait()
    right = said in truth["accept"]
    exact = named in [sorted(x) for x in truth["culprits"]]
    allowed = {x for group in truth["culprits"] for x in group} | set(truth["tolerated"])
    innocent = [x for x in named if x not in allowed]
    return dict(name=name, expected=truth["verdict"], accept=truth["accept"], said=said, hang=body.get("hang", ""), culprits=named,
                expected_culprits=truth["culprits"], verdict_right=right, culprits_exact=exact, innocent=innocent,
                match=right and exact and not innocent, seconds=round(time.time() - begin, 1), hung_after_s=at, program_code=code,
                reason=(verdict or {}).get("reason", ""), why=[p.get("why", "") for p in body.get("culprits", [])])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("harness"), parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", nargs="*"), parser.add_argument("--how", default="watch", choices=("watch", "triage"))
    parser.add_argument("--limit", type=float, default=75), parser.add_argument("--control-limit", type=float, default=120)
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    args.harness = os.path.abspath(args.harness)
    python = pathlib.Path(args.harness).read_text().splitlines()[0].removeprefix("#!").strip()
    every = json.loads((HERE / "truth.json").read_text()) + json.loads((HERE / TOPOLOGIES).read_text())["hangs"]
    truths = [t for t in every if not args.only or any(t["name"].startswith(o) for o in args.only)]
    rows = []
    for truth in truths:
        try:
            rows.append(one(args, truth, python))
        except Exception as error:  # one program that cannot be judged must not end the table
            rows.append(dict(name=truth["name"], expected=truth["verdict"], said=f"RUNNER {error!r}", culprits=[], match=False, seconds=0,
                             hang="", verdict_right=False, culprits_exact=False, innocent=[], expected_culprits=truth["culprits"], reason=""))
        lines = [f"{'name':30} {'expected':10} {'said':12} {'kind':5} {'culprits':28} {'right':6} {'exact':6} {'innocent':14} {'match':6} s"]
        lines += [f"{r['name']:30} {r['expected']:10} {r['said']:12} {r['hang']:5} {','.join(r['culprits']) or '-':28} {r['verdict_right']!s:6} "
                  f"{r['culprits_exact']!s:6} {','.join(r['innocent']) or '-':14} {r['match']!s:6} {r['seconds']}" for r in rows]
        hangs, controls = [r for r in rows if r["name"][0] not in CONTROLS], [r for r in rows if r["name"][0] in CONTROLS]
        lines += ["", f"hangs: {sum(r['match'] for r in hangs)} of {len(hangs)} match; controls: {sum(r['match'] for r in controls)} of {len(controls)}; "
                  f"innocent named in {sum(bool(r['innocent']) for r in rows)}"]
        (args.out / "results.json").write_text(json.dumps(rows, indent=1))
        (args.out / "results.txt").write_text("\n".join(lines) + "\n")
        print(lines[len(rows)], flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
