"""The HTTP server of the live view: four addresses, and no files except the page's own three.

    GET  /  /page.js  /style.css     the page
    GET  /state?after=VERSION        what is new since that version, as JSON; waits some seconds if nothing is
    POST /control                    a JSON object of settings and commands; answers with all settings

Refused with the reason as JSON: other paths and methods, bodies that are large or not JSON, and requests that a page of
another origin made, also one whose name was pointed at this machine after it was loaded (DNS rebinding).
"""

from __future__ import annotations

import dataclasses
import io
import ipaddress
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs

from sgqn.errors import InvalidValueError, SgqnError
from sgqn.watch.session import Session

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
JSON = "application/json"
HOST = re.compile(r"(\[[\da-f:.]+\]|[\w.-]+)(:\d*)?", re.ASCII | re.IGNORECASE)
LARGEST_BODY = 4096
MOST_CONNECTIONS = 64
DEEPEST = 10
"""Nested lists and objects in a body."""
REQUEST_TIME = 10.0
"""Seconds for a whole request to arrive, however many bytes come in between, or for its answer to be taken."""
LONGEST_WAIT = 10.0
"""Seconds that a request for the state may wait for changes."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingTCPServer):
    """HTTP server of one session at `url`, with one thread per connection and at most `MOST_CONNECTIONS`."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CONNECTIONS  # beyond it, connections come late and out of order

    def __init__(self, session: Session, host: str = "127.0.0.1", port: int = 0):
        if not 0 <= port <= 65535:
            raise InvalidValueError(f"port must lie between 0 and 65535, not {port}")
        self.session, self.host = session, host
        self.files = {path: (_read(name), kind) for path, (name, kind) in FILES.items()}
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            self.address_family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__((str(where[0]), int(where[1])), Handler)
        except (OSError, UnicodeError) as error:
            raise InvalidValueError(_why(host, port, error)) from error
        address, self.port = self.server_address[:2]
        self._address = ipaddress.ip_address(str(address))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self._address.is_loopback

    @property
    def url(self) -> str:
        name = "localhost" if self._address.is_unspecified else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    def serves(self, name: str) -> bool:
        """Whether requests may use this host name. Names can be made to point anywhere, addresses cannot."""
        try:
            return ipaddress.ip_address(name).is_loopback or not self.loopback
        except ValueError:
            own = () if self.loopback else (socket.gethostname().lower(),)
            return name in ("localhost", self.host.lower(), *own)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line; nothing about closed connections."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"error: a request failed: {type(error).__name__}: {error}", file=sys.stderr)


class Refused(Exception):
    """A refused request, with the reason."""

    def __init__(self, status: HTTPStatus, reason: str, **headers: str):
        super().__init__(reason)
        self.status, self.headers = status, headers


class Arriving(io.RawIOBase):
    """What a connection sends, until a deadline: a timeout of the socket alone would begin again with every byte."""

    def __init__(self, connection: socket.socket):
        super().__init__()
        self._connection = connection
        self.deadline = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"
    server_version, sys_version = "sgqn", ""

    def setup(self) -> None:
        super().setup()
        self._arriving = Arriving(self.connection)
        self.rfile = io.BufferedReader(self._arriving)

    def handle_one_request(self) -> None:
        """The base class closes the connection after a TimeoutError."""
        self._arriving.deadline = time.monotonic() + REQUEST_TIME
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, respond: Callable[[str, str], None]) -> None:
        """Respond to the path and the query, or say why not."""
        try:
            self._check_origin()
            path, _, query = self.path.partition("?")
            respond(path, query)
        except Refused as refused:
            self._refuse(refused.status, str(refused), **refused.headers)
        except SgqnError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _get(self, path: str, query: str) -> None:
        if path in self.server.files:
            self._send(HTTPStatus.OK, *self.server.files[path])
        elif path == "/state":
            version, parts = self.server.session.news(_after(query), LONGEST_WAIT)
            if self.server.session.stopped:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the server has ended")
            self._send_json(HTTPStatus.OK, {"version": version, "parts": parts})
        elif path == "/control":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "/control takes POST, not GET", Allow="POST")
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no {path[:100]!r} here")

    def _post(self, path: str, query: str) -> None:
        del query
        if path in self.server.files or path == "/state":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes GET, not POST", Allow="GET")
        if path != "/control":
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no {path[:100]!r} here")
        settings = self.server.session.control(self._body())
        self._send_json(HTTPStatus.OK, {"settings": dataclasses.asdict(settings)})

    def _check_origin(self) -> None:
        """Only this server's own page may send requests, and only with a valid host name."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            raise Refused(HTTPStatus.BAD_REQUEST, f"a request needs one Host, not {len(hosts)}")
        name = HOST.fullmatch(hosts[0])
        if name is None or not self.server.serves(name[1].strip("[]").lower()):
            raise Refused(HTTPStatus.FORBIDDEN, f"this server is not {hosts[0][:100]!r}: open {self.server.url}")
        origin = self.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            raise Refused(HTTPStatus.FORBIDDEN, f"requests from pages of {origin[:100]!r} are not allowed")

    def _body(self) -> dict[str, Any]:
        """The JSON object that was posted."""
        kind = self.headers.get_content_type()
        if kind != JSON:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON}, not {kind[:100]!r}")
        length = self.headers.get("Content-Length", "")
        if not length or "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a body needs its Content-Length")
        if not length.isascii() or not length.isdigit():
            raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Length must be a number, not {length[:100]!r}")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            reason = f"a body has at most {LARGEST_BODY} bytes, not {length[:100]}"
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        body = self.rfile.read(int(length))
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {body[:100]!r}") from None
        if not _shallow(values, DEEPEST):
            raise Refused(HTTPStatus.BAD_REQUEST, f"the body is nested more than {DEEPEST} deep: {body[:100]!r}")
        if not isinstance(values, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, f"the body must be a JSON object, not {body[:100]!r}")
        return values

    def _send_json(self, status: HTTPStatus, value: Any, **headers: str) -> None:
        self._send(status, json.dumps(value, allow_nan=False).encode(), JSON, **headers)

    def _refuse(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        """And close the connection: what may be left of the request is not read."""
        self.close_connection = True
        self._send_json(status, {"error": reason}, Connection="close", **headers)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, **headers: str) -> None:
        self.connection.settimeout(REQUEST_TIME)  # for all of it: sendall does not begin again
        self.send_response(status)
        about = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in (about | HEADERS | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong, before a method is called, in the form of the other refusals."""
        del explain
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"{message}: GET or POST", Allow="GET, POST")
        return self._refuse(status, message or status.phrase)

    def log_message(self, *args: Any) -> None:
        """Nothing: requests come many times a second."""


def _after(query: str) -> int:
    """The last version that a page has received."""
    try:
        fields = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=4)
        (number,) = fields.pop("after", ["0"])
        if fields or not (number.isascii() and number.isdigit()) or len(number) > 16:
            raise ValueError
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, f"/state takes after=VERSION, not {query[:100]!r}") from None
    return int(number)


def _shallow(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested at most this deep."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_shallow(one, levels - 1) for one in inner)


def _read(name: str) -> bytes:
    return resources.files("sgqn.watch").joinpath(name).read_bytes()


def _why(host: str, port: int, error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError | socket.gaierror):
        return f"host {host!r} is not known here: name an address of this machine, such as 127.0.0.1"
    return f"cannot listen at {host}, port {port} ({error.strerror}): choose another --port, or 0 for any free one"
