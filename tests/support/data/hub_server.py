"""A server that answers as the Hugging Face hub does, with one data set."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """The hub's API for one data set with one file."""

    protocol_version = "HTTP/1.1"
    name: str
    file: str
    content: bytes
    requests: list[str]

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        self.requests.append(path)
        oid = hashlib.sha1(self.content).hexdigest()
        entry = {"type": "file", "path": self.file, "size": len(self.content), "oid": oid}
        if path.startswith(f"/api/datasets/{self.name}/tree/"):
            folder = {"type": "directory", "path": "data", "oid": "1" * 40}
            return self.send(
                200, json.dumps([entry] if path.endswith("/data") else [entry, folder]).encode()
            )
        if path == f"/api/datasets/{self.name}" or path.startswith(
            f"/api/datasets/{self.name}/revision/"
        ):
            siblings = [{"rfilename": self.file}]
            return self.send(
                200, json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode()
            )
        if path.startswith(f"/datasets/{self.name}/resolve/") and path.endswith(self.file):
            return self.send(200, self.content, {"ETag": f'"{oid}"', "X-Repo-Commit": COMMIT})
        code = "EntryNotFound" if path.startswith(f"/datasets/{self.name}/") else "RepoNotFound"
        return self.send(404, b"{}", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    do_GET = do_HEAD = do_POST = answer

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_hub(name: str, file: str, table: pa.Table) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of the server, and the paths that were asked for. file: the path of the table as Parquet."""
    content, requests = io.BytesIO(), list[str]()
    pq.write_table(table, content)
    about = {"name": name, "file": file, "content": content.getvalue(), "requests": requests}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Hub,), about))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
