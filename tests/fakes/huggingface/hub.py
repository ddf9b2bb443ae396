"""The Hugging Face Hub on loopback: the calls of the client huggingface_hub, with what the hub refuses.

| rule | source |
|---|---|
| a wrong token: 401, `X-Error-Message: Invalid credentials in Authorization header` | hf_raise_for_status, huggingface_hub/utils/_http.py |
| no access to a repository, or none of the name: 401 without a token, else 404, `X-Error-Code: RepoNotFound` | the same |
| `GatedRepo`: 401 without a token, 403 with one; the repository's data and README.md can be read | the same; docs/hub/datasets-gated |
| `RevisionNotFound`, `EntryNotFound`: 404 | the same |
| `X-Repo-Commit`, `ETag`; a large file: 302 with `X-Linked-Etag`, `X-Linked-Size` | get_hf_file_metadata, file_download.py |
| the storage of large files refuses the hub's token | _get_metadata_or_catch_error, file_download.py |
| pages of a listing by the header `Link` | utils/_pagination.py |
| upload mode `lfs` or `regular` by name and the first 512 bytes | _fetch_upload_modes, _commit_api.py |
| a commit is NDJSON, its header first; 412 if `parentCommit` is not the last one | _prepare_commit_payload; tests/test_hf_api.py |
| a large file is committed only after its upload | docs/hub/api; git-lfs/docs/api/batch.md |
| `model-index` needs task.type, dataset.type, dataset.name, metric.type and metric.value | hub-docs/modelcard.md |
| 409 for a repository that exists, 403 in another's namespace or without the permission to write | create_repo, hf_api.py |

It has no Xet storage, as most mirrors: clients need HF_HUB_DISABLE_XET=1. Other requests are answered with 501.
"""  # noqa: E501 (a table)

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

import yaml

from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request
from tests.fakes.huggingface import repositories
from tests.fakes.huggingface.repositories import Blob, Commit, Repository

# Tokens of the user "slipway-tests": the scopes of https://huggingface.co/docs/hub/security-tokens.
OWNER = "slipway-tests"
TOKENS = {"hf_testsThatWrite": "write", "hf_testsThatRead": "read"}
WRITER, READER = TOKENS
PAGE = 50
LFS = "application/vnd.git-lfs+json"
KINDS = {"models": "model", "datasets": "dataset"}
LICENSES = ("apache-2.0", "mit", "cc-by-4.0", "cc0-1.0", "bsd-3-clause", "gpl-3.0", "openrail", "other", "unknown")


@dataclass
class Refused(Exception):
    """A refusal, with the hub's headers."""

    status: int
    code: str = ""
    message: str = ""

    def as_answer(self) -> Raw:
        headers = {"X-Error-Code": self.code, "X-Error-Message": self.message, "Content-Type": "application/json"}
        body = json.dumps({"error": self.message or self.code}).encode()
        return Raw(body, self.status, {name: value for name, value in headers.items() if value})


