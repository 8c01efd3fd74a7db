"""Evidence served to other hosts: who has no token gets nothing, and an answer is trusted no more than any zip."""

from __future__ import annotations

import http.client
import io
import shlex
import socket
import stat
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import cli
from harness.errors import BadInput, HarnessError
from harness.triage import archive, directory, run
from harness.triage.evidence import Evidence, Process
from harness.triage.remote import gather, serve, token
from harness.triage.watch import Serving, watch
from harness.triage.watch.retention import Retention
from reports.model import Verdict

TOKEN, OTHER = b"a token of the job's nodes", b"a token of another job"
EVIDENCE = Evidence("", "live", "2026-01-01T00:00:00+00:00", 0.0, processes=(Process("hostb", 7, rank=1),))


def taken(folder: Path) -> Path:
    directory.write(EVIDENCE, folder)
    return folder


@contextmanager
def serving(take: Callable[[Path], Path] = taken, end: Callable[[], bool] | None = None) -> Iterator[str]:
    server = serve.Server("0", TOKEN)
    server.start(take, end)
    try:
        yield server.url
    finally:
        server.close()


def why_not(out: Path, url: str, secret: bytes = TOKEN) -> str:
    """Why a watch gave nothing; nothing of it is left."""
    with pytest.raises(BadInput) as refused:
        gather.gather([url], secret, out, answer_s=5)
    assert not list(out.rglob("*")), "nothing is kept"
    return refused.value.message


def ask(url: str, authorization: Callable[[str], str]) -> list[int]:
    """The codes of two requests on one connection, the second with what is made of the challenge."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", token.PATH)
    first = connection.getresponse()
    first.read()
    challenge = first.headers["WWW-Authenticate"].split()[1]
    connection.request("GET", token.PATH, headers={"Authorization": authorization(challenge)})
    second = connection.getresponse()
    second.read()
    connection.close()
    return [first.status, second.status]


def proven(challenge: str, secret: bytes = TOKEN) -> str:
    mine = token.nonce()
    return f"{token.SCHEME} {mine} {token.request_proof(secret, challenge, mine)}"


@pytest.mark.slow
def test_evidence_arrives_and_is_read(tmp_path: Path) -> None:
    with serving() as url:
        gathered = gather.gather([url, "http://127.0.0.1:1"], TOKEN, tmp_path / "out")
    [folder] = gathered.folders
    assert directory.read(folder).processes == EVIDENCE.processes
    assert list(gathered.silent) == ["http://127.0.0.1:1"] and "refused" in gathered.silent["http://127.0.0.1:1"].why
    assert gathered.silent["http://127.0.0.1:1"].up, "its host has refused"
    with pytest.raises(BadInput, match="another look needs another directory"):
        gather.gather([url], TOKEN, tmp_path / "out")


@pytest.mark.slow
def test_watches_of_many_hosts_look_at_one_time(tmp_path: Path) -> None:
    """None has looked before all have been asked: the evidence is of one moment."""
    hosts = 40
    asked = threading.Barrier(hosts, timeout=60)

    def none(folder: Path) -> Path:
        asked.wait()
        raise HarnessError("nobody lives")

    def last(folder: Path) -> Path:
        asked.wait()
        return taken(folder)

    with ExitStack() as served:
        urls = [served.enter_context(serving(take)) for take in (last, *[none] * (hosts - 1))]
        gathered = gather.gather(urls, TOKEN, tmp_path / "out")
    assert len(gathered.folders) == 1 and {one.why for one in gathered.silent.values()} == {
        "its watch has no evidence to give"
    }


def test_another_token_gives_nothing(tmp_path: Path) -> None:
    with serving() as url:
        assert "it has another token" in why_not(tmp_path / "out", url, OTHER)
        assert ask(url, lambda challenge: proven(challenge, OTHER)) == [401, 401]
        assert ask(url, proven) == [401, 200], "the control"


def test_the_option_for_another_token_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").write_bytes(OTHER)
    with serving() as url:
        assert cli.main(["triage", url, "--token-file", "other"]) == 2
    assert f"harness triage {url} --token-file FILE   # " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "typed", "fix"),
    [
        (["tokens"], "tokn", "--token-file ./tokens"), (["token"], "mine", "--token-file ./token"),
        (["README"], "mine", "--token-file FILE"), (["token"], "", "--token-file ./token"),
        ([], "", "--token-file FILE"), (["broken.py"], "", "--token-file FILE"),
    ],
)  # fmt: skip
def test_a_token_file_that_may_be_meant_is_named(
    files: list[str], typed: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(token.VARIABLE, raising=False)
    for name in files:
        Path(name).write_bytes(TOKEN)
    with pytest.raises(BadInput) as refused:
        token.read(typed)
    assert str(refused.value.fix).partition("   #")[0] == fix


def test_no_proof_is_good_twice() -> None:
    with serving() as url:
        used: list[str] = []
        assert ask(url, lambda challenge: used.append(proven(challenge)) or used[0]) == [401, 200]
        assert ask(url, lambda challenge: used[0]) == [401, 401]


def test_a_watch_that_ends_hangs_is_told_of_one_by_whoever_holds_the_token() -> None:
    told: list[bool] = []
    with serving(end=lambda: told.append(True) or True) as url:
        assert "it has another token" in gather.end([url], OTHER)[url] and not told
        assert gather.end([url, "http://127.0.0.1:1"], TOKEN).keys() == {"http://127.0.0.1:1"} and len(told) == 1
    with serving() as url:
        assert "--on-stall end" in gather.end([url], TOKEN)[url]
    with serving(end=lambda: False) as url:
        assert gather.end([url], TOKEN)[url] == "its command has ended"


def test_a_watch_whose_command_has_ended_is_told_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer while it serves what its command has left."""
    server = serve.Server("0", TOKEN)
    said: list[dict[str, str]] = []

    class Served(Serving):
        def stay(self, tell: Callable[[str], None], passed: object) -> None:
            said.append(gather.end([server.url], TOKEN))

    monkeypatch.setattr(Retention, "__bool__", lambda _: True)  # it had something to report
    watch(["false"], stall_s=60, out=tmp_path, on_stall="end", serving=Served(server, 1))
    assert said == [{server.url: "its command has ended"}]


