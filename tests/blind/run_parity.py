"""run_parity.py HARNESS_BIN OUT [--only NAME ...] [--limit 420] [--quick]

Runs each case as `harness parity A B …` through overlay interpreters (overlay.py), with BLIND_CASE naming the sabotage, and tabulates
verdict and causes beside truth_parity.json and truth_topologies.json. Whether a cause is the right one a person decides. OUT/results.json, OUT/results.txt.

--quick: only whether the sabotage acts: fewer stages (no attribution, no native stage where the case does not need it), and what
differs in the two recordings, read without the judge.
"""
import argparse, json, os, pathlib, signal, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import overlay
from run_hangs import TOPOLOGIES, kill, read, tree


def differences(out, python):
    """What differs between the recordings: by the reader of the recording format only."""
    code = r'''
import sys, json, pathlib, math
from probes.format import Run
runs = {}
for path in pathlib.Path(sys.argv[1]).rglob("run.json"):
    side = json.loads(path.read_text()).get("side")
    runs[side] = Run(path.parent, strict=False)
found = {}
def frames(run, kind):
    rows = {}
    for frame in run.frames(kind=kind):
        a = frame.arrays
        ids, lp = a["output"].rows() if "output" in a else None, a.get("logprob")
        names = [n for n in a]
        finish = frame.fields.get("finish") or []
        lps = next((a[n].rows() for n in a if "logprob" in n), None)
        for i, s in enumerate(a["sample"].tolist()):
            rows[(frame.step if hasattr(frame, "step") else frame.fields.get("step"), int(s))] = (
                list(ids[i]), [float(x) for x in lps[i]] if lps is not None else [], finish[i] if i < len(finish) else "")
    return rows
for kind in ("rollout", "native"):
    try:
        one, two = frames(runs["baseline"], kind), frames(runs["candidate"], kind)
    except Exception as error:
        found[kind] = repr(error)[:150]; continue
    tokens = worst = other_finish = longer = samples = 0; steps = set(); total = 0.0
    for key in sorted(set(one) & set(two), key=str):
        samples += 1
        (i1, l1, f1), (i2, l2, f2) = one[key], two[key]
        n = 0
        while n < min(len(i1), len(i2)) and i1[n] == i2[n]: n += 1
        tokens += int(i1 != i2); other_finish += int(f1 != f2)
        d = [abs(x - y) for x, y in zip(l1[:n], l2[:n])]
        total += sum(d); worst = max([worst, *d])
        if i1 != i2 or (d and max(d) > 1e-3): steps.add(str(key[0]))
    found[kind] = dict(samples=samples, samples_with_other_tokens=tokens, other_finish=other_finish, max_dlogprob=round(worst, 6), steps=sorted(steps))
print(json.dumps(found))
'''
    done = subprocess.run([python, "-c", code, str(out)], capture_output=True, text=True, cwd=HERE)
    return done.stdout.strip()[-600:] or done.stderr.strip()[-300:]


def one(args, truth, command, variables, python):
    out = args.out / truth["name"]
    out.mkdir(parents=True, exist_ok=True)
    marks = out / "marks.txt"
    marks.unlink(missing_ok=True)
    env = dict(os.environ, **variables, BLIND_CASE=truth["name"], BLIND_MARK=str(marks))
    quick = []
    if args.quick:
        quick = ["--no-attribution", "--steps", "5"] + ([] if truth["name"].startswith("r02") else ["--no-native"])
    line = [*command, "parity", *truth["backends"], *truth["arguments"], *quick, "--out", str(out / "run"), "--format", "text"]
    begin = time.time()
    with open(out / "stdout.txt", "wb") as stdout, open(out / "stderr.txt", "wb") as stderr:
        process = subprocess.Popen(line, stdout=stdout, stderr=stderr, env=env, cwd=out, start_new_session=True)
        seen = {process.pid}
        try:
            while process.poll() is None and time.time() - begin < args.limit:
                seen |= set(tree(process.pid))
                time.sleep(0.5)
        finally:
            timed_out = process.poll() is None
            if timed_out:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    pass
                kill([p for p in seen if ours(p)])
                process.wait()
    found = [v for p in sorted((out / "run").rglob("verdict.json")) if (v := read(p)) and v.get("kind") == "parity"]
    verdict = found[0] if found else {}
    causes = [dict(name=c["name"], party=c["party"], proven=bool(c.get("proofs")), summary=c.get("summary", "")) for c in verdict.get("causes", [])]
    said = verdict.get("verdict", "TIMEOUT" if timed_out else f"NONE (exit {process.returncode})")
    return dict(name=truth["name"], dtype=truth["dtype"], side=truth["side"], who=truth.get("who", ""), what=truth["what"], accept=truth["accept"], expected=truth["verdict"],
                said=said, verdict_right=said == truth["verdict"], exit=process.returncode, causes=causes, reason=verdict.get("reason", ""),
                seconds=round(time.time() - begin, 1), marks=marks.read_text().splitlines()[:12] if marks.exists() else [],
                **({"differences": differences(out / "run", python)} if args.quick else {}))


def ours(pid):
    try:
        return b"BLIND_CASE=" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("harness"), parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", nargs="*"), parser.add_argument("--limit", type=float, default=420), parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    harness = os.path.abspath(args.harness)
    python = pathlib.Path(harness).read_text().splitlines()[0].removeprefix("#!").strip()
    command, variables = overlay.build(harness)
    every = json.loads((HERE / "truth_parity.json").read_text()) + json.loads((HERE / TOPOLOGIES).read_text())["parity"]
    truths = [t for o in args.only for t in every if t["name"].startswith(o)] if args.only else every
    rows = []
    for truth in truths:
        row = one(args, truth, command, variables, python)
        rows.append(row)
        lines = []
        for r in rows:
            lines += [f"{r['name']:30} {r['dtype']:9} fault of: {r['side']:26} expected {r['expected']:11} said {r['said']:13} {'right' if r['verdict_right'] else 'WRONG'}  {r['seconds']} s",
                      f"    truth:  {r['what']}", f"    accept: {r['accept']}", *([f"    who:    {r['who']}"] if r["who"] else [])]
            lines += [f"    cause:  {c['name']}  party {c['party']}  {'proven' if c['proven'] else 'not proven'}" for c in r["causes"]] or ["    cause:  -"]
            lines += [f"    mark:   {m}" for m in r["marks"][:3]]
            if "differences" in r:
                lines += [f"    own diff: {r['differences']}"]
        lines += ["", f"verdicts right: {sum(r['verdict_right'] for r in rows)} of {len(rows)}"]
        (args.out / "results.json").write_text(json.dumps(rows, indent=1))
        (args.out / "results.txt").write_text("\n".join(lines) + "\n")
        print(row["name"], "done", row["seconds"], "s,", len(row["marks"]), "marks", row.get("differences", "")[:300], flush=True)
    if not args.quick:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
