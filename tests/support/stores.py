"""An S3 server in another process, and a proxy in front of it that makes requests fail."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waiting import PATIENCE

from fmapviz.core import store_connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_MAX_ATTEMPTS": "1",  # faults take effect at once
}
# It ends when its standard input is closed, also when pytest is killed.
_SERVER = """
import os, sys, threading
from moto.server import main
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main(["-H", "127.0.0.1", "-p", "0"])
"""


class Server:
    """Moto's S3 server, in another process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr
        lines = iter(self._process.stderr)
        self.url = next(found[1] for line in lines if (found := re.search(r"Running on (http://[\d.]+:\d+)", line)))
        threading.Thread(
            target=lambda: [None for _ in lines], daemon=True
        ).start()  # the server prints a line for each request

    def reset(self) -> None:
        """Remove everything, and create an empty bucket `photos`."""
        self._ask("POST", "/moto-api/reset")
        self._ask("PUT", "/photos")

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, method: str, path: str) -> None:
        signed = "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        request = urllib.request.Request(self.url + path, method=method, data=b"", headers={"Authorization": signed})
        urllib.request.urlopen(request, timeout=30).close()


class Bucket:
    """Direct access to the bucket, independent of the tested code."""

    def __init__(self, server: Server) -> None:
        import boto3

        self.endpoint = url = server.url
        self.clear = server.reset
        self._client: Any = boto3.client("s3", endpoint_url=url)

    def close(self) -> None:
        self._client.close()

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket="photos", Key=key, Body=data)

    def get(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket="photos", Key=key)["Body"].read()
        return data

    def remove(self, *keys: str) -> None:
        for key in keys:
            self._client.delete_object(Bucket="photos", Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="photos", Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def tree(self, prefix: str) -> dict[str, bytes]:
        """Return the contents of the objects below a folder, by name."""
        return {key.removeprefix(prefix): self.get(key) for key in self.keys(prefix)}

    def save(self, prefix: str, place: Path) -> Path:
        """Save the objects below a folder as local files, those of units under the names of their files."""
        tree = self.tree(prefix)
        names = {}
        for key, data in tree.items():
            if key.endswith("/unit.json"):
                folder = key.removesuffix("unit.json")
                for entry in json.loads(data)["files"]:
                    names[folder + entry.get("object", entry["name"])] = folder + entry["name"]
        for key, data in tree.items():
            if key not in names and key in names.values():
                key += " (left over)"  # noqa: PLW2901
            path = place / names.get(key, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return place

    def unfinished(self) -> list[str]:
        """Return the keys of unfinished multipart uploads."""
        return [each["Key"] for each in self._client.list_multipart_uploads(Bucket="photos").get("Uploads", ())]


@dataclass
class Fault:
    """A fault in `count` matching requests, from the `first` on.

    Attributes:
        do: `status`: the answer has this status; `refuse`: the connection is cut at once; `cut_request`, `cut_answer`: it is
            cut after some bytes; `lose_answer`: it is cut when the server has done its work; `hang`: there is no answer.
        reached: Set by the first such request.
        last: The method of the last such request.
    """

    do: str
    method: str = ""
    path: str = ""
    first: int = 1
    count: float = inf
    status: int = 500
    code: str = "InternalError"
    after: int = 0
    seen: int = field(default=0, init=False)
    last: str = field(default="", init=False)
    reached: threading.Event = field(default_factory=threading.Event, init=False)

    def takes(self, method: str, path: str) -> bool:
        if not re.fullmatch(self.method or ".*", method) or not re.search(self.path, path):
            return False
        self.seen += 1
        if not self.first <= self.seen < self.first + self.count:
            return False
        self.last = "DELETE" if path.endswith("?delete") else method
        self.reached.set()
        return True


class Proxy:
    """Forwards requests, and makes some fail."""

    def __init__(self, upstream: str) -> None:
        self.requests: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _ProxyServer(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._server.upstream = urlsplit(upstream).netloc
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def fail(self, do: str, **options: Any) -> Fault:
        # Any: see `Fault`.
        with self._lock:
            self._faults.append(Fault(do, **options))
            return self._faults[-1]

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def count(self, method: str, path: str = "") -> int:
        with self._lock:
            return sum(bool(re.fullmatch(method, known) and re.search(path, asked)) for known, asked in self.requests)

    def choose(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            return next((fault for fault in self._faults if fault.takes(method, path)), None)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: Proxy
    upstream: str

    def handle_error(self, *_: object) -> None:
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65_536
    server: _ProxyServer

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, ValueError):  # the client has closed the connection, or was cut off
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _serve(self) -> None:
        fault = self.server.proxy.choose(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault and fault.do in {"refuse", "cut_request"}:
            self.rfile.read(min(fault.after, length))
            return self._cut()
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed
            return self._cut()
        if fault and fault.do == "hang":
            self.rfile.read(1)  # returns when the client closes the connection
            return self._cut()
        if fault and fault.do == "status":
            return self._refuse(fault)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {"expect", "connection"}}
        with closing(http.client.HTTPConnection(self.server.upstream, timeout=PATIENCE)) as above:
            above.request(self.command, self.path, body, headers)
            answer = above.getresponse()
            data = answer.read()
        if fault and fault.do == "lose_answer":
            return self._cut()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        if answer.status not in {204, 304}:
            self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        self.wfile.write(data[: fault.after] if fault else data)
        self.wfile.flush()
        return self._cut() if fault else None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  so the library calls them

    def _refuse(self, fault: Fault) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>as the test wants</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        self.wfile.flush()

    def _cut(self) -> None:
        """Reset the connection, as a crashing server does."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()


def forget() -> None:
    """Drop all connections: the environment may name another server now."""
    store_connection.connect.cache_clear()


@contextmanager
def proxy_to(upstream: str) -> Iterator[Proxy]:
    """Start a proxy, and stop it at the end."""
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        forget()
        proxy.stop()