def test_a_proof_for_evidence_ends_nothing() -> None:
    told: list[bool] = []
    with serving(end=lambda: told.append(True) or True) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        for path, code in ((token.PATH, 401), (token.END, 200)):
            connection.request("POST", token.END)
            first = connection.getresponse()
            first.read()
            theirs, mine = first.headers["WWW-Authenticate"].split()[1], token.nonce()
            proof = token.request_proof(TOKEN, theirs, mine, path)
            connection.request("POST", token.END, headers={"Authorization": f"{token.SCHEME} {mine} {proof}"})
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, len(told)) == (code, int(code == 200))
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["HUNG", "INSUFFICIENT"])
def test_triage_tells_watches_of_a_hang_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    told: list[bool] = []
    monkeypatch.setenv(token.VARIABLE, TOKEN.decode())
    monkeypatch.setattr(run, "triage", lambda *_, **__: Verdict("triage", verdict, 1, "because"))
    with serving(end=lambda: told.append(True) or True) as url:
        code = cli.main(["triage", str(tmp_path), "--end", url, "--end", "http://127.0.0.1:1"])
    assert (code, len(told)) == (1, int(verdict == "HUNG"))
    assert ("http://127.0.0.1:1" in capsys.readouterr().err) == bool(told)
    assert cli.main(["triage", str(tmp_path), "--end", "hostb"]) == 2
    assert "hostb" in capsys.readouterr().err


@pytest.mark.slow
def test_whoever_holds_no_token_cannot_guess_it() -> None:
    tried = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
    with serving() as url:

        @given(st.one_of(tried, tried.map(lambda text: f"{token.SCHEME} {'0' * 64} {text}")))
        def refused(authorization: str) -> None:
            assert ask(url, lambda challenge: authorization) == [401, 401]

        refused()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/evidence/", "/evidence/../token", "//etc/passwd", "/evidence?x=1"])
def test_nothing_else_is_served(path: str) -> None:
    with serving() as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status == 404
        connection.close()