class FakeHub:
    """The hub; a context manager. `repositories` are by kind and name, `large` by SHA-256."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.large: dict[str, bytes] = {}
        self.url = ""

    def __enter__(self) -> FakeHub:
        service = self._service = HttpService("huggingface", self.faults, _token)
        service.error_body = lambda error: {"error": error.message}
        for method, path, function in (
            ("GET", "/api/whoami-v2", self._who),
            ("POST", "/api/repos/create", self._create),
            ("POST", "/api/validate-yaml", self._validate),
            ("GET", "/api/{kind}/{owner}/{name}/auth-check", self._check),
            ("GET", "/api/{kind}/{owner}/{name}/revision/{revision=**}", self._info),
            ("GET", "/api/{kind}/{owner}/{name}/tree/{revision=**}", self._tree),
            ("POST", "/api/{kind}/{owner}/{name}/preupload/{revision=**}", self._modes),
            ("POST", "/api/{kind}/{owner}/{name}/commit/{revision=**}", self._commit),
            ("GET", "/api/{kind}/{owner}/{name}", self._info),
            ("POST", "/{owner}/{name}.git/info/lfs/objects/batch", self._batch),
            ("POST", "/{owner}/{name}.git/info/lfs/verify", self._uploaded),
            ("GET", "/storage/{oid}", self._stored),
            ("PUT", "/storage/{oid}", self._store),
            ("HEAD", "/storage/{oid}", self._stored),
            ("GET", "/{kind}/{owner}/{name}/resolve/{path=**}", self._resolve),
            ("HEAD", "/{kind}/{owner}/{name}/resolve/{path=**}", self._resolve),
            ("GET", "/{owner}/{name}/resolve/{path=**}", self._resolve),
            ("HEAD", "/{owner}/{name}/resolve/{path=**}", self._resolve),
            *((method, "/{path=**}", _unknown) for method in ("GET", "HEAD", "POST", "PUT", "DELETE")),
        ):
            service.route(method, path)(_answering(function))
        port = service.start(None)
        # Large files are elsewhere, so that the client's token must not follow.
        self.url, self._storage = f"http://127.0.0.1:{port}", f"http://localhost:{port}/storage"
        return self

    def __exit__(self, *_: Any) -> None:
        self._service.stop()
        self._service.disconnect()

    def add(
        self,
        name: str,
        files: dict[str, bytes],
        *,
        kind: str = "dataset",
        branch: str = "main",
        private: bool = False,
        gated: bool = False,
        readers: tuple[str, ...] = (),
    ) -> Commit:
        """Add files to a repository, which may be new, as one commit."""
        repository = self.repositories.get((kind, name)) or repositories.new(kind, name, private=private)
        self.repositories[kind, name] = repository
        repository.private, repository.gated, repository.readers = private, gated, {*readers}
        before = repository.at(branch)
        added = {path: Blob(data, repositories.is_large(path, data[:512])) for path, data in files.items()}
        self.large |= {blob.sha256: blob.data for blob in added.values() if blob.large}
        return repository.commit({**(before.files if before else {}), **added}, "Add files", branch)

    # Accounts and repositories

    def _who(self, request: Request) -> Any:
        if not request.caller:
            raise Refused(401, message="Invalid username or password.")
        return {"type": "user", "name": OWNER, "auth": {"accessToken": {"role": TOKENS[request.caller]}}}

    def _create(self, request: Request) -> Any:
        body = request.json
        kind, owner = body.get("type") or "model", body.get("organization") or OWNER
        name = f"{owner}/{body['name']}"
        self._writer(request, owner)
        if not repositories.NAME.fullmatch(name):
            raise Refused(400, message="Invalid repo name")
        if (kind, name) in self.repositories:
            answer = {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
            return Raw(json.dumps(answer).encode(), 409, {"Content-Type": "application/json"})
        private = body.get("private", body.get("visibility") == "private")
        self.repositories[kind, name] = repositories.new(kind, name, private=private)
        return {"url": f"{self.url}/{name}", "name": name}

    def _check(self, request: Request) -> Any:
        self._readable(self._named(request), request)
        return {}

    def _info(self, request: Request) -> Any:
        repository = self._named(request)
        return repository.as_json(_at(repository, request.parts.get("revision", "main")))

    def _tree(self, request: Request) -> Any:
        repository = self._named(request)
        commit = _at(repository, request.parts["revision"])
        if request.query.get("recursive", "").lower() != "true":
            return _unknown(request)
        entries = [blob.as_entry(path) for path, blob in commit.files.items()]
        start = int(request.query.get("cursor", 0))
        headers = {"Content-Type": "application/json"}
        if start + PAGE < len(entries):
            query = urllib.parse.urlencode({**request.query, "cursor": start + PAGE})
            headers["Link"] = f'<{self.url}{urllib.parse.urlsplit(request.target).path}?{query}>; rel="next"'
        return Raw(json.dumps(entries[start : start + PAGE]).encode(), 200, headers)

    # Files

    def _resolve(self, request: Request) -> Any:
        repository = self._named(request)
        # The revision is one part of the path, quoted.
        rest = urllib.parse.urlsplit(request.target).path.partition("/resolve/")[2]
        revision, path = (urllib.parse.unquote(part) for part in rest.split("/", 1))
        commit = _at(repository, revision)
        if path != "README.md":
            self._readable(repository, request)
        if (blob := commit.files.get(path)) is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        if not blob.large:
            return Raw(blob.data, 200, headers)
        linked = {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
        return Raw(b"", 302, {**headers, **linked, "Location": f"{self._storage}/{blob.sha256}"})

    def _stored(self, request: Request) -> Any:
        data = self.large.get(request.parts["oid"])
        if data is None or "Authorization" in request.headers:
            return Raw(b"<Error><Code>InvalidArgument</Code></Error>", 404 if data is None else 400)
        return Raw(data, 200, {"ETag": f'"{request.parts["oid"]}"'})

    def _store(self, request: Request) -> Any:
        oid = request.parts["oid"]
        if "Authorization" in request.headers or Blob(request.body, True).sha256 != oid:
            return Raw(b"<Error><Code>BadDigest</Code></Error>", 400)
        self.large[oid] = request.body
        return Raw(b"", 200, {"ETag": f'"{oid}"'})

    # Commits

    def _validate(self, request: Request) -> Any:
        errors = card_errors(request.json["content"])
        answer = {"errors": [{"message": error} for error in errors], "warnings": []}
        return Raw(json.dumps(answer).encode(), 400 if errors else 200, {"Content-Type": "application/json"})

    def _modes(self, request: Request) -> Any:
        repository = self._writable(request)
        commit = _at(repository, request.parts["revision"])
        answers = []
        for file in request.json["files"]:
            large = repositories.is_large(file["path"], base64.b64decode(file["sample"]))
            there = commit.files.get(file["path"])
            oid = (there.sha256 if there.large else there.oid) if there else None
            answers.append(
                {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
                | ({"oid": oid} if oid else {})
            )
        return {"files": answers, "commitOid": commit.sha}

    def _batch(self, request: Request) -> Any:
        self._writable(request)
        if request.headers.get("Accept") != LFS or not request.headers["Content-Type"].startswith(LFS):
            return Raw(b"", 415)
        body = request.json
        if body["operation"] != "upload" or "basic" not in body["transfers"] or body["hash_algo"] != "sha256":
            return _unknown(request)
        objects = []
        for item in body["objects"]:
            actions = {"upload": f"{self._storage}/{item['oid']}"}
            actions["verify"] = f"{self.url}/{request.parts['owner']}/{request.parts['name']}.git/info/lfs/verify"
            if item["oid"] not in self.large:
                item |= {"actions": {name: {"href": href} for name, href in actions.items()}}
            objects.append(item)
        return Raw(json.dumps({"transfer": "basic", "objects": objects}).encode(), 200, {"Content-Type": LFS})

    def _uploaded(self, request: Request) -> Any:
        self._writable(request)
        data = self.large.get(request.json["oid"])
        return {} if data is not None and len(data) == request.json["size"] else Raw(b"", 404)

    def _commit(self, request: Request) -> Any:
        repository = self._writable(request)
        branch = request.parts["revision"]
        before = _at(repository, branch)
        if request.headers["Content-Type"] != "application/x-ndjson":
            return Raw(b"", 415)
        header, *operations = [json.loads(line) for line in request.body.splitlines()]
        if header["key"] != "header" or not header["value"]["summary"]:
            raise Refused(400, message="The first line must be a header with a summary")
        if header["value"].get("parentCommit", before.sha) != before.sha:
            raise Refused(412, message="A commit has happened since. Please refresh and try again.")
        files = dict(before.files)
        for operation in operations:
            self._apply(operation["key"], operation["value"], files)
        readme = files.get("README.md")
        if errors := card_errors(readme.data.decode()) if readme else []:
            raise Refused(400, message=f"Invalid metadata in README.md: {errors}")
        added = repository.commit(files, header["value"]["summary"], branch)
        url = f"{self.url}/{repository.name}/commit/{added.sha}"
        return {"success": True, "commitOid": added.sha, "commitUrl": url, "hookOutput": ""}

    def _apply(self, key: str, value: dict[str, Any], files: dict[str, Blob]) -> None:
        path = value["path"]
        if path.startswith(("/", "./", "../", ".git/")) or "//" in path:
            raise Refused(400, message=f"Invalid path {path}")
        if key == "file":
            data = base64.b64decode(value["content"], validate=True)
            if repositories.is_large(path, data[:512]):
                raise Refused(400, message="Your push was rejected because it contains binary files.")
            files[path] = Blob(data, False)
        elif key == "lfsFile":
            data = self.large.get(value["oid"], b"")
            if value["algo"] != "sha256" or value["oid"] not in self.large or len(data) != value["size"]:
                raise Refused(400, message=f"LFS pointer pointed to a file that does not exist: {path}")
            files[path] = Blob(data, True)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "EntryNotFound", path)
        else:
            raise Refused(501, message=f"The operation {key} is not imitated.")

    # Access

    def _named(self, request: Request) -> Repository:
        """Return the repository that a request names, if its caller may know of it."""
        parts = request.parts
        kind, name = KINDS.get(parts.get("kind", "models")), f"{parts['owner']}/{parts['name']}"
        repository = self.repositories.get((str(kind), name))
        if repository is None or (repository.private and repository.owner != _owner(request)):
            raise Refused(404 if request.caller else 401, "RepoNotFound", "Repository not found")
        return repository

    def _readable(self, repository: Repository, request: Request) -> None:
        if repository.gated and not {request.caller, "*"} & repository.readers:
            raise Refused(403 if request.caller else 401, "GatedRepo", f"Access to {repository.name} is restricted.")

    def _writable(self, request: Request) -> Repository:
        repository = self._named(request)
        self._writer(request, repository.owner)
        return repository

    def _writer(self, request: Request, owner: str) -> None:
        if not request.caller:
            raise Refused(401, message="Invalid username or password.")
        if TOKENS[request.caller] != "write" or owner != OWNER:
            raise Refused(403, message=f"You don't have the rights to create a model under the namespace {owner}")


def _answering(function: Any) -> Any:
    def answer(request: Request) -> Any:
        try:
            if request.caller and request.caller not in TOKENS and not request.path.startswith("/storage/"):
                raise Refused(401, message="Invalid credentials in Authorization header")
            return function(request)
        except Refused as error:
            return error.as_answer()

    return answer


def _unknown(request: Request) -> Raw:
    return Raw(f"{request.method} {request.target} is not imitated.".encode(), 501)


def _token(headers: Any) -> str:
    return str(headers.get("Authorization") or "").removeprefix("Bearer ")


def _owner(request: Request) -> str:
    return OWNER if request.caller in TOKENS else ""


def _at(repository: Repository, revision: str) -> Commit:
    commit = repository.at(revision)
    if commit is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


def card_errors(content: str) -> list[str]:
    """Return what is wrong with the metadata of a model card."""
    match = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
    if match is None:
        return []
    try:
        card = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return [str(error)]
    errors = [f'"license" must be one of {LICENSES}'] if card.get("license", "mit") not in LICENSES else []
    for model in card.get("model-index", ()):
        if not isinstance(model.get("name"), str):
            errors.append('"model-index[0].name" is required')
        for result in model.get("results", ()):
            needed = {"task": ("type",), "dataset": ("type", "name")}
            errors += [
                f'"model-index[0].results[0].{part}.{key}" is required'
                for part, keys in needed.items()
                for key in keys
                if not result.get(part, {}).get(key)
            ]
            metrics = result.get("metrics") or [{}]
            errors += [
                '"metrics.type" and "metrics.value" are required' for m in metrics if {"type", "value"} - m.keys()
            ]
            if re.search(r"[^\w./-]", str(result.get("dataset", {}).get("type", ""))):
                errors.append('"model-index[0].results[0].dataset.type" must be a data set id')
    return errors
