"""What a fork server forks is the process that its interpreter would have started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.fork_servers import ForkServers, Preload
from harness.triage.collect.roles import infrastructure
from scenarios import forked

pytestmark = pytest.mark.slow  # interpreters are started

SCRIPT = """
import json, os, sys, tempfile
facts = {"temporary": tempfile.gettempdir()}
facts |= {"argv": sys.argv, "ppid": os.getppid(), "name": __name__, "imported": "fractions" in sys.modules,
         "mine": os.environ.get("MINE"), "folder": os.getcwd(), "first": sys.path[0]}
print(json.dumps(facts), flush=True)
print(sys.stdin.read(), file=sys.stderr, flush=True)
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ForkServers]:
    root = str(Path(__file__).parents[3])
    (tmp_path / "looked_up.py").write_text("import tempfile; tempfile.gettempdir()\n")  # as torch does
    made = ForkServers(
        [Preload(sys.executable, {"PYTHONPATH": f"{root}:{tmp_path}"}, ("fractions", "looked_up", "no_such_module"))]
    )
    made.start()
    yield made
    made.end()


def _run(command: str, folder: Path) -> tuple[dict[str, object], str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        f"exec {command} {script} a 'b c'", shell=True, input="in", capture_output=True, text=True, cwd=folder,
        env={**os.environ, "MINE": "1", "TMPDIR": str(folder)}, timeout=60, check=True,
    )  # fmt: skip
    facts: dict[str, object] = json.loads(ended.stdout)
    return facts, ended.stderr.strip()


def test_a_fork_has_the_arguments_environment_folder_and_streams_of_whoever_asked(
    servers: ForkServers, tmp_path: Path
) -> None:
    facts, errors = _run(servers.command(sys.executable), tmp_path)
    script = str(tmp_path / "script.py")
    assert (facts["argv"], facts["name"], facts["mine"]) == ([script, "a", "b c"], "__main__", "1")
    assert (facts["folder"], facts["first"], errors) == (str(tmp_path), str(tmp_path), "in")
    assert facts["temporary"] == str(tmp_path), "not where the server keeps its files"
    assert facts["imported"] and facts["ppid"] == servers._servers[0].pid


def test_a_killed_process_group_of_a_fork_leaves_the_server_and_the_other_forks(
    servers: ForkServers, tmp_path: Path
) -> None:
    """Ray ends an actor with its process group."""
    script = tmp_path / "script.py"
    script.write_text("import os, signal; os.killpg(os.getpgid(0), signal.SIGKILL)")
    subprocess.run(f"exec {servers.command(sys.executable)} {script}", shell=True, cwd=tmp_path, timeout=60, check=True)
    facts, _ = _run(servers.command(sys.executable), tmp_path)
    assert facts["imported"] and servers._servers[0].poll() is None


def test_a_fork_server_is_lent_to_another_process(servers: ForkServers, tmp_path: Path) -> None:
    borrower = ForkServers((), servers.sockets)
    borrower.start()
    facts, _ = _run(borrower.command(sys.executable), tmp_path)
    borrower.end()
    assert facts["imported"] and servers._servers[0].poll() is None


def test_without_its_server_the_interpreter_runs_the_script(servers: ForkServers, tmp_path: Path) -> None:
    command = servers.command(sys.executable)
    servers.end()
    facts, errors = _run(command, tmp_path)
    assert (facts["argv"], errors, facts["imported"]) == ([str(tmp_path / "script.py"), "a", "b c"], "in", False)


def test_a_script_that_ends_before_its_order_is_said_to_be_sent_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "server")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    send = socket.send_fds

    def sent_and_ended(client: socket.socket, *order: Any) -> int:
        length = send(client, *order)
        server, _ = listener.accept()
        received = b""
        while not received.endswith(b"\n"):
            received += server.recv(1 << 16)
        server.close()
        return length

    run_again: list[str] = []
    monkeypatch.setattr(socket, "send_fds", sent_and_ended)
    monkeypatch.setattr(os, "execv", lambda python, argv: run_again.append(python))
    monkeypatch.setattr(sys, "argv", ["forked.py", address, sys.executable, "script.py"])
    with listener:
        forked.main()
    assert not run_again


def test_an_interpreter_that_nothing_is_imported_for_is_its_own_command(servers: ForkServers) -> None:
    assert servers.command("/usr/bin/other") == "/usr/bin/other"


def test_both_ends_are_no_part_of_the_job(servers: ForkServers) -> None:
    import shlex

    assert infrastructure([sys.executable, "-P", "-m", "scenarios.forkserver", "/tmp/socket", "torch"])
    assert infrastructure([*shlex.split(servers.command(sys.executable)), "default_worker.py"])
    assert not infrastructure([sys.executable, "train.py"])


CHILDREN = """
import json, multiprocessing, os, sys
from scenarios.forkserver import children_server, forked_children
sys.path.insert(0, {folder!r})
import work
if __name__ == "__main__":
    with forked_children():
        multiprocessing.set_start_method("spawn", force=True)
    os.environ["LATE"] = "set"
    answers = multiprocessing.Queue()
    for code in (0, 3):
        child = multiprocessing.Process(target=work.tell, args=(answers, code))
        child.start()
        facts = answers.get(timeout=30)
        child.join(30)
        facts |= {{"exit": child.exitcode, "server": children_server(), "me": os.getpid()}}
        print(json.dumps(facts), flush=True)
"""
WORK = """
import os, sys
def tell(answers, code):
    print("said by the child", file=sys.stderr, flush=True)
    parents = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
    answers.put({"late": os.environ["LATE"], "imported": "fractions" in sys.modules, "above": parents,
                 "parent": os.getppid()})
    answers.close(); answers.join_thread()
    os._exit(code)
"""


def test_children_are_forked_below_the_process_with_its_environment_and_output(
    servers: ForkServers, tmp_path: Path
) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "script.py").write_text(CHILDREN.format(folder=str(tmp_path)))
    ended = subprocess.run(
        f"exec {servers.command(sys.executable)} {tmp_path / 'script.py'}", shell=True, capture_output=True, text=True,
        env={**os.environ, "RLHF_HARNESS_FORKED_CHILDREN": "1"}, timeout=120,
    )  # fmt: skip
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [row["exit"] for row in rows] == [0, 3], ended.stderr
    for row in rows:
        assert row["late"] == "set" and row["imported"]
        assert row["parent"] == row["server"] and row["above"] == row["me"]
    assert ended.stderr.count("said by the child") == 2