@contextmanager
def impostor(heard: bytearray) -> Iterator[str]:
    """Answers in the place of a watch, with 200 to whatever proof, and keeps what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(10)
                heard.extend(connection.recv(65536))
                challenge = f"WWW-Authenticate: {token.SCHEME} {token.nonce()}"
                connection.sendall(f"HTTP/1.1 401 No\r\n{challenge}\r\nContent-Length: 0\r\n\r\n".encode())
                heard.extend(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nzip")

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("asks", ["for evidence", "to end"])
def test_the_token_is_never_sent(tmp_path: Path, asks: str) -> None:
    """Neither to a watch, nor to whoever answers in its place, and is not believed."""
    heard = bytearray()
    with impostor(heard) as url:
        said = why_not(tmp_path / "out", url) if asks == "for evidence" else gather.end([url], TOKEN)[url]
    assert "somebody without the token" in said
    assert b"Authorization" in heard and TOKEN not in heard


def test_who_accepts_and_is_silent_is_given_up_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(BadInput, match=r"no answer within 0\.2 s"):
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        gather.gather([url], TOKEN, tmp_path, answer_s=0.2)


def test_a_watch_without_evidence_says_so(tmp_path: Path) -> None:
    def none(folder: Path) -> Path:
        raise HarnessError("nobody lives")

    with serving(none) as url:
        assert "no evidence to give" in why_not(tmp_path / "out", url)


@pytest.mark.slow
def test_half_sent_requests_without_a_token_lock_nobody_out(tmp_path: Path) -> None:
    with serving() as url, ExitStack() as stack:
        where = urlsplit(url).hostname, urlsplit(url).port
        for _ in range(23):
            waiting = stack.enter_context(socket.create_connection(where, timeout=10))
            waiting.sendall(b"GET /evidence HTTP/1.1\r\n")
        assert gather.gather([url], TOKEN, tmp_path / "out").folders  # answered beside them


def test_a_connection_without_a_proof_makes_room_for_a_new_one() -> None:
    with serving() as url, ExitStack() as stack:
        where = urlsplit(url).hostname, urlsplit(url).port
        first, *_ = [stack.enter_context(socket.create_connection(where, timeout=10)) for _ in range(serve.PER_PEER)]
        first.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 404")
        late = stack.enter_context(socket.create_connection(where, timeout=10))
        late.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert late.recv(100).startswith(b"HTTP/1.1 404")
        assert first.recv(100) == b""


def test_connections_with_a_proof_are_never_ended_for_others() -> None:
    pairs = [socket.socketpair() for _ in range(serve.MOST + 2)]
    connections = serve._Connections()
    try:
        for number, (request, _) in enumerate(pairs[: serve.MOST]):
            assert connections.admit(request, f"10.0.0.{number}")
            connections.prove(request)
        assert not connections.admit(pairs[-2][0], "10.0.1.1")
        connections.leave(pairs[0][0])
        assert connections.admit(pairs[-2][0], "10.0.1.1")
        assert connections.admit(pairs[-1][0], "10.0.1.2") and pairs[-2][1].recv(1) == b""
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def zipped(members: dict[str, bytes], link: str = "") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archived:
        for name, data in members.items():
            archived.writestr(name, data)
        if link:
            member = zipfile.ZipInfo(link)
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
            archived.writestr(member, "/etc/passwd")
    return made.getvalue()


INDEX = {archive.INDEX: b"{}"}
HOSTILE: dict[str, Callable[[], bytes]] = {
    "no zip": lambda: b"PK nothing of the kind",
    "a path above": lambda: zipped(INDEX | {"../escaped": b"x"}),
    "an absolute path": lambda: zipped(INDEX | {"/tmp/escaped": b"x"}),
    "a link": lambda: zipped(INDEX, link="processes"),
    "no evidence": lambda: zipped({"beats/1.json": b"{}", "run.json": b"{}"}),
    "too many files": lambda: zipped(INDEX | {f"recorder/{number}": b"" for number in range(archive.MAX_FILES)}),
}


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("sent", HOSTILE)
def test_a_hostile_archive_of_one_who_has_the_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    with sending(monkeypatch, HOSTILE[sent]) as url:
        assert "what it sent is" in why_not(tmp_path / "out", url)
    assert not list(tmp_path.rglob("escaped"))


def test_an_answer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_ZIP", 100)
    with serving() as url:
        assert "is larger than" in why_not(tmp_path / "out", url)


@contextmanager
def sending(monkeypatch: pytest.MonkeyPatch, body: Callable[[], bytes]) -> Iterator[str]:
    """A watch that sends these bytes in the place of its evidence."""

    def pack(folder: Path, target: Path) -> Path:
        target.write_bytes(body())
        return target

    monkeypatch.setattr(archive, "pack", pack)
    with serving() as url:
        yield url


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_archive_costs_its_own_evidence_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of two watches one sends anything: its evidence is read or refused, the other's is there."""
    whole = zipped(INDEX | {"processes/h-1.json": b'{"host": "h", "pid": 1}'})
    at = data.draw(st.integers(0, len(whole) - 1))
    spoilt = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :]
    root = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        bodies = {"spoilt": spoilt, "whole": whole}
        patch.setattr(archive, "pack", lambda folder, target: target.write_bytes(bodies[folder.name]) and target)
        with serving(lambda _: Path("spoilt")) as bad, serving(lambda _: Path("whole")) as good:
            gathered = gather.gather([bad, good], TOKEN, root / "out")
    assert set(gathered.silent) <= {bad} and len(gathered.folders) + len(gathered.silent) == 2
    assert [one.name for one in root.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "url",
    ["http://host", "https://host:1", "http://host:1/x", "http://host:port", "http://u:p@host:1", "http://host:99999"],
)
def test_what_is_no_address_of_a_watch_is_one_sentence(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput, match="is not an address of a watch"):
        gather.gather([url], TOKEN, tmp_path)


