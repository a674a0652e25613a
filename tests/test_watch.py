"""The live view: its HTTP layer without a simulation, its simulation without a browser, and the page in a browser."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import http.client
import io
import itertools
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sgqn import attribution, checkpoint, run_folder, watch
from sgqn.config import TrainConfig
from sgqn.errors import SgqnError
from sgqn.evaluation import evaluate
from sgqn.inspect import Subject, drawing, play
from sgqn.results.runs import find_runs
from sgqn.watch import learning, server, session
from sgqn.watch.learning import follow, thinned
from sgqn.watch.looker import Looker
from sgqn.watch.player import Actor, Player
from sgqn.watch.server import Server
from sgqn.watch.session import Session, Settings
from tests.helpers import TASK, fails, tiny_config, untrained_run

START = Settings("train", "guided_backprop", 0.9, speed=100.0)
STEPS = 20  # in an episode of the run below


# ---------------------------------------------------------------- HTTP


@pytest.fixture
def served() -> Iterator[Server]:
    """A server of a session in which nothing plays."""
    with serving(Session(START, TASK)) as made:
        yield made


@contextlib.contextmanager
def serving(of: Session) -> Iterator[Server]:
    with Server(of) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield made
        finally:
            of.stop()
            made.shutdown()


def ask(to: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer; None as a header leaves it out."""
    connection = http.client.HTTPConnection("127.0.0.1", to.port, timeout=10)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request(method, path, data, {**kind, **{name.replace("_", "-"): v for name, v in headers.items()}})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()


def refused(to: Server, status: int, *request: Any, **headers: str) -> str:
    """The reason for a refusal, which is JSON, and whose connection is closed."""
    got, about, body = ask(to, *request, **headers)
    assert (got, about["Content-Type"], about["Connection"]) == (status, "application/json", "close")
    assert about["X-Content-Type-Options"] == "nosniff"
    reason: str = json.loads(body)["error"]
    assert "\n" not in reason
    return reason


