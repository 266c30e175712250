"""A hub on loopback that speaks the endpoints of the Hugging Face hub which huggingface_hub uses for models."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest

TOKEN = "hf_" + "a" * 34
REPO = r"/(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES = (
    ("GET", rf"/api/models{REPO}(/revision/(?P<revision>[^/]+))?", "info"),
    ("GET", rf"/api/models{REPO}/tree/(?P<revision>[^/]+)", "tree"),
    ("GET", rf"{REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", "resolve"),
    ("HEAD", rf"{REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", "resolve"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", rf"/api/models{REPO}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"{REPO}\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]+)", "put"),
    ("POST", rf"/api/models{REPO}/commit/(?P<revision>[^/]+)", "commit"),
)


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each commit, the newest last."""
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        oid = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid


class HubServer(ThreadingHTTPServer):
    """`repositories` may be read and changed by a test; `requests` lists what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.answers: dict[str, int] = {}
        """A status by the beginning of a path, in place of the answer."""
        self.cut: str | None = None
        """A file of which only half is sent."""
        self.changed: str | None = None
        """A file of which the last byte is changed."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


def use(server: HubServer, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let huggingface_hub in this process talk to the server, with its cache in a folder and a token."""
    for name, value in {
        "ENDPOINT": server.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_DISABLE_XET": True,
        "HF_TOKEN_PATH": str(folder / "token"),
    }.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("HOPFLOW_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)


class Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *message: object) -> None:
        pass

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.server.tokens.add(self.token)
        for start, status in self.server.answers.items():
            if path.startswith(start):
                return self.fail(status)
        for method, pattern, name in ROUTES:
            found = re.fullmatch(pattern, path)
            if method == self.command and found:
                return getattr(self, name)(**found.groupdict())
        self.fail(404)

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self, content: object = None, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        sent = data
        if headers.pop("cut", None):
            sent = data[: len(data) // 2]
            self.close_connection = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def fail(self, status: int, code: str = "") -> None:
        self.answer({"error": code or str(status)}, status, **({"X_Error_Code": code} if code else {}))

    def repository(self, repo: str) -> Repository | None:
        """The repository, or None after the answer that it does not exist."""
        found = self.server.repositories.get(repo)
        if found is None or (found.private and self.token != TOKEN):
            self.fail(404 if self.token else 401, "RepoNotFound")
            return None
        return found

    def files(self, repo: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        """The commit and the files of a revision; None after an answer that says why there are none."""
        found = self.repository(repo)
        if found is None:
            return None
        oid = found.branches.get(revision or "main", revision or "")
        if oid not in found.commits:
            self.fail(404, "RevisionNotFound")
            return None
        return oid, found.commits[oid]

    def info(self, repo: str, revision: str | None = None) -> None:
        if (found := self.files(repo, revision)) is not None:
            siblings = [
                {"rfilename": name, "size": len(data), "blobId": blob(data), **lfs(name, data, "sha256")}
                for name, data in found[1].items()
            ]
            self.answer({"id": repo, "modelId": repo, "sha": found[0], "siblings": siblings, "tags": []})

    def tree(self, repo: str, revision: str) -> None:
        if (found := self.files(repo, revision)) is not None:
            self.answer(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": blob(data), **lfs(name, data, "oid")}
                    for name, data in found[1].items()
                ]
            )

    def resolve(self, repo: str, revision: str, file: str) -> None:
        if (found := self.files(repo, revision)) is None:
            return
        if self.server.repositories[repo].gated:
            return self.fail(403, "GatedRepo")
        if file not in found[1]:
            return self.fail(404, "EntryNotFound")
        data = found[1][file]
        headers = {"ETag": f'"{etag(file, data)}"', "X_Repo_Commit": found[0], "X_Linked_Size": str(len(data))}
        if self.server.changed == file:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if self.server.cut == file and self.command == "GET":
            headers["cut"] = "yes"
        self.answer(data, **headers)

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if self.token != TOKEN:
            return self.fail(401)
        if name in self.server.repositories:
            return self.answer({"url": f"{self.server.endpoint}/{name}"}, 409)
        self.server.repositories[name] = Repository(private=asked.get("visibility") == "private")
        self.server.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.answer({"url": f"{self.server.endpoint}/{name}", "name": name})

    def validate(self) -> None:
        self.answer({"errors": [], "warnings": []})

    def preupload(self, repo: str, revision: str) -> None:
        if (found := self.files(repo, revision)) is not None:
            asked = [file["path"] for file in json.loads(self.body)["files"]]
            modes = [
                {
                    "path": path,
                    "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": etag(path, found[1][path]) if path in found[1] else None,
                }
                for path in asked
            ]
            self.answer({"files": modes})

    def batch(self, repo: str) -> None:
        objects = [
            {
                "oid": o["oid"],
                "size": o["size"],
                "actions": {"upload": {"href": f"{self.server.endpoint}/lfs/{o['oid']}"}},
            }
            for o in json.loads(self.body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.fail(400)
        self.server.objects[oid] = self.body
        self.answer({})

    def commit(self, repo: str, revision: str) -> None:
        if (found := self.files(repo, revision)) is None:
            return
        files = dict(found[1])
        for line in self.body.decode().splitlines():
            kind, value = (parsed := json.loads(line))["key"], parsed["value"]
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif kind == "deletedFile":
                del files[value["path"]]
        oid = self.server.repositories[repo].commit(files, revision)
        self.answer({"success": True, "commitOid": oid, "commitUrl": f"{self.server.endpoint}/{repo}/commit/{oid}"})


def blob(data: bytes) -> str:
    """The name that git has for a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else blob(data)


def lfs(name: str, data: bytes, key: str) -> dict[str, object]:
    if not name.endswith(".safetensors"):
        return {}
    return {"lfs": {key: hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}
