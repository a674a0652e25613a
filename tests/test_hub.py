"""Agents from the Hugging Face Hub, downloaded by `huggingface_hub` from a server with the hub's interface."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgqn
from sgqn import hub
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.export import card
from sgqn.files import write_folder
from sgqn.pretrained import package
from sgqn.pretrained.package import Package
from tests.helpers import tiny_config, untrained_run

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = (
    "import sys, numpy, sgqn; print(sgqn.load_agent(sys.argv[1]).act(numpy.zeros((9, 24, 24), numpy.uint8)).tolist())"
)


class Handler(http.server.BaseHTTPRequestHandler):
    """One repository, team/agent, with its files at one commit; and an empty one, team/empty."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        for name, files in (("team/agent", sorted(p.name for p in self.folder.iterdir())), ("team/empty", [])):
            if path in (f"/api/models/{name}", *(f"/api/models/{name}/revision/{r}" for r in ("main", COMMIT, "v1"))):
                self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}))
                return
            if path == f"/api/models/{name}/tree/{COMMIT}":
                self._send(json.dumps([self._entry(file) for file in files]))
                return
            for file in files:
                if path == f"/{name}/resolve/{COMMIT}/{file}":
                    self._send((self.folder / file).read_bytes())
                    return
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _entry(self, file: str) -> dict[str, Any]:
        content = (self.folder / file).read_bytes()
        return {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _send(self, content: bytes | str) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    agent = sgqn.load_agent(untrained_run(folder / "run"))
    weights = package.pack(agent.state_dict(), "half", agent.left_out())
    check = {"observations": 1, "shifts": ["train"], "mean": 0.0, "largest": 0.0, "masks": 1.0}
    about = {"precision": "half", "returns": [], "check": check, "machine": {}, "versions": {}, "pictures": "none"}
    packed = Package(tiny_config(), agent.spec, 24, weights, about)
    write_folder(folder / "agent", packed.files(card.write(packed)))
    (folder / "agent" / "notes.txt").write_text("not an agent's file")
    return folder / "agent"


@pytest.fixture
def load(exported: Path, tmp_path: Path) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """Load an agent in a process whose hub is the server."""
    handler = type("OwnHandler", (Handler,), {"folder": exported, "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }

    def call(name: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LOAD, name]
        return subprocess.run(command, check=False, env=environment | more, capture_output=True, text=True)

    call.asked = handler.asked  # type: ignore[attr-defined]
    yield call
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_agent_of_the_hub_acts_like_the_exported_one(exported: Path, load: Any) -> None:
    expected = sgqn.load_agent(exported).act(np.zeros((9, 24, 24), np.uint8)).tolist()
    for name in ("hf:team/agent", "hf:team/agent@v1"):
        done = load(name)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected
    assert not any("notes.txt" in line for line in load.asked)  # nothing else is downloaded
    offline = load("hf:team/agent", HF_HUB_OFFLINE="1")
    assert json.loads(offline.stdout) == expected


def test_what_cannot_be_downloaded_is_one_line(load: Any) -> None:
    missing = load("hf:team/missing")
    assert "DataError: hf:team/missing cannot be downloaded: " in missing.stderr.splitlines()[-1]
    empty = load("hf:team/empty")
    assert "has no agent written by `sgqn export`" in empty.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["hf:", "hf:walker", "hf:/x", "hf:a/b/c", "hf:a b/c"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="is not the name of an agent"):
        sgqn.load_agent(name)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SgqnError, match=r"pip install 'sgqn\[hub\]'"):
        hub.find("hf:team/agent")
