"""The head of a script that runs once on each node, for schedulers that cannot run a function on all nodes.

Nodes with a shared folder coordinate in it: no node starts before the doctor has passed on all of them, and they are
judged together. Nodes without one are judged together where each knows the addresses of all. Then each watch serves
its evidence, and the first node requests it and notifies the other watches of a hang.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from typing import Annotated

import typer

from harness.errors import BadInput
from harness.launchers import _job
from harness.quantities import seconds

# The option of harness doctor. Ray sets the variable for a job, and the doctor queries a worker on each node.
IN_A_RAY_JOB = '--address "$RAY_ADDRESS"'

Shared = Annotated[
    str,
    typer.Option(
        help="a directory that all nodes can write: no node starts before harness doctor has passed on all, and "
        "all are looked at together; default: each node keeps its evidence where its script runs, and gives it to the "
        "first one where all addresses and a token are known"
    ),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="start Ray on all nodes, then run the command on the first one when all have joined"),
]
Time = Annotated[str, typer.Option(help="the time limit, 90m or 12h; evidence is taken before it")]


def limit_s(time: str, early: int) -> float:
    """The time limit in seconds, 0 for none. Raises BadInput where evidence would be taken before the start."""
    limit = seconds(time, "--time") if time else 0.0
    refuse_early(time, limit, early)
    return limit


def refuse_early(time: str, limit: float, early: int, minutes: str = "m") -> None:
    """Raises BadInput where evidence would be taken before the start. `limit`: `time` in seconds; `minutes`: what
    --time writes behind a number of them."""
    if time and limit <= early:
        less = max(1, min(60, int(limit) // 2))
        longer = f"--time {math.ceil(2 * early / 60)}{minutes}"
        raise BadInput(
            f"--time {time} is over before its last {early} s begin",
            fix=f"--early {less}   # or {longer}" if less < limit else longer,
        )


def refuse_relative(option: str, folder: str, fix: str = "/SHARED") -> None:
    """Raises BadInput for a folder that is not the same where the script runs. No shell expands it either."""
    if folder and not folder.startswith("/"):
        raise BadInput(f"{option} {folder} is not the same on every node", fix=f"{option} {fix}")


def script(
    job: _job.Job, variables: str, *, nodes: int, shared: str, limit: float, ray: bool = False, **words: str
) -> str:
    """Return the script of `job`.

    variables: lines of shell that set NODES, NODE_RANK, RUN_ID, what else the command needs, and NODE_ADDRS where the
    nodes' addresses are known. They may refuse to run.
    ray: the command runs on the first node, in a Ray cluster of all nodes.
    words: further arguments of `Job.script`.
    """
    after = f"{limit - job.early:.0f}" if limit else ""
    start = f"{on_ray(job.setup)}start() {{ ray_node; }}\n" if ray else "start() { job; }\n"
    watches = _WATCHES if (served := are_served(job, nodes, shared, ray)) else "WATCHES=\n"
    ranks = f"NODE_RANK from 0 to {nodes - 1}" if nodes > 1 else "NODE_RANK=0"
    head = _HEAD.format(nodes=nodes, ranks=ranks, shared=shlex.quote(shared), after=after, watches=watches)
    head = variables + head + start
    return job.script(head, watch=SERVE if served else "", before=_TOKEN if served else "", **words)


def are_served(job: _job.Job, nodes: int, shared: str, ray: bool = False) -> bool:
    """Whether the watches serve their evidence.

    They do not where it is not needed: with one node, with a shared folder, and with a Ray cluster, whose first node
    sees all. `harness record` cannot serve evidence.
    """
    return nodes > 1 and not shared and not ray and not job.record


def on_ray(setup: str) -> str:
    """Return lines of shell that define `ray_node`: it runs a node of a Ray cluster, and on the first node the job in
    it.
    """
    return f'{_RAY.replace("SETUP", _job.prepared(setup))}\nALL_NODES="\n{ALL_NODES}"\n'


# The options of harness watch on nodes without a shared folder. WATCHES has a line for each node: its name and the
# address at which its watch serves.
SERVE = '${WATCHES:+--serve "$(address)" --serve-after 1s}'
SERVED = """\
at_ports() { # FIRST: of lines with a node's name and address. A port for each node: several may be one host
    awk -v port="$1" '{ print $1, ($2 ~ /:/ ? "[" $2 "]" : $2) ":" port + NR - 1 }'
}
address() { awk -v node="$NODE" '$1 == node { print $2 }' <<< "$WATCHES"; }
export -f address

