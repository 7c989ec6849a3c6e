"""A local hub: the part of the real one's API that the client of huggingface_hub uses."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_test_token"
LARGE = (".safetensors", ".sqlite")  # stored with LFS, as in the real hub's .gitattributes


class Repo:
    """Branches and commits of files."""

    def __init__(self, private):
        self.private = private
        self.commits = {}  # id → {path: content}
        self.branches = {}
        self.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"})

    def commit(self, branch, files):
        content = json.dumps([branch, len(self.commits), sorted((path, len(data)) for path, data in files.items())])
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def find(self, revision):
        name = self.branches.get(revision, revision)
        return (name, self.commits[name]) if name in self.commits else (None, None)


class Hub(ThreadingHTTPServer):
    """All repositories, uploaded objects and received requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.cdn = f"http://localhost:{self.server_port}/cdn"  # another host, where the client sends no token
        self.repos, self.objects, self.requests = {}, {}, []

    def add(self, name, files, private=False):
        """Create a repository with these files."""
        repo = self.repos[name] = Repo(private)
        return repo.commit("main", files)

    def files(self, name, revision="main"):
        """Return the files of a repository."""
        return self.repos[name].find(revision)[1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Keep quiet."""

    def handle_one(self):
        body = self.body()
        address = urlsplit(self.path)
        self.server.requests.append((self.command, address.path))
        self.query, parts = parse_qs(address.query), [unquote(part) for part in address.path.strip("/").split("/")]
        match parts:
            case ["api", "repos", "create"]:
                self.create(json.loads(body))
            case ["api", "validate-yaml"]:
                self.check_readme(json.loads(body))
            case ["api", "models", user, name, *rest]:
                self.model(f"{user}/{name}", rest, body)
            case [user, name, "info", "lfs", "objects", "batch"]:
                self.batch(f"{user}/{name.removesuffix('.git')}", json.loads(body))
            case ["lfs", oid]:
                if hashlib.sha256(body).hexdigest() != oid:
                    return self.answer(None)
                self.server.objects[oid] = body
                self.answer({})
            case ["verify"]:
                asked = json.loads(body)
                self.answer({} if len(self.server.objects[asked["oid"]]) == asked["size"] else None)
            case ["cdn", oid]:
                self.send(403 if self.headers.get("authorization") else 200, self.server.objects[oid], {})
            case [user, name, "resolve", revision, *path]:
                self.resolve(f"{user}/{name}", revision, "/".join(path))
            case _:
                self.answer(None, 404)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def create(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        if not self.may_write():
            return self.answer({"error": "Invalid user token."}, 401)
        known = name in self.server.repos
        if not known:
            self.server.repos[name] = Repo(asked.get("visibility") == "private")
        self.answer({"url": f"{self.server.endpoint}/{name}"}, 409 if known else 200)

    def check_readme(self, asked):
        metadata = yaml.safe_load(asked["content"].split("---\n")[1])
        flaw = isinstance(metadata, dict) and isinstance(metadata.get("license", ""), str)
        self.answer({"errors": [], "warnings": []}, 200 if flaw else 400)

    def model(self, name, rest, body):
        repo = self.readable(name)
        if repo is None:
            return
        match rest:
            case [] | ["revision", _]:
                commit, files = repo.find(rest[1] if rest else "main")
                if commit is None:
                    return self.missing("RevisionNotFound")
                siblings = [{"rfilename": path} for path in files]
                self.answer({"id": name, "sha": commit, "private": repo.private, "siblings": siblings, "tags": []})
            case ["tree", revision]:
                commit, files = repo.find(revision)
                if commit is None:
                    return self.missing("RevisionNotFound")
                self.answer([self.entry(path, data) for path, data in files.items()])
            case ["preupload", _]:
                found = [(file["path"], file["path"].endswith(LARGE)) for file in json.loads(body)["files"]]
                modes = [
                    {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
                    for path, large in found
                ]
                self.answer({"files": modes})
            case ["branch", branch]:
                known = branch in repo.branches
                repo.branches.setdefault(branch, repo.branches["main"])
                self.answer({}, 409 if known else 200)
            case ["commit", revision]:
                self.commit(name, repo, revision, body)

    def commit(self, name, repo, revision, body):
        files = dict(repo.find(revision)[1])
        for line in body.decode().splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}:
                    files[path] = base64.b64decode(content)
                case {"key": "lfsFile", "value": {"path": path, "oid": oid, "algo": "sha256"}}:
                    files[path] = self.server.objects[oid]
                case {"key": "deletedFile", "value": {"path": path}}:
                    del files[path]
        if not self.may_write():
            return self.answer({"error": "forbidden"}, 403)
        commit = repo.commit(revision, files)
        self.answer({"commitUrl": f"{self.server.endpoint}/{name}/commit/{commit}", "commitOid": commit})

    def batch(self, name, asked):
        if self.readable(name) is None:
            return
        objects = []
        for one in asked["objects"]:
            links = {"upload": {"href": f"{self.server.endpoint}/lfs/{one['oid']}"}}
            links["verify"] = {"href": f"{self.server.endpoint}/verify"}
            objects.append(one if one["oid"] in self.server.objects else one | {"actions": links})
        self.answer({"transfer": "basic", "objects": objects})

    def resolve(self, name, revision, path):
        repo = self.readable(name)
        if repo is None:
            return
        commit, files = repo.find(revision)
        if commit is None:
            return self.missing("RevisionNotFound")
        if path not in files:
            return self.missing("EntryNotFound", {"X-Repo-Commit": commit})
        entry = self.entry(path, files[path])
        facts = {"X-Repo-Commit": commit, "ETag": f'"{entry["oid"]}"'}
        if "lfs" not in entry:
            return self.send(200, files[path], facts)
        oid = entry["lfs"]["oid"]
        self.server.objects[oid] = files[path]
        facts |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(files[path]))}
        self.send(302, b"", facts | {"Location": f"{self.server.cdn}/{oid}"})

    def entry(self, path, data):
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        found = {"type": "file", "path": path, "size": len(data), "oid": oid}
        if path.endswith(LARGE):
            found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return found

    def readable(self, name):
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self.may_write()):
            self.missing("RepoNotFound", status=401)
            return None
        return repo

    def may_write(self):
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def missing(self, code, more=None, status=404):
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code, **(more or {})})

    def answer(self, content, status=200):
        content, status = ({"error": "bad request"}, max(status, 400)) if content is None else (content, status)
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def send(self, status, content, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serving():
    """Run a hub for the duration of the block."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