def raw(to: Server, request: bytes) -> bytes:
    """What the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", to.port), timeout=60) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def state(to: Server, after: int = 0) -> dict[str, Any]:
    status, _, body = ask(to, "GET", f"/state?after={after}")
    assert status == 200
    parts: dict[str, Any] = json.loads(body)["parts"]
    return parts


def test_the_page_is_served_with_its_files_and_nothing_inline(served: Server) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/style.css", "text/css")):
        status, about, body = ask(served, "GET", path)
        assert (status, about["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        policy = about["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert about["Cache-Control"] == "no-store"
        text = body.decode()
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)  # nothing from elsewhere
        assert "innerHTML" not in text
    page = ask(served, "GET", "/")[2].decode()
    assert re.findall(r"<script[^>]*>", page) == ['<script src="page.js" defer>']
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


def test_the_colours_of_the_page_are_those_of_the_pictures() -> None:
    style = Path(server.__file__).with_name("style.css").read_text()
    bar = re.search(r"\.bar\.heat \{ background-image: ([^;]*);", style)
    assert bar is not None
    assert re.findall("#[0-9a-f]{6}", bar[1]) == [f"#{color:06x}" for color in drawing.INFERNO]
    assert f"--tint: #{bytes(drawing.TINT.tolist()).hex()}" in style


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/page.html", "/static/", "/.", "/..", "/server.py", "/__init__.py", "/../watch/server.py"),
        *("/%2e%2e/session.py", "/..%2fsession.py", "/style.css/../server.py", "/style.css/", "/%73tyle.css"),
        *(
            "//etc/passwd",
            "/etc/passwd",
            "/../../../../../../etc/passwd",
            "/\\..\\server.py",
            "/state/",
            "/style.css%00",
        ),
        *("etc/passwd", "http://127.0.0.1/page.js", "*"),
    ],
)
def test_no_other_path_is_served(served: Server, path: str) -> None:
    answer = raw(served, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert status_of(answer) == 404
    assert b"import" not in answer
    assert b"root:" not in answer


def test_only_get_and_post(served: Server) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        assert method in refused(served, 405, method, "/")
        assert ask(served, method, "/")[1]["Allow"] == "GET, POST"
    assert ask(served, "HEAD", "/")[0] == 405
    for path in ("/", "/page.js", "/state"):
        assert "GET" in refused(served, 405, "POST", path, {})
    assert "POST" in refused(served, 405, "GET", "/control")
    assert "'/nothing'" in refused(served, 404, "POST", "/nothing", {})


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:80", "[::1]:80"])
def test_own_names(served: Server, host: str) -> None:
    assert ask(served, "GET", "/", Host=host, Origin=f"http://{host}")[0] == 200
    assert ask(served, "POST", "/control", {}, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[", ""),
        *(
            "evil@localhost",
            "localhost/evil",
            "localhost:1:2",
            "localhost evil.example",
            "[localhost]",
            "[evil.example]",
        ),
    ],
)
def test_foreign_hosts(served: Server, host: str) -> None:
    """A page that had its own name pointed at this machine still calls it by that name."""
    for request in (("GET", "/"), ("GET", "/state"), ("POST", "/control", {"paused": True})):
        assert repr(host) in refused(served, 403, *request, Host=host)
    assert served.session.settings == START


def test_one_host(served: Server) -> None:
    assert status_of(raw(served, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")) == 400
    assert status_of(raw(served, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")) == 400


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", "", "file://"]
)
def test_pages_of_other_origins(served: Server, origin: str) -> None:
    assert repr(origin) in refused(served, 403, "POST", "/control", {"paused": True}, Origin=origin)
    assert served.session.settings == START


def test_an_open_server_goes_by_addresses_and_the_name_it_was_given() -> None:
    with Server(Session(START, TASK), "0.0.0.0") as made:
        assert not made.loopback
        assert made.url == f"http://localhost:{made.port}/"
        names = {name: made.serves(name) for name in ("192.168.0.7", "::1", "localhost", "evil.example", "")}
        assert [name for name, good in names.items() if good] == ["192.168.0.7", "::1", "localhost"]
    with Server(Session(START, TASK), "localhost") as made:
        assert made.loopback
        assert made.url == f"http://localhost:{made.port}/"


def test_bodies(served: Server) -> None:
    good = {"paused": True}
    assert "4097" in refused(served, 413, "POST", "/control", b" " * 4097)
    assert ask(served, "POST", "/control", b'{"rho": 0.5}'.ljust(4096))[0] == 200
    assert "'text/plain'" in refused(served, 415, "POST", "/control", good, Content_Type="text/plain")
    form = "application/x-www-form-urlencoded"
    assert repr(form) in refused(served, 415, "POST", "/control", b"paused=true", Content_Type=form)
    for body in (b"", b"{", b"\xff", b'{"rho": 0.5', b"[" * 4000, b"{" * 4000):
        assert "not JSON" in refused(served, 400, "POST", "/control", body)
    for depth in (11, 500, 1900):  # some of it can be parsed, but not be quoted
        nested = b'{"rho": ' + b"[" * depth + b"]" * depth + b"}"
        assert "the body is " in refused(served, 400, "POST", "/control", nested)
        nested = b'{"a":' * min(depth, 650) + b"1" + b"}" * min(depth, 650)
        assert "the body is " in refused(served, 400, "POST", "/control", nested)
    assert "[[1]]" in refused(served, 400, "POST", "/control", b'{"rho": [[1]]}')
    for body in (b"[]", b"3", b"null", b'"shift"'):
        assert repr(body) in refused(served, 400, "POST", "/control", body)
    head = b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert status_of(raw(served, head + b"\r\n{}")) == 411
    assert status_of(raw(served, head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")) == 411
    assert status_of(raw(served, head + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}")) == 411
    for length in (b"-1", b"two", b"0x2", b"1e1", "\u0662".encode()):
        assert status_of(raw(served, head + b"Content-Length: " + length + b"\r\n\r\n{}")) == 400
    for length in (b"4097", b"9" * 5000):
        assert status_of(raw(served, head + b"Content-Length: " + length + b"\r\n\r\n{}")) == 413
    assert served.session.settings == dataclasses.replace(START, rho=0.5)


def test_heads(served: Server) -> None:
    host = b"Host: localhost\r\n"
    assert status_of(raw(served, b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n" + host + b"\r\n")) == 414
    assert status_of(raw(served, b"GET / HTTP/1.1\r\n" + host + b"A: b\r\n" * 200 + b"\r\n")) == 431
    assert status_of(raw(served, b"GET / HTTP/1.1\r\n" + host + b"A: " + b"b" * 70000 + b"\r\n\r\n")) == 431
    assert status_of(raw(served, b"GET / HTTP/9.9\r\n" + host + b"\r\n")) == 505
    assert status_of(raw(served, b"nonsense of four words\r\n\r\n")) == 400


BAD = [
    ({"shift": "video_medium"}, "'video_medium': did you mean"),
    ({"shift": ["train"]}, "['train']"),
    ({"method": "rize"}, "did you mean 'rise'"),
    ({"method": None}, "None"),
    ({"rho": 1}, "not 1"),
    ({"rho": -0.1}, "not -0.1"),
    ({"rho": "0.9"}, "'0.9'"),
    ({"rho": True}, "True"),
    ({"rho": float("nan")}, "nan"),
    ({"seed": -1}, "-1"),
    ({"seed": 1.5}, "1.5"),
    ({"seed": 2**31}, str(2**31)),
    ({"episode": "1"}, "'1'"),
    ({"paused": 1}, "not 1"),
    ({"speed": 0}, "not 0"),
    ({"speed": float("inf")}, "inf"),
    ({"speed": {}}, "{}"),
    ({"restart": False}, "False"),
    ({"step": 3}, "not 3"),
    ({"path": "/etc/passwd"}, "unknown control 'path'"),
    ({"shift": "video_easy", "rho": 7}, "not 7"),
    ({"<script>": 1}, "'<script>'"),
]


@pytest.mark.parametrize(("values", "reason"), BAD)
def test_bad_settings_change_nothing_and_are_quoted(served: Server, values: dict[str, Any], reason: str) -> None:
    assert reason in refused(served, 400, "POST", "/control", values)
    assert served.session.settings == START
    assert served.session.start.restarts == 0


def test_settings_change_and_are_reported(served: Server) -> None:
    values = {"shift": "color_hard", "method": "rise", "rho": 0.25, "seed": 7, "paused": True, "speed": 0.5}
    assert ask(served, "POST", "/control", values)[0] == 200
    assert state(served)["settings"] == {**values, "episode": 0}
    assert ask(served, "POST", "/control", {"episode": 3})[0] == 200
    assert state(served)["settings"] == {**values, "episode": 3}
    assert ask(served, "POST", "/control", {"seed": 8})[0] == 200  # begins with its first episode
    assert state(served)["settings"] == {**values, "seed": 8, "episode": 0}


@pytest.mark.parametrize(
    "query", ["after=-1", "after=one", "after=", "after=1&after=2", "before=1", "after", "a=1&b=2"]
)
def test_bad_questions(served: Server, query: str) -> None:
    assert repr(query) in refused(served, 400, "GET", f"/state?{query}")


def test_only_news_are_sent_and_waited_for(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONGEST_WAIT", 0.3)
    shared = served.session
    shared.publish("note", "one")
    version, parts = shared.news(0, 0)
    assert parts == {"settings": dataclasses.asdict(START), "note": "one"}
    began = time.monotonic()
    assert state(served, version) == {}
    assert time.monotonic() - began >= 0.3
    threading.Timer(0.1, shared.publish, ("note", "two")).start()
    monkeypatch.setattr(server, "LONGEST_WAIT", 30)
    assert state(served, version) == {"note": "two"}
    assert set(state(served, version + 10**6)) == {"settings", "note"}  # a page of an earlier server
    time.sleep(0.01)
    assert Session(START, TASK).news(0, 0)[0] > shared.news(0, 0)[0]  # and one of this server at a later one


def test_too_many_connections_are_turned_away(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(server.MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        assert status_of(raw(served, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 503
    assert wait_for(lambda: ask(served, "GET", "/")[0] == 200)


TRICKLES = {
    "head": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"A"),
    "first line": (b"", b"G"),
    "body": (
        b"POST /control HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n",
        b" ",
    ),
}


@pytest.mark.parametrize("where", TRICKLES)
def test_slow_requests_do_not_keep_others_out(served: Server, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Connections that send a byte now and then are closed when their time is over, however many bytes come."""
    monkeypatch.setattr(server, "REQUEST_TIME", 1.0)
    begin, byte = TRICKLES[where]
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(server.MOST_CONNECTIONS):
            slow.append(stack.enter_context(socket.create_connection(("127.0.0.1", served.port))))
            slow[-1].sendall(begin)
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.1):
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.sendall(byte)

        trickling = threading.Thread(target=trickle)
        trickling.start()
        try:
            began = time.monotonic()
            assert wait_for(lambda: status_of(raw(served, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")) == 200, 20)
            assert time.monotonic() - began < 10
        finally:
            ended.set()
            trickling.join()


def test_one_connection_takes_many_requests(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of a request, not that of the connection."""
    monkeypatch.setattr(server, "REQUEST_TIME", 0.5)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    with contextlib.closing(connection):
        for _ in range(4):
            connection.request("GET", "/style.css")
            answer = connection.getresponse()
            assert (answer.status, len(answer.read()) > 100) == (200, True)
            time.sleep(0.2)


def test_where_it_cannot_listen(served: Server) -> None:
    for host, port, reason in (
        ("127.0.0.1", served.port, f"port {served.port} .*choose another --port"),
        ("127.0.0.1", 70000, "70000"),
        ("no.such.host.invalid", 0, "'no.such.host.invalid'"),
        ("a..b", 0, "'a..b'"),
        ("203.0.113.1", 0, "203.0.113.1"),  # an address for documentation: not this machine's
    ):
        with pytest.raises(SgqnError, match=reason):
            Server(Session(START, TASK), host, port)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


# ---------------------------------------------------------------- the simulation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent has a decoder."""
    return untrained_run(tmp_path_factory.mktemp("sgqn"), tiny_config(steps=24))


@pytest.fixture(scope="module")
def cropping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose agent has none, and crops what it is shown."""
    return untrained_run(tmp_path_factory.mktemp("soda"), tiny_config("soda", steps=24))


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another agent of the task, without a decoder."""
    return untrained_run(tmp_path_factory.mktemp("svea"), tiny_config("svea", steps=24, seed=1))


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "run"))


class Live:
    """Runs at play in threads of their own; `see` asks for news as a page does."""

    def __init__(self, path: Path, settings: Settings = START, other: Path | None = None):
        self.session = Session(settings, TASK)
        self.paths = [path] if other is None else [path, other]
        self.lookers = [Looker(self.session, number) for number in range(len(self.paths))]
        self.version, self.parts = 0, dict[str, Any]()
        self.simulation = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> Live:
        for looker in self.lookers:
            looker.start()
        self.simulation.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.stop()
        for thread in (*self.lookers, self.simulation):
            thread.join(20)
            assert not thread.is_alive()
        assert all(actor.closed for actor in self.player.actors)

    def _play(self) -> None:
        shown = enumerate(zip(self.paths, self.lookers, strict=True))
        subjects = [Subject.load(path) for path in self.paths]
        actors = [Actor(path, subjects[i], self.session, looker, number=i) for i, (path, looker) in shown]
        self.player = Player(self.session, actors)
        self.player.run()

    def see(
        self, condition: Callable[[dict[str, Any]], Any] = lambda parts: True, seconds: float = 60
    ) -> dict[str, Any]:
        """Everything published so far, as soon as it fulfils the condition."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.version, news = self.session.news(self.version, 0.2)
            self.parts |= news
            with contextlib.suppress(KeyError, TypeError):
                if condition(self.parts):
                    return self.parts
        raise AssertionError(f"not seen in {seconds} s: {self.parts.get('note')}, {self.parts.get('settings')}")


def picture(source: str) -> np.ndarray:
    kind, _, data = source.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def test_the_episodes_are_those_of_evaluate_and_explain(folder: Path) -> None:
    subject = Subject.load(folder)
    played = play(subject, "color_easy", seed=5)
    options: dict[str, Any] = {"episodes": 2, "seed": 5, "num_workers": 0, "action_repeat": 50}
    returns = evaluate(subject.agent, "cartpole-swingup", "color_easy", **options).returns
    with Live(folder, dataclasses.replace(START, shift="color_easy", seed=5)) as live:
        first = dict(live.see(lambda parts: parts["frame"]["over"])["frame"])
        assert first["rewards"] == pytest.approx(played.rewards.tolist(), abs=1e-6)
        assert (first["step"], first["steps"], first["return"]) == (STEPS, STEPS, sum(played.rewards.tolist()))
        second = live.see(lambda parts: parts["frame"]["over"] and parts["frame"]["episode"] == 1)["frame"]
    assert [first["return"], second["return"]] == pytest.approx(returns)
    assert returns[0] != returns[1]


def test_what_is_shown_is_what_the_library_computes(folder: Path) -> None:
    subject = Subject.load(folder)
    episode = play(subject, "color_hard", seed=1, count=4)
    agent, obs, action = subject.agent, episode.seen[3:], episode.actions[3:]
    heat = attribution.guided_backprop(agent.value, obs, action)[0, -3:].abs().amax(dim=0)
    with Live(folder, dataclasses.replace(START, shift="color_hard", seed=1, paused=True)) as live:
        for step in range(4):
            live.see(lambda parts, step=step: parts["frame"]["step"] == step)
            time.sleep(0.05)
            assert live.see()["frame"]["step"] == step  # paused: nothing moves by itself
            if step < 3:
                live.session.control({"step": True})
        shown = live.see(lambda parts: parts["look"]["step"] == 3)
        frame, look = shown["frame"], shown["look"]
        newest = obs[0, -3:].permute(1, 2, 0).numpy()
        assert np.array_equal(picture(frame["observation"]), newest)
        assert frame["value"] == pytest.approx(float(agent.value(obs, action).detach()), rel=1e-5)
        guess = agent.predict_mask(obs, action)[0, -3:].mean(dim=0)
        assert np.array_equal(picture(frame["predicted"]), drawing.grey(guess.numpy()))
        body = picture(frame["body"])[..., 0] > 0
        assert 0 < body.mean() < 0.5
        assert frame["body_share"] == pytest.approx(body.mean())

        for rho in (0.9, 0.5, 0.0):  # another rho needs no new step
            live.session.control({"rho": rho})
            look = live.see(lambda parts, rho=rho: parts["look"]["rho"] == rho and parts["look"]["step"] == 3)["look"]
            kept = heat.numpy() >= np.quantile(heat.numpy(), rho)
            assert np.array_equal(picture(look["mask"]), drawing.overlaid(newest, kept))
            assert look["share"] == pytest.approx((kept & body).sum() / kept.sum())
            assert look["chance"] == pytest.approx(body.mean())
            assert look["kept"] == pytest.approx(kept.mean())
        live.session.control({"method": "occlusion"})
        shown = live.see(lambda parts: parts["look"]["method"] == "occlusion")
        dropped = attribution.occlusion(agent.value, obs, action)[0, -3:].abs().amax(dim=0).numpy()
        high = np.percentile(dropped, 99.5)
        assert shown["look"]["scale"] == pytest.approx(high, rel=1e-4)
        near = picture(shown["look"]["attribution"]).astype(int) - drawing.inferno(dropped / high)
        assert np.abs(near).max() <= 2


def test_an_agent_without_a_decoder_that_crops(cropping: Path) -> None:
    with Live(cropping) as live:
        shown = live.see(lambda parts: parts["frame"]["step"] >= 3 and parts["look"]["step"] >= 3)
    assert shown["frame"]["predicted"] is None
    assert {picture(shown["frame"][name]).shape for name in ("observation", "body")} == {(24, 24, 3)}
    assert picture(shown["look"]["mask"]).shape == (24, 24, 3)


def test_two_agents_play_the_same_episodes(folder: Path, another: Path) -> None:
    """Each as it would alone, step by step together."""
    alone = {number: play(Subject.load(path), "video_easy", seed=2) for number, path in ((1, folder), (2, another))}
    assert alone[1].rewards.tolist() != alone[2].rewards.tolist()
    with Live(folder, dataclasses.replace(START, shift="video_easy", seed=2, paused=True), another) as live:
        first = live.see(lambda parts: parts["frame"]["step"] == 0 and parts["frame2"]["step"] == 0)
        assert (first["run"]["agent"], first["run2"]["agent"]) == ("sgqn", "svea")
        assert first["frame"]["observation"] == first["frame2"]["observation"]  # the same start, the same background
        live.session.control({"step": True})
        shown = live.see(lambda parts: parts["frame2"]["step"] == 1 and parts["look2"]["step"] == 1)
        assert shown["frame"]["step"] == 1
        assert shown["frame2"]["predicted"] is None
        agent, (obs, action) = Subject.load(another).agent, (alone[2].seen[1:2], alone[2].actions[1:2])
        heat = attribution.guided_backprop(agent.value, obs, action)[0, -3:].abs().amax(dim=0).numpy()
        newest = obs[0, -3:].permute(1, 2, 0).numpy()
        assert np.array_equal(picture(shown["frame2"]["observation"]), newest)
        kept = heat >= np.quantile(heat, shown["look2"]["rho"])
        assert np.array_equal(picture(shown["look2"]["mask"]), drawing.overlaid(newest, kept))
        live.session.control({"paused": False})
        over = live.see(lambda parts: parts["frame"]["over"] and parts["frame2"]["over"])
        for part, number in (("frame", 1), ("frame2", 2)):
            assert over[part]["rewards"] == pytest.approx(alone[number].rewards.tolist(), abs=1e-6)
        live.see(lambda parts: parts["frame"]["episode"] == parts["frame2"]["episode"] == 1)


def test_the_episode_lasts_as_long_as_the_longer_one(tmp_path: Path) -> None:
    """Where an episode ends depends on the agent."""
    task = "gym:tests.envs.gym_envs:Slide-v0"
    runs = [
        untrained_run(tmp_path / str(seed), tiny_config(task=task, action_repeat=2, seed=seed), action_dim=2)
        for seed in range(2)
    ]
    lengths = [len(play(Subject.load(run), "train", seed=0).rewards) for run in runs]
    with Live(runs[0], START, runs[1]) as live:
        over = live.see(lambda parts: parts["frame"]["over"] and parts["frame2"]["over"])
        assert [over["frame"]["step"], over["frame2"]["step"]] == lengths
        assert over["frame"]["episode"] == over["frame2"]["episode"]


def test_a_task_without_masks(tmp_path: Path) -> None:
    config = tiny_config(task="gym:tests.envs.gym_envs:Slide-v0", action_repeat=2)
    with Live(untrained_run(tmp_path, config, action_dim=2)) as live:
        shown = live.see(lambda parts: parts["frame"]["step"] >= 3 and parts["look"]["step"] >= 3)
    assert shown["frame"]["body"] is shown["frame"]["body_share"] is None
    assert shown["look"]["share"] is shown["look"]["chance"] is None
    assert picture(shown["look"]["mask"]).shape == (24, 24, 3)


def test_restart_and_other_episodes(folder: Path) -> None:
    with Live(folder, dataclasses.replace(START, paused=True)) as live:
        for _ in range(3):
            live.session.control({"step": True})
        live.see(lambda parts: parts["frame"]["step"] == 3)
        live.session.control({"restart": True})
        assert live.see(lambda parts: parts["frame"]["step"] == 0)["settings"]["paused"]
        live.session.control({"step": True, "episode": 2})
        frame = live.see(lambda parts: (parts["frame"]["episode"], parts["frame"]["step"]) == (2, 1))["frame"]
        assert len(frame["rewards"]) == 1
        live.session.control({"shift": "color_hard"})
        frame = live.see(lambda parts: parts["frame"]["shift"] == "color_hard")["frame"]
        assert (frame["episode"], frame["step"]) == (2, 0)


def test_it_rests_while_nobody_watches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PATIENCE", 0.3)
    with Live(folder, dataclasses.replace(START, speed=5.0)) as live:
        live.see(lambda parts: parts["frame"]["step"] >= 1)
        versions = [-1, 0]
        while versions[-1] != versions[-2]:  # it came to rest: at this speed a step takes a tenth of a second
            time.sleep(0.7)
            versions.append(live.session._version)
        assert len(versions) < 6
        before = live.see()["frame"]["step"]
        live.see(lambda parts: parts["frame"]["step"] > before)


def test_the_newest_checkpoint_is_taken_at_the_next_episode(own: Path) -> None:
    loaded = checkpoint.load(checkpoint.find(own))
    with Live(own, dataclasses.replace(START, paused=True)) as live:
        old = live.see(lambda parts: parts["frame"])
        assert old["run"]["step"] == 24
        value = old["frame"]["value"]
        changed = {
            name: weight * 1.1 if weight.is_floating_point() else weight for name, weight in loaded.weights.items()
        }
        checkpoint.save(own, 30, weights=changed, state={}, metadata=loaded.metadata)
        live.session.control({"restart": True})
        new = live.see(lambda parts: parts["run"]["step"] == 30 and parts["frame"]["value"] != value)
        assert new["note"] is None

        broken = checkpoint.save(own, 40, weights=changed, state={}, metadata=loaded.metadata)
        (broken / checkpoint.WEIGHTS).write_bytes(b"half")
        live.session.control({"restart": True})
        assert "still the agent of step 30" in live.see(lambda parts: parts["note"])["note"]
        assert live.see(lambda parts: parts["look"])["run"]["step"] == 30
        shutil.rmtree(broken)
        live.session.control({"restart": True})
        live.see(lambda parts: parts["note"] is None and parts["look"])


def test_what_cannot_be_played_is_said_and_can_be_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Live(folder, dataclasses.replace(START, paused=True)) as live:
        live.see(lambda parts: parts["frame"])

        def fail(*_: Any, **__: Any) -> None:
            raise SgqnError("no such clip")

        with monkeypatch.context() as patched:
            patched.setattr("sgqn.watch.player.environment", fail)
            live.session.control({"shift": "video_easy"})
            live.see(lambda parts: parts["note"] == "no such clip")
        live.session.control({"shift": "color_hard"})
        assert live.see(lambda parts: parts["frame"]["shift"] == "color_hard")["note"] is None


def test_a_slow_method_holds_up_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, ends = [], []

    def slow(q: Any, obs: torch.Tensor, action: torch.Tensor, on_step: Any = None) -> torch.Tensor:
        calls.append(time.monotonic())
        try:
            for done in range(1000):
                time.sleep(0.05)
                on_step(done + 1, 1000)
        finally:
            ends.append(time.monotonic())
        return torch.zeros(obs.shape)

    def failing(q: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of\nmemory")

    for method in (slow, failing):
        name = method.__name__
        monkeypatch.setitem(attribution.METHODS._things, name, attribution.Method(name, method))
    with Live(folder, dataclasses.replace(START, method="slow", speed=20.0)) as live, serving(live.session) as made:
        live.see(lambda parts: parts["progress"] and parts["progress"]["total"] == 1000)
        step = live.parts["frame"]["step"]
        live.see(lambda parts: parts["frame"]["step"] > step + 3)  # it goes on, with the first attribution unfinished
        assert len(calls) == 1
        began = time.monotonic()
        assert ask(made, "POST", "/control", {"rho": 0.5, "paused": True})[0] == 200
        assert ask(made, "GET", "/state")[0] == 200
        assert time.monotonic() - began < 5
        assert not ends
        live.session.control({"method": "gradient"})
        live.see(lambda parts: parts["look"]["method"] == "gradient" and not parts["progress"])
        assert ends[0] - calls[0] < 40  # of 50
        live.session.control({"method": "failing"})
        look = live.see(lambda parts: parts["look"]["method"] == "failing")["look"]
        assert look["error"] == "RuntimeError: out of memory"
        live.session.control({"method": "slow"})
        live.see(lambda parts: parts["progress"])
        began = time.monotonic()
    assert time.monotonic() - began < 10  # the end waits for no attribution either


def test_every_method_works_beside_the_simulation(folder: Path) -> None:
    with Live(folder) as live:
        for method in attribution.METHODS:
            live.session.control({"method": method})
            look = live.see(lambda parts, method=method: parts["look"]["method"] == method)["look"]
            assert "error" not in look
            assert picture(look["attribution"]).std() > 0


def test_only_methods_that_can_run_are_offered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def methods(start: Settings = START) -> list[str]:
        session = Session(start, TASK)
        Actor(folder, Subject.load(folder), session, Looker(session), "warp").close()
        offered: list[str] = session.news(0, 0)[1]["run"]["methods"]
        return offered

    def announced() -> list[str]:
        said: list[str] = []
        with Server(Session(START, TASK)) as made:
            watch._announce(FakePlayer(), made, said.append)  # type: ignore[arg-type]
        return said

    assert methods() == list(attribution.METHODS)
    own = "smoothgrad:samples=4"
    assert methods(dataclasses.replace(START, method=own)) == [*attribution.METHODS, own]
    assert "Captum" not in "".join(announced())
    monkeypatch.setitem(sys.modules, "captum", None)
    assert methods() == [name for name, method in attribution.METHODS.items() if not method.needs_captum]
    missing = "integrated_gradients, occlusion (pip install 'sgqn[explain]')"
    assert missing in announced()[0]
    with serving(Session(START, TASK)) as made:
        assert "needs Captum" in refused(made, 400, "POST", "/control", {"method": "occlusion"})
        assert ask(made, "POST", "/control", {"method": "rise"})[0] == 200
    with pytest.raises(SgqnError, match="needs Captum"):
        watch.watch(folder, method="occlusion", port=0, browser=False)


# ---------------------------------------------------------------- learning curves


def evaluation(step: int, shift: str, *returns: float) -> dict[str, Any]:
    about = {"task": "cartpole-swingup", "seed": 0, "renderer": "gl", "backgrounds": "none"}
    return {**about, "step": step, "shift": shift, "returns": list(returns)}


def test_curves_follow_the_logs(own: Path) -> None:
    shared = Session(START, TASK)
    thread = threading.Thread(target=follow, args=(own, shared, 0.05))
    thread.start()

    def curves(condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [shared.news(0, 0)[1].get("learning", {})]
            return bool(found[0]) and bool(condition(found[0]))

        assert wait_for(look)
        return found[0]

    try:
        assert curves(lambda parts: True) == {"step": 0, "steps": 24, "training": [], "evaluations": {}}
        for step, value in ((10, 1.5), (20, 2.5)):
            run_folder.append_line(own / run_folder.METRICS, {"step": step, "seconds": 1.0, "episode/return": value})
        with open(own / run_folder.METRICS, "a") as file:
            file.write('{"step": 30, "seco')  # being written
        assert curves(lambda parts: parts["step"] == 20)["training"] == [(10, 1.5), (20, 2.5)]
        lines = [(10, "train", 1.0, 3.0), (10, "train", 9.0), (20, "train", 5.0), (20, "video_hard", 4.0)]
        for line in lines:
            run_folder.append_line(own / run_folder.EVALUATIONS, evaluation(*line))
        shown = curves(lambda parts: "video_hard" in parts["evaluations"])["evaluations"]
        assert shown == {"train": [(10, 2.0, 1.0, 2), (20, 5.0, 0.0, 1)], "video_hard": [(20, 4.0, 0.0, 1)]}
    finally:
        shared.stop()
        thread.join(5)
    assert not thread.is_alive()
    assert learning.learning(find_runs(own).runs[0])["evaluations"] == shown


def test_an_agent_without_logs_says_so() -> None:
    shared = Session(START, TASK)
    follow(None, shared)
    assert "without the logs" in shared.news(0, 0)[1]["learning"]["error"]


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 12345])
def test_long_curves_are_thinned(count: int) -> None:
    kept = thinned(range(count))
    assert len(kept) <= 500
    assert len(kept) >= min(count, 250)
    assert kept[-1:] == [count - 1][: len(kept)]
    assert len({b - a for a, b in itertools.pairwise(kept)}) <= 1


# ---------------------------------------------------------------- the command


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(folder)
    assert "no such folder" in fails(capsys, "watch", str(tmp_path / "nothing"))
    assert "no checkpoint" in fails(capsys, "watch", str(tmp_path))
    assert "did you mean 'video_hard'" in fails(capsys, "watch", good, "--shift", "video_hart")
    assert "'rize'" in fails(capsys, "watch", good, "--method", "rize")
    assert "not 1.0" in fails(capsys, "watch", good, "--rho", "1")
    assert "-1" in fails(capsys, "watch", good, "--seed", "-1")
    assert "'glue'" in fails(capsys, "watch", good, "--renderer", "glue", "--port", "0")
    assert "'gpu9'" in fails(capsys, "watch", good, "--device", "gpu9", "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in fails(capsys, "watch", good, "--port", port)
    assert "RUN" in fails(capsys, "watch")
    assert "not 3" in fails(capsys, "watch", good, good, good)
    other = untrained_run(tmp_path / "other", tiny_config(task="walker-walk"), action_dim=6)
    assert "different tasks, cartpole-swingup and walker-walk" in fails(capsys, "watch", good, str(other))
    slower = untrained_run(tmp_path / "slower", tiny_config(action_repeat=100))
    assert "different action repeats" in fails(capsys, "watch", good, str(slower))


class FakePlayer:
    subject = Subject(None, TrainConfig(), 5)  # type: ignore[arg-type]

    @property
    def actors(self) -> list[FakePlayer]:
        return [self]


def test_others_are_warned_of() -> None:
    said: list[str] = []
    with Server(Session(START, TASK), "0.0.0.0") as made:
        watch._announce(FakePlayer(), made, said.append)  # type: ignore[arg-type]
    assert said[0].startswith("warning: everyone who can reach this machine")
    assert f"http://localhost:{made.port}/" in said[1]


def test_ctrl_c_ends_it(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sgqn.cli",
        "watch",
        str(folder),
        "--port",
        "0",
        "--no-browser",
        "--shift",
        "train",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\n$", first)
        assert found, first
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
        connection.request("GET", "/state?after=0")
        assert "settings" in json.loads(connection.getresponse().read())["parts"]
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (second, out) == ("press Ctrl-C to stop\n", "")
    assert errors == "\nstopped\n"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(found[1])), timeout=1):
        pass


# ---------------------------------------------------------------- the page, in a browser


@contextlib.contextmanager
def opened(browser: Any, to: Server, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """The page, and everything that went wrong on it."""
    page = browser.new_page(**options)
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((to.url, "data:")) else wrong.append(request.url))
    try:
        page.goto(to.url)
        yield page, wrong
    finally:
        page.close()


def in_page(page: Any, condition: str) -> None:
    page.wait_for_function(f"() => {condition}", timeout=60000)


def colours_of(png: bytes) -> int:
    return len(np.unique(np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, 3), axis=0))


def test_the_page(browser: Any, own: Path) -> None:
    run_folder.append_line(own / run_folder.EVALUATIONS, evaluation(20, "train", 3.0))
    run_folder.append_line(own / run_folder.EVALUATIONS, evaluation(20, "video_hard", 2.0))
    with (
        Live(own, dataclasses.replace(START, speed=4.0)) as live,
        serving(live.session) as made,
        opened(browser, made, viewport={"width": 1280, "height": 800}) as (page, wrong),
    ):
        follower = threading.Thread(target=follow, args=(own, live.session, 0.1), daemon=True)
        follower.start()
        in_page(page, "Number(document.getElementById('at').firstChild.textContent) >= 2")
        earlier = page.get_attribute("#observation", "src")
        in_page(page, f"document.getElementById('observation').src !== '{earlier}'")
        assert page.inner_text("#title") == "sgqn on cartpole-swingup"
        in_page(page, "document.querySelectorAll('#learning-chart circle').length >= 2")
        assert "video_hard" in page.inner_text("#legend")
        for name in ("observation", "attribution", "mask", "predicted", "body"):
            in_page(page, f"document.getElementById('{name}').naturalWidth === 24")
        assert colours_of(page.screenshot()) > 200

        settings = lambda: live.session.settings  # noqa: E731
        page.select_option("#shift", "color_hard")
        page.select_option("#method", "gradient")
        page.fill("#rho", "0.6")
        assert wait_for(
            lambda: (settings().shift, settings().method, settings().rho) == ("color_hard", "gradient", 0.6)
        )
        in_page(page, "state.frame.shift === 'color_hard' && state.look && state.look.rho === 0.6")
        in_page(page, "document.getElementById('observation-about').textContent.startsWith('color_hard')")
        assert page.inner_text("#attribution-about") == "gradient"
        assert page.inner_text("#rho-shown") == "0.600, keeps 40 %"

        page.click("#pause")
        in_page(page, "document.getElementById('status').textContent === 'paused'")
        assert page.inner_text("#pause") == "Play"
        page.fill("#seed", "7")
        page.press("#seed", "Enter")
        in_page(page, "state.frame.seed === 7 && state.frame.step === 0")
        page.click("#step")
        in_page(page, "state.frame.step === 1")
        page.click("#restart")
        in_page(page, "state.frame.step === 0")
        page.select_option("#speed", "100")
        assert wait_for(lambda: settings().speed == 100)
        page.click("body", position={"x": 2, "y": 2})
        page.keyboard.press("Space")
        in_page(page, "state.frame.step > 2")

        # What another page chooses shows here too, and a text is a text.
        live.session.control({"method": "smoothgrad", "paused": True})
        in_page(page, "document.getElementById('method').value === 'smoothgrad'")
        live.session.publish("note", "<img src=x onerror=alert(1)>")
        in_page(page, "!document.getElementById('note').hidden")
        assert page.inner_text("#note") == "<img src=x onerror=alert(1)>"
        assert page.locator("#note img").count() == 0
        assert wrong == []

        run_folder.append_line(own / run_folder.EVALUATIONS, evaluation(24, "color_easy", 1.0))
        in_page(page, "document.getElementById('legend').textContent.includes('color_easy')")
        page.evaluate("control({rho: 5})")
        in_page(page, "document.getElementById('note').textContent.startsWith('rho must lie')")
        assert page.input_value("#rho") == "0.6"
        live.session.stop()
        follower.join(5)


def test_the_page_on_a_telephone(browser: Any, cropping: Path) -> None:
    with (
        Live(cropping) as live,
        serving(live.session) as made,
        opened(browser, made, viewport={"width": 420, "height": 800}) as (page, wrong),
    ):
        in_page(page, "document.getElementById('mask').naturalWidth === 24")
        assert page.evaluate("document.documentElement.scrollWidth") == 420
        assert page.inner_text("#predicted-none") == "this agent has no decoder"
        assert page.is_visible("#predicted-none")
        assert wrong == []


@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_of_two_agents(browser: Any, folder: Path, another: Path, width: int) -> None:
    with (
        Live(folder, dataclasses.replace(START, paused=True), another) as live,
        serving(live.session) as made,
        opened(browser, made, viewport={"width": width, "height": 800}) as (page, wrong),
    ):
        for number, name in enumerate(("", "2")):
            follow(None, live.session, number=number)
            for image in ("observation", "attribution", "mask", "body"):
                in_page(page, f"document.getElementById('{image}{name}').naturalWidth === 24")
        assert page.inner_text("#title") == "sgqn and svea on cartpole-swingup"
        assert [page.inner_text(f"#name{name}") for name in ("", "2")] == ["sgqn", "svea"]
        assert page.get_attribute("#observation", "src") == page.get_attribute("#observation2", "src")
        page.click("#step")
        in_page(page, "state.frame.step === 1 && state.frame2.step === 1")
        in_page(page, "document.querySelectorAll('#value-chart path').length === 2")
        assert page.is_visible("#predicted-none2")
        assert not page.is_visible("#predicted-none")
        assert page.evaluate("document.documentElement.scrollWidth") == width

        page.select_option("#shown", "second")
        assert [page.is_visible(f"#agent{name}") for name in ("", "2")] == [False, True]
        assert [page.is_visible(f"#learning{name}") for name in ("", "2")] == [False, True]
        in_page(page, "document.querySelectorAll('#value-chart path').length === 1")
        page.select_option("#shown", "first")
        assert [page.is_visible(f"#agent{name}") for name in ("", "2")] == [True, False]
        page.select_option("#shown", "both")
        assert [page.is_visible(f"#agent{name}") for name in ("", "2")] == [True, True]
        assert wrong == []


def test_the_page_tells_when_the_server_has_gone_and_finds_the_next(browser: Any) -> None:
    first = Session(START, TASK)
    with serving(first) as made, opened(browser, made) as (page, _):
        in_page(page, "document.getElementById('status').textContent === 'live'")
        first.stop()
        made.shutdown()
        made.server_close()
        in_page(page, "document.getElementById('status').textContent.startsWith('connection lost')")
        with Server(Session(dataclasses.replace(START, paused=True), TASK), port=made.port) as later:
            threading.Thread(target=later.serve_forever, daemon=True).start()
            in_page(page, "document.getElementById('status').textContent === 'paused'")
            later.session.stop()
            later.shutdown()