look_together() { # every watch takes its evidence when it is asked for it
    export LOOK="$HARNESS_OUT/$1"
    mkdir -p "$LOOK"
    judge "$LOOK" $(awk '{ print "http://" $2 }' <<< "$WATCHES")
}
"""
_WATCHES = f"""\
WATCHES=
if [ "${{NODE_ADDRS:-}}" ]; then
    given=$(wc -w <<< "$NODE_ADDRS") port=${{WATCH_PORT:-7700}}
    [[ "$port" =~ ^[1-9][0-9]{{0,4}}$ ]] && [ $((port + NODES - 1)) -le 65535 ] ||
        refuse 2 "WATCH_PORT is ${{port@Q}}; fix: WATCH_PORT=7700   # a port for each node from there on"
    [ "$given" -eq "$NODES" ] ||
        refuse 2 "NODE_ADDRS has $given address(es), and the job $NODES nodes; fix: the address of each, in their order"

{textwrap.indent(SERVED, "    ")}
    export WATCHES
    WATCHES=$(awk '{{ for (i = 1; i <= NF; i++) print "node-" n++, $i }}' <<< "$NODE_ADDRS" | at_ports "$port")

    tell_others() {{ # whose watches end with 86 then, also where their commands fail because this one ends
        local looks
        looks=$(ls -td "$HARNESS_OUT"/look-*/ 2> /dev/null) || return
        mkdir -p "$HARNESS_OUT/told"
        judge "$HARNESS_OUT/told" "${{looks%%$'\\n'*}}"*/ $(awk 'NR > 1 {{ print "--end http://" $2 }}' <<< "$WATCHES")
    }}
else
    echo "harness: NODE_ADDRS is not set: a hang whose culprit is on another node will not be ended" >&2
fi
"""
# This comes after --setup, which may set the token.
_TOKEN = """\
[ -z "$WATCHES" ] || [ "${RLHF_HARNESS_TOKEN:-}" ] ||
        refuse 2 "RLHF_HARNESS_TOKEN is not set; fix: export RLHF_HARNESS_TOKEN=<secret>   # the same on each node"
    """

_HEAD = """
[ "$NODES" = {nodes} ] ||
    refuse 2 "the script is of {nodes} node(s), and the job has $NODES; fix: harness render ... --nodes $NODES"
[[ "$NODE_RANK" =~ ^(0|[1-9][0-9]{{0,8}})$ ]] || refuse 2 "NODE_RANK is ${{NODE_RANK@Q}}; fix: {ranks}"
[ "$NODE_RANK" -lt {nodes} ] ||
    refuse 2 "this is node $NODE_RANK of {nodes}; fix: {ranks}, or harness render ... --nodes $((NODE_RANK + 1))"
[[ "$RUN_ID" =~ ^[A-Za-z0-9_.-]+$ ]] || refuse 2 "RUN_ID is ${{RUN_ID@Q}}; fix: letters, digits, -, _ and ."
SHARED={shared}
export NODE="node-$NODE_RANK" HARNESS_OUT="${{SHARED:-$PWD}}/harness-$RUN_ID"
[ "$NODES" = 1 ] && SHARED=
{watches}mkdir -p "$HARNESS_OUT" || refuse 2 "$HARNESS_OUT cannot be written; fix: a folder of your own"
OUT=$HARNESS_OUT
for ((again = 1; ${{RECOVERS:-0}}; again++)); do # a job that its scheduler starts again under the same name
    [ -e "$HARNESS_OUT/doctor-$NODE.txt" ] || break
    HARNESS_OUT=$OUT-restart-$again
    mkdir -p "$HARNESS_OUT"
done
[ -e "$HARNESS_OUT/doctor-$NODE.txt" ] &&
    refuse 2 "$HARNESS_OUT is of an earlier run; fix: mv $HARNESS_OUT $HARNESS_OUT.old"

here() {{ # FUNCTION NAME: run it; its exit code is in NODE.NAME, for the other nodes
    ("$1")
    local code=$?
    echo "$code" > "$HARNESS_OUT/$2.$NODE"
    return "$code"
}}

all_nodes() {{ # NAME: whether each has left its exit code
    local files=("$HARNESS_OUT/$1".node-*)
    [ -e "${{files[0]}}" ] && [ "${{#files[@]}}" -ge "$NODES" ]
}}

first() {{
    here look_first first || return
    [ "$SHARED" ] || return 0
    until all_nodes first; do
        [ "$SECONDS" -lt 1800 ] || refuse 1 "not all of $NODES nodes are in $HARNESS_OUT after 30 min; fix: --shared"
        sleep 1
    done
    ! grep -qvx 0 "$HARNESS_OUT"/first.node-*
}}