def test_a_watch_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="given twice"):
        gather.gather(["http://host:1", "http://HOST:1/"], TOKEN, tmp_path)


@pytest.mark.parametrize("address", ["", "x", "host:", ":x", "70000", "http://host:7", "1.2.3.4:5"])
def test_an_address_that_cannot_be_served_is_one_sentence(address: str) -> None:
    with pytest.raises(BadInput, match=r"--serve|cannot be served"):
        serve.Server(address, TOKEN)


def test_a_port_that_is_taken_is_told() -> None:
    with serving() as url, pytest.raises(BadInput, match=r"cannot be served at .* in use"):
        serve.Server(str(urlsplit(url).port), TOKEN)


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    assert serve.place("7700") == ("127.0.0.1", 7700) and serve.place(":7700") == ("127.0.0.1", 7700)
    assert serve.place("[::]:7700") == ("::", 7700)


@pytest.mark.parametrize("options", [[], ["--token-file", "mine"], ["--token-file", "short"]])
def test_the_fix_for_a_token_makes_one_and_repeats_the_command_with_it(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(token.VARIABLE, raising=False)
    Path("short").write_text("abc")
    Path("token").touch()
    assert cli.main(["watch", "--serve", "127.0.0.1:0", *options, "--", "true"]) == 2
    fix = capsys.readouterr().err.partition("  fix: ")[2]
    makes, _, repeats = fix.partition(" && ")
    subprocess.run(["sh", "-c", makes], check=True)
    command, *words = shlex.split(repeats, comments=True)
    assert command == "harness" and words[:1] == ["watch"] and words[-2:] == ["--", "true"]
    assert token.read(words[words.index("--token-file") + 1])


def test_a_token_is_asked_for_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(token.VARIABLE, raising=False)
    with pytest.raises(BadInput, match="there is none"):
        token.read("")
    with pytest.raises(BadInput, match="cannot be read"):
        token.read(str(tmp_path / "absent"))
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(BadInput, match="has 3 characters"):
        token.read(str(tmp_path / "short"))
    (tmp_path / "token").write_bytes(TOKEN + b"\n")
    monkeypatch.setenv(token.VARIABLE, TOKEN.decode())
    assert token.read(str(tmp_path / "token")) == token.read("") == TOKEN
