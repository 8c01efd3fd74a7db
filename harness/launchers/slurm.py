"""Slurm: one batch script that asks every node first, watches the command on each, and looks before the time limit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

EARLY_S = 300  # before the time limit: a look takes some seconds a node, and a job may still save itself


def command(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the job's command, the same on every node")],
    nodes: Annotated[int, typer.Option(min=1, help="nodes")] = 1,
    time: Annotated[str, typer.Option(help="the time limit, as sbatch takes it")] = "",
    stall: Annotated[str, typer.Option(help="of harness watch: without progress for so long, it is looked at")] = "5m",
    setup: Annotated[
        str,
        typer.Option(help="a line of shell before anything else, on every node: an environment is not active there"),
    ] = "",
    doctor: Annotated[str, typer.Option(help="options of harness doctor")] = "",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="another option of sbatch, --gpus-per-node=8 say; as often as needed")
    ] = None,
    early: Annotated[
        int, typer.Option(min=1, help="seconds before the time limit at which evidence is taken")
    ] = EARLY_S,
    out: Annotated[Path, typer.Option(help="the folder of the script")] = Path("."),
) -> None:
    """Write a batch script for Slurm.

    It runs harness doctor on every node and starts nothing where that fails; it runs the command under harness watch
    on every node and ends it when it hangs (exit code 86), also when only the evidence of all nodes together says so;
    and before the time limit it takes evidence on every node and judges it. $SLURM_... and $MASTER_... in the command
    are those of the job.
    """
    from harness.commands.options import seconds
    from harness.errors import BadInput
    from harness.launchers import write

    stall_s = seconds(stall)
    wrong = next((one for one in sbatch or () if not re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", one)), None)
    if wrong is not None:
        raise BadInput(f"{wrong!r} is no option of sbatch", fix="--sbatch=--gpus-per-node=8")
    given = {
        "--nodes": nodes if nodes > 1 else "", "--time": time, "--stall": stall if stall != "5m" else "",
        "--setup": setup, "--doctor": doctor, "--early": early if early != EARLY_S else "",
        **{f"--sbatch={one}": None for one in sbatch or ()},
    }  # fmt: skip
    options = [
        word for key, value in given.items() if value != "" for word in ((key,) if value is None else (key, str(value)))
    ]
    again = shlex.join(["harness", "render", "slurm", *options, "--", *words])
    asked = [f"--nodes={nodes}", "--ntasks-per-node=1", *([f"--time={time}"] if time else []), *(sbatch or [])]
    name = re.sub(r"[^\w.-]", "-", Path(words[0]).name)
    script = _SCRIPT.format(
        options="\n".join(f"#SBATCH {one}" for one in (f"--job-name={name}", "--output=%x-%j.log", *asked)),
        early=early, setup=setup or "true", doctor=doctor, stall=shlex.quote(stall),
        stall_s=f"{stall_s:g}", command=" ".join(map(_word, words)),
    )  # fmt: skip
    write({f"{name}.sbatch": script}, out, again)


def _word(word: str) -> str:
    """One word of the command, in which variables of the job are replaced on its node and nothing else is."""
    parts = re.split(r"(\$(?:SLURM|MASTER)_\w+|\$\{(?:SLURM|MASTER)_\w+\})", word)
    return (
        "".join(f'"{part}"' if number % 2 else shlex.quote(part) for number, part in enumerate(parts) if part) or "''"
    )


_SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --signal=B:USR1@{early}

set -u
export HARNESS_OUT="$SLURM_SUBMIT_DIR/harness-$SLURM_JOB_ID"
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
mkdir -p "$HARNESS_OUT"

on_every_node() {{
    srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 bash -c "$1"
}}

look_first() {{
    {setup}
    harness doctor {doctor} > "$HARNESS_OUT/doctor-$SLURMD_NODENAME.txt" 2>&1 && return
    code=$?
    sed "s/^/$SLURMD_NODENAME: /" "$HARNESS_OUT/doctor-$SLURMD_NODENAME.txt" >&2
    exit "$code"
}}

job() {{
    {setup}
    exec harness watch --stall {stall} --on-stall end --out "$HARNESS_OUT/$SLURMD_NODENAME" -- {command}
}}

look() {{
    {setup}
    harness triage --out "$LOOK/$SLURMD_NODENAME" "$HARNESS_OUT/$SLURMD_NODENAME" > /dev/null
}}
export -f look_first job look

look_together() {{ # at the job on all nodes at one time; its exit code is 1 where it hangs
    export LOOK="$HARNESS_OUT/$1"
    mkdir -p "$LOOK"
    on_every_node look
    (
        {setup}
        harness triage --out "$LOOK" "$LOOK"/*/ > "$LOOK/verdict.txt"
    )
}}

hangs() {{
    look_together "look-$1"
    [ $? = 1 ] && [ -e "$HARNESS_OUT/look-$1/verdict.json" ]
}}

pause() {{ # which a signal can end
    sleep "$1" &
    sleeper=$!
    wait "$sleeper"
}}

end_across_nodes() {{ # a hang whose culprit is on another node; it is told twice, as in harness watch
    sleeper=
    trap 'kill $sleeper 2> /dev/null; exit' TERM
    [ "$SLURM_JOB_NUM_NODES" = 1 ] && return
    looked=$(echo "$HARNESS_OUT"/*/evidence/*/verdict.json) number=0
    while pause 5; do # until a watch has looked: what it left is not of one moment, so all nodes are looked at again
        seen=$(echo "$HARNESS_OUT"/*/evidence/*/verdict.json)
        [ "$seen" = "$looked" ] && continue
        looked=$seen number=$((number + 2))
        if hangs $((number - 1)) && pause {stall_s} && hangs "$number"; then
            cat "$HARNESS_OUT/look-$number/verdict.txt" >&2
            kill -USR2 $$
            return
        fi
    done
}}

if ! on_every_node look_first; then
    echo "harness: the job was not started: see $HARNESS_OUT/doctor-*.txt" >&2
    exit 1
fi

at_the_limit() {{
    echo "harness: the time limit is {early} s away; evidence is taken in $HARNESS_OUT" >&2
    look_together at-the-limit
    cat "$HARNESS_OUT/at-the-limit/verdict.txt" >&2
}}
trap at_the_limit USR1
trap 'echo "harness: the job hangs and is ended" >&2; exit 86' USR2

on_every_node job &
step=$!
end_across_nodes &
judge=$!
trap 'kill "$judge" 2> /dev/null' EXIT
wait "$step"
code=$?
while kill -0 "$step" 2> /dev/null; do # a signal ended the wait, and not the job
    wait "$step"
    code=$?
done
exit "$code"
"""
