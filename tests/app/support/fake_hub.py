"""A hub on this machine that the real hub library takes for the real one: listing, search, gated and private models,
large files behind a redirect with ranges and hashes, slow, broken and lying connections.

Run by itself (`python fake_hub.py PORT_FILE`) it serves the models that `example_models` makes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin")
BLOCK = 16 * 1024


@dataclass
class FakeHub:
    """Repositories by name, each file by name.

    `deny` maps a repository to the answer (status, error code) everything of it gets. A repository in `gated` lists
    itself to all, and hands its files to the tokens in its set; `tokens` are those the hub knows, with their users.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)  # more of what the hub says of a repository
    deny: dict[str, tuple[int, str]] = field(default_factory=dict)
    gated: dict[str, set[str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)  # requests that took the token to another host
    ranges: list[str] = field(default_factory=list)
    cut_after: int | None = None  # bytes after which the next download breaks off
    cut_each_after: int | None = None  # the same for every download
    bytes_per_s: float | None = None  # None: as fast as it goes
    slow_after: int = 0  # bytes of an answer that come as fast as it goes all the same
    has_ranges: bool = True
    says_hashes: bool = True  # in its list of files
    lies: set[str] = field(default_factory=set)  # files whose content is not what their hash says
    failures: list[int] = field(default_factory=list)  # statuses of the next downloads, used up one by one
    stalled: threading.Event = field(default_factory=threading.Event)  # set: downloads send nothing

    @property
    def elsewhere(self) -> str:
        """The same server under another name: large files come from another host, which must not see the token."""
        return self.url.replace("127.0.0.1", "localhost")

    def sent(self, name: str) -> int:
        """How often a file's bytes were asked for."""
        return sum(request.startswith("GET /cdn/") and request.endswith(f"/{name}") for request in self.requests)


def etag(name: str, data: bytes) -> str:
    """A file's name by its content: SHA-256 for large files, git's own for the others."""
    if name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serves it on a free loopback port; `hub.url` says where."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.stalled.clear()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        hub.requests.append(f"{self.command} {self.path}" if path != "/api/models" else f"{self.command} {path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and not (self.headers.get("Host") or "").startswith("127.0.0.1"):
            hub.leaks.append(self.path)
        if path == "/":
            return self._send(200, b"hub")
        if path.startswith("/cdn/"):
            repo_id, _, name = path.removeprefix("/cdn/").rpartition("/")
            return self._send_file(name, hub.repositories[repo_id][name])
        if token and token not in hub.tokens:
            message = "Invalid credentials in Authorization header"
            return self._send(401, b"{}", {"X-Error-Message": message})
        if path == "/api/whoami-v2":
            if not token:
                return self._send(401, b"{}")
            return self._json({"name": hub.tokens[token], "type": "user", "auth": {"accessToken": {"role": "read"}}})
        if path == "/api/models":
            return self._json(self._search(query))
        if path.startswith("/api/models/"):
            repo_id, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        else:
            repo_id, _, revision = path.removeprefix("/").partition("/resolve/")
        if repo_id in hub.deny:
            status, code = hub.deny[repo_id]
            return self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
        files = hub.repositories.get(repo_id)
        if files is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision, _, name = revision.partition("/")
        if revision not in {"main", COMMIT}:
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if not name:
            return self._json(self._info(repo_id, files))
        if repo_id in hub.gated and token not in hub.gated[repo_id]:
            return self._send(403 if token else 401, b"{}", {"X-Error-Code": "GatedRepo"})
        if name not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._resolve(repo_id, name, files[name])

    def _resolve(self, repo_id: str, name: str, data: bytes) -> None:
        tag = etag(name, data)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}
        if not name.endswith(LARGE):
            return self._send(200, data, headers)
        headers |= {"X-Linked-ETag": f'"{tag}"', "X-Linked-Size": str(len(data))}
        return self._send(302, b"", {**headers, "Location": f"{self.hub.elsewhere}/cdn/{repo_id}/{name}"})

    def _info(self, repo_id: str, files: dict[str, bytes]) -> dict[str, Any]:
        siblings = []
        for name, data in files.items():
            item: dict[str, Any] = {"rfilename": name, "size": len(data)}
            if self.hub.says_hashes:
                item["blobId"] = etag("", data)
                if name.endswith(LARGE):
                    item["lfs"] = {"sha256": etag(name, data), "size": len(data), "pointerSize": 135}
            siblings.append(item)
        gated = "manual" if repo_id in self.hub.gated else False
        about = {"downloads": 0, "likes": 0, "tags": [], "gated": gated, **self.hub.about.get(repo_id, {})}
        return {"id": repo_id, "modelId": repo_id, "sha": COMMIT, "siblings": siblings, **about}

    def _search(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        wanted, kinds = query.get("search", [""])[0].lower(), query.get("filter", [])
        found = [self._info(name, files) for name, files in self.hub.repositories.items() if wanted in name.lower()]
        found = [info for info in found if all(kind in info["tags"] for kind in kinds)]
        found.sort(key=lambda info: -info["downloads"])
        return [{k: v for k, v in info.items() if k != "siblings"} for info in found[: int(query["limit"][0])]]

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, data: bytes) -> None:
        hub, start = self.hub, 0
        if hub.failures:
            return self._send(hub.failures.pop(0), b"")
        if name in hub.lies:
            data = bytes(byte ^ 1 for byte in data)
        wanted = self.headers.get("Range")
        status, headers, whole = 200, {"Accept-Ranges": "bytes"}, len(data)
        if wanted and hub.has_ranges:
            hub.ranges.append(wanted)
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            data = data[start : int(last) + 1 if last else None]
            status, headers["Content-Range"] = 206, f"bytes {start}-{start + len(data) - 1}/{whole}"
        return self._send(status, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "GET" or not body:
            return
        hub, cut = self.hub, len(body)
        if len(body) > 1000 and self.path.startswith("/cdn/"):
            cut = min(cut, hub.cut_each_after or cut, hub.cut_after or cut)
            hub.cut_after = None
        for start in range(0, cut, BLOCK):
            while hub.stalled.is_set() and self.path.startswith("/cdn/"):
                time.sleep(0.01)
            block = body[start : min(start + BLOCK, cut)]
            try:
                self.wfile.write(block)
            except OSError:  # the other side has gone
                self.close_connection = True
                return
            if hub.bytes_per_s is not None and start >= hub.slow_after:
                time.sleep(len(block) / hub.bytes_per_s)
        if cut < len(body):
            self.close_connection = True


def example_models(gguf: bytes, config: dict[str, Any]) -> FakeHub:
    """A few models as they stand on the hub: GGUF in two sizes, safetensors, one with terms, one of pickles alone."""
    hub = FakeHub(tokens={"hf_reader": "ada", "hf_stranger": "bob"}, gated={"meadow/terms-1b": {"hf_reader"}})
    text = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}
    hub.repositories = {
        "meadow/small-instruct-GGUF": {"small-Q4_K_M.gguf": gguf, "small-Q8_0.gguf": gguf + bytes(len(gguf) // 2)},
        "meadow/small-instruct": {**text, "model.safetensors": bytes(3_000_000), "README.md": b"# small"},
        "meadow/terms-1b": {**text, "model.safetensors": bytes(2_000_000)},
        "meadow/old-pickle": {"config.json": b"{}", "pytorch_model.bin": bytes(5000)},
    }
    numbers = {"safetensors": {"parameters": {"BF16": 134_515_008}, "total": 134_515_008}}
    licence = {"cardData": {"license": "apache-2.0"}, "pipeline_tag": "text-generation"}
    hub.about = {
        "meadow/small-instruct-GGUF": {
            "downloads": 91_000,
            "likes": 310,
            "tags": ["gguf"],
            "gguf": {"total": 134_515_008, "architecture": "llama", "context_length": 8192},
            **licence,
        },
        "meadow/small-instruct": {"downloads": 52_000, "likes": 120, "tags": ["safetensors"], **numbers, **licence},
        "meadow/terms-1b": {"downloads": 800, "likes": 9, "tags": ["safetensors"], **numbers, **licence},
        "meadow/old-pickle": {"downloads": 12, "likes": 0, "tags": ["pytorch"], "pipeline_tag": "text-generation"},
    }
    return hub


if __name__ == "__main__":
    _starter = Path(sys.argv[2]).read_bytes()
    _hub = example_models(_starter, json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))
    with serving(_hub):
        Path(sys.argv[1]).write_text(_hub.url, encoding="utf-8")
        threading.Event().wait()