look_everywhere() {{ # each node answers; one that does not within a minute is missing from the verdict
    local look=${{LOOK##*/}}
    [ "$SHARED" ] || here look "$look"
    for _ in {{1..60}}; do
        [ -z "$SHARED" ] || all_nodes "$look" && return
        sleep 1
    done
}}

answer() {{ # looks that the first node asks for, and its verdict
    [ "$SHARED" ] || return
    while sleep 1 && kill -0 $$; do
        for LOOK in "$HARNESS_OUT"/look-*/ "$HARNESS_OUT"/at-the-limit/; do
            LOOK=${{LOOK%/}}
            [ ! -d "$LOOK" ] || [ -e "$LOOK.$NODE" ] || here look "${{LOOK##*/}}"
        done
        [ "$NODE_RANK" != 0 ] && [ -e "$HARNESS_OUT/hangs" ] && kill -USR2 $$ && return
    done 2> /dev/null
}}
answer &
answering=$!

limit() {{
    sleeper=
    trap 'kill $sleeper 2> /dev/null; exit' TERM
    [ "{after}" ] && pause "{after}" && kill -USR1 $$
}}
if [ -z "$SHARED$WATCHES" ] || [ "$NODE_RANK" = 0 ]; then
    limit &
    answering="$answering $!"
fi
[ "$SHARED$WATCHES" ] && [ "$NODE_RANK" = 0 ] || end_across_nodes() {{ :; }}

trap '[ "${{step:-}}" ] || exit 143; kill -TERM "$step" 2> /dev/null' TERM INT HUP
trap 'kill $answering 2> /dev/null' EXIT # until the job starts
stop() {{ # also of a job that hangs across nodes; then what each watch has left is judged together
    if kill -TERM "$step" 2> /dev/null; then
        touch "$HARNESS_OUT/hangs"
        wait "$step"
    fi
    kill $answering 2> /dev/null
    echo "$code" > "$HARNESS_OUT/ended.$NODE"
    [ "$SHARED" ] && [ "$NODE_RANK" = 0 ] && [ "$code" != 0 ] || return
    for _ in {{1..30}}; do
        all_nodes ended && break
        sleep 1
    done
    mkdir -p "$HARNESS_OUT/at-the-end"
    judge "$HARNESS_OUT/at-the-end" "$HARNESS_OUT"/node-*/
    cat "$HARNESS_OUT/at-the-end/verdict.txt" >&2
}}
"""

# Its arguments are the number of nodes and the seconds to wait for them. It is placed in double quotes of bash.
ALL_NODES = """\
import sys, time, ray
ray.init(log_to_driver=False)
nodes, by = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while len(there := [node['NodeManagerHostname'] for node in ray.nodes() if node['Alive']]) < nodes:
    if time.monotonic() > by:
        joined = ', '.join(there)
        sys.exit(f'{len(there)} of {nodes} nodes joined Ray: {joined}; fix: see the logs of the others')
    time.sleep(1)
"""
# `ray stop` is not used: it would end every Ray on the node, also SkyPilot's own. With --block, Ray ends on a signal.
_RAY = """\
RAY_PORT=${RAY_PORT:-6379}

ray_node() { # the other nodes only join, until the first is gone
    SETUP
    # `ray start` asks for a token where it finds one; other commands, and ray.init() with an address, send none.
    if [ -n "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ] || [ -s ~/.ray/auth_token ]; then
        export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
    fi
    local options=(--block --disable-usage-stats ${RAY_CPUS:+--num-cpus "$RAY_CPUS"}) ray= running= code=1
    trap '[ "$running" ] && kill -TERM "$running" || { kill $ray; forget; exit 143; } 2> /dev/null' TERM
    export RAY_ADDRESS="$MASTER_ADDR:$RAY_PORT"
    [ "$NODE_RANK" = 0 ] || { joined; return; }
    ray start --head --port "$RAY_PORT" --node-ip-address "$MASTER_ADDR" "${options[@]}" &
    ray=$!
    until_there && beside python -c "$ALL_NODES" "$NODES" 1800 && {
        beside job
        code=$?
    }
    kill "$ray" 2> /dev/null
    wait "$ray"
    forget
    return "$code"
}

beside() { # COMMAND: its exit code; a signal to this shell is one to the command
    "$@" &
    running=$!
    await "$running"
    local code=$?
    running=
    return "$code"
}

forget() { # where Ray notes the cluster that a later ray.init() on this node would look for
    local note=/tmp/ray/ray_current_cluster
    if grep -q ":$RAY_PORT$" "$note" 2> /dev/null; then rm -f "$note"; fi
}

is_there() { timeout 20 ray health-check --address "$RAY_ADDRESS" > /dev/null 2>&1; }

until_there() {
    local since=$SECONDS dead="$HARNESS_OUT/ray-did-not-start"
    until is_there; do
        [ -z "$ray" ] || kill -0 "$ray" 2> /dev/null || touch "$dead"
        [ ! -e "$dead" ] || refuse 1 "Ray did not start at $RAY_ADDRESS; fix: see the log of the first node"
        [ $((SECONDS - since)) -lt 1800 ] ||
            refuse 1 "no Ray at $RAY_ADDRESS after 30 min; fix: see the log of the first node"
        sleep 2
    done
}

joined() {
    until_there
    beside ray start --address "$RAY_ADDRESS" "${options[@]}"
    local code=$?
    forget
    ! is_there || return "$code"
}
"""
