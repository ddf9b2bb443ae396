"""Cloud Storage: buckets, policies and permission checks; objects are stored by gcp-storage-emulator.

The emulator has no projects, permissions, generation preconditions or TLS; this proxy in front of it adds them.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import http.client
import json
import re
import threading
import time
import urllib.parse
from datetime import UTC, datetime
from http.server import HTTPServer
from typing import Any

import google_crc32c
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Raw, Request
from tests.fakes.mount import Mount
from tests.fakes.policies import check_members
from tests.fakes.world import Project, World

MULTI_REGIONS = ("ASIA", "EU", "US")
DUAL_REGIONS = ("ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4")
REGION = re.compile(r"[A-Z]+-[A-Z]+[0-9]+")
PRECONDITION = "At least one of the pre-conditions you specified did not hold."
NO_BUCKET = "The specified bucket does not exist."
ACTIONS = ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload")
CONDITIONS = {
    "age",
    "createdBefore",
    "customTimeBefore",
    "daysSinceCustomTime",
    "daysSinceNoncurrentTime",
    "isLive",
    "matchesPattern",
    "matchesPrefix",
    "matchesStorageClass",
    "matchesSuffix",
    "noncurrentTimeBefore",
    "numNewerVersions",
}
# What a request or an answer says of its connection rather than of its content.
HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}


class _Handler(RequestHandler):  # type: ignore[misc]
    wbufsize = -1  # in one packet: see http_service
    disable_nagle_algorithm = True


class FakeStorage:
    """The buckets, and the emulator behind them, which starts with the first object."""

    def __init__(self, service: HttpService, world: World) -> None:
        self._world = world
        self._emulator: HTTPServer | None = None
        self._objects = Storage(use_memory_fs=True)
        self._lock = threading.Lock()
        # Shows the buckets as folders, where there is one.
        self.mount: Mount | None = None
        service.error_body = ServiceError.as_older_json
        self._add_buckets(service)
        self._add_policies(service)
        self._add_objects(service)

    def stop(self) -> None:
        if self._emulator is not None:
            self._emulator.shutdown()
            self._emulator.server_close()

    def add_bucket(self, name: str, project: Project, location: str = "US", *, uniform: bool = True) -> dict[str, Any]:
        """Create a bucket without counting a write; return its resource."""
        place = location.upper()
        if place not in (*MULTI_REGIONS, *DUAL_REGIONS) and not REGION.fullmatch(place):
            raise ServiceError(400, "The specified location constraint is not valid.")
        kind = "multi-region" if place in MULTI_REGIONS else "dual-region" if place in DUAL_REGIONS else "region"
        time_created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        access = {"enabled": uniform, **({"lockedTime": time_created} if uniform else {})}
        bucket = {
            "kind": "storage#bucket",
            "id": name,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "name": name,
            "projectNumber": str(project.number),
            "location": place,
            "locationType": kind,
            "storageClass": "STANDARD",
            "generation": str(time.time_ns() // 1000),
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": time_created,
            "updated": time_created,
            "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": time_created},
            "iamConfiguration": {
                "bucketPolicyOnly": dict(access),
                "uniformBucketLevelAccess": access,
                "publicAccessPrevention": "inherited",
            },
            **({"satisfiesPZI": True} if kind == "region" else {"rpo": "DEFAULT"}),
        }
        with self._world.lock:
            self._world.buckets[name] = bucket
            self._world.policies[f"buckets/{name}"] = {
                "version": 1,
                "etag": "CAE=",
                "bindings": [
                    {
                        "role": "roles/storage.legacyBucketOwner",
                        "members": [f"projectEditor:{project.id}", f"projectOwner:{project.id}"],
                    },
                    {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{project.id}"]},
                ],
            }
            self._objects.create_bucket(name, dict(bucket))
        return bucket

    def read(self, bucket: str, name: str) -> tuple[bytes, str]:
        """Return an object's bytes and generation, as another Google service reads it. Raises ServiceError."""
        generation = self._generation(bucket, name)
        if not generation:
            raise ServiceError(404, f"No such object: {bucket}/{name}")
        return bytes(self._objects.get_file(bucket, name)), str(generation)

    def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's objects."""
        return {found["name"] for found in self._objects.get_file_list(bucket)[0]}

    def copy(self, uri: str, bucket: str, prefix: str) -> None:
        """Copy the objects below a gs:// URI to another bucket, as another Google service does."""
        source, _, folder = uri.removeprefix("gs://").rstrip("/").partition("/")
        with self._world.lock:
            if source not in self._world.buckets:
                return
            if self.mount is not None:
                self.mount.take_in(source)
            for name in self.names(source):
                if name.startswith(f"{folder}/"):
                    self.write(bucket, f"{prefix}{name.removeprefix(folder)}", self.read(source, name)[0])

    def remove(self, bucket: str, name: str) -> None:
        """Delete an object."""
        self._objects.delete_file(bucket, name)

    def write(self, bucket: str, name: str, content: bytes, written: datetime | None = None) -> None:
        """Write an object, as another Google service does, or did at another time."""
        if bucket not in self._world.buckets:
            raise ServiceError(404, NO_BUCKET)
        generation = max(time.time_ns(), self._generation(bucket, name) + 1)
        moment = (written or datetime.now(UTC)).isoformat().replace("+00:00", "Z")
        resource = {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(generation),
            "metageneration": "1",
            "timeCreated": moment,
            "updated": moment,
            "contentType": "text/plain",
            "size": str(len(content)),
            "crc32c": base64.b64encode(google_crc32c.Checksum(content).digest()).decode(),
            "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
        }
        self._objects.create_file(bucket, name, content, resource, None)

    def _add_buckets(self, service: HttpService) -> None:
        @service.route("POST", "/storage/v1/b")
        def insert(request: Request) -> Any:
            project = self._world.project(request.query["project"])
            self._require(request, "storage.buckets.create", None, project)
            wanted = request.json
            name = wanted["name"]
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name):
                raise ServiceError(400, f"Invalid bucket name: '{name}'")
            access = wanted.get("iamConfiguration", {})
            uniform = access.get("uniformBucketLevelAccess", {}).get("enabled", False)
            with self._world.lock:
                existing = self._world.buckets.get(name)
                if existing:
                    own = existing["projectNumber"] == str(project.number)
                    raise ServiceError(
                        409,
                        "Your previous request to create the named bucket succeeded and you already own it."
                        if own
                        else "The requested bucket name is not available. The bucket namespace is shared by all users "
                        "of the system. Please select a different name and try again.",
                    )
                bucket = self.add_bucket(name, project, wanted.get("location", "US"), uniform=uniform)
                bucket["iamConfiguration"] |= {key: access[key] for key in ("publicAccessPrevention",) if key in access}
                self._world.writes["bucket"] += 1
            return bucket

        @service.route("GET", "/storage/v1/b/{bucket}")
        def get(request: Request) -> Any:
            bucket = self._bucket(request)
            self._require(request, "storage.buckets.get", bucket)
            return bucket

        @service.route("PATCH", "/storage/v1/b/{bucket}")
        def patch(request: Request) -> Any:
            bucket = self._bucket(request)
            self._require(request, "storage.buckets.update", bucket)
            with self._world.lock:
                if request.query.get("ifMetagenerationMatch", bucket["metageneration"]) != bucket["metageneration"]:
                    raise ServiceError(412, PRECONDITION)
                _check_lifecycle(request.json.get("lifecycle") or {})
                bucket.update({key: value for key, value in request.json.items() if key not in ("name", "location")})
                bucket["metageneration"] = str(int(bucket["metageneration"]) + 1)
                self._world.writes["bucket"] += 1
            return bucket

    def _add_policies(self, service: HttpService) -> None:
        @service.route("GET", "/storage/v1/b/{bucket}/iam")
        def get_policy(request: Request) -> Any:
            bucket = self._bucket(request)
            self._require(request, "storage.buckets.getIamPolicy", bucket)
            version = int(request.query.get("optionsRequestedPolicyVersion", 1))
            return {"kind": "storage#policy", **self._world.read_policy(f"buckets/{bucket['name']}", version)}

        @service.route("PUT", "/storage/v1/b/{bucket}/iam")
        def set_policy(request: Request) -> Any:
            bucket = self._bucket(request)
            self._require(request, "storage.buckets.setIamPolicy", bucket)
            resource = f"buckets/{bucket['name']}"
            try:
                with self._world.lock:
                    check_members(self._world, resource, request.json)
                    return self._world.set_policy(resource, request.json)
            except ServiceError as error:
                # This service calls a stale etag by another number than the others.
                raise ServiceError(412, PRECONDITION) if error.status == 409 else error from None

        @service.route("GET", "/storage/v1/b/{bucket}/iam/testPermissions")
        def test_permissions(request: Request) -> Any:
            bucket = self._bucket(request)
            asked = urllib.parse.parse_qs(urllib.parse.urlsplit(request.target).query).get("permissions", [])
            granted = [name for name in asked if self._world.allowed(request.caller, name, *self._resources(bucket))]
            return {"kind": "storage#testIamPermissionsResponse", "permissions": granted}

    def _add_objects(self, service: HttpService) -> None:
        @service.route("POST", "/upload/storage/v1/b/{bucket}/o")
        @service.route("PUT", "/upload/storage/v1/b/{bucket}/o")
        def upload(request: Request) -> Any:
            bucket = self._bucket(request)
            with self._world.lock:
                name = _uploaded_name(request)
                if name is not None:
                    self._may_write(request, bucket, name)
                answer = self._pass_on(request)
                if request.method == "PUT" or request.query.get("uploadType") != "resumable":
                    self._world.writes["object"] += answer.status == 200
            return answer

        @service.route("GET", "/storage/v1/b/{bucket}/o")
        def list_(request: Request) -> Any:
            self._require(request, "storage.objects.list", self._bucket(request))
            return self._pass_on(request)

        @service.route("POST", "/storage/v1/b/{bucket}/o/{object=**}/copyTo/b/{to}/o/{target=**}")
        @service.route("POST", "/storage/v1/b/{bucket}/o/{object=**}/rewriteTo/b/{to}/o/{target=**}")
        def copy(request: Request) -> Any:
            self._require(request, "storage.objects.get", self._bucket(request))
            return self._write(request, self._bucket(request, "to"), request.parts["target"])

        @service.route("GET", "/storage/v1/b/{bucket}/o/{object=**}")
        @service.route("GET", "/download/storage/v1/b/{bucket}/o/{object=**}")
        def get(request: Request) -> Any:
            bucket = self._bucket(request)
            self._require(request, "storage.objects.get", bucket)
            self._check_generations(request, bucket["name"], request.parts["object"])
            return self._pass_on(request)

        @service.route("DELETE", "/storage/v1/b/{bucket}/o/{object=**}")
        @service.route("PATCH", "/storage/v1/b/{bucket}/o/{object=**}")
        def change(request: Request) -> Any:
            bucket = self._bucket(request)
            verb = "delete" if request.method == "DELETE" else "update"
            self._require(request, f"storage.objects.{verb}", bucket)
            with self._world.lock:
                self._check_generations(request, bucket["name"], request.parts["object"])
                answer = self._pass_on(request)
                self._world.writes["object"] += answer.status < 300
            return answer

    def _write(self, request: Request, bucket: dict[str, Any], name: str) -> Raw:
        with self._world.lock:
            self._may_write(request, bucket, name)
            answer = self._pass_on(request)
            self._world.writes["object"] += answer.status == 200
        return answer

    def _may_write(self, request: Request, bucket: dict[str, Any], name: str) -> None:
        """Check that the caller may delete an object that it overwrites."""
        self._require(request, "storage.objects.create", bucket)
        if self._generation(bucket["name"], name):
            self._require(request, "storage.objects.delete", bucket)
        self._check_generations(request, bucket["name"], name)

    def _check_generations(self, request: Request, bucket: str, name: str) -> None:
        """Compare `ifGenerationMatch` and `generation` with the existing object; 0 means none."""
        current = self._generation(bucket, name)
        if "ifGenerationMatch" in request.query and int(request.query["ifGenerationMatch"]) != current:
            raise ServiceError(412, PRECONDITION)
        if "generation" in request.query and int(request.query["generation"]) != current:
            raise ServiceError(404, f"No such object: {bucket}/{name}")

    def _generation(self, bucket: str, name: str) -> int:
        from gcp_storage_emulator.exceptions import NotFound

        try:
            return int(self._objects.get_file_obj(bucket, name)["generation"])
        except NotFound:
            return 0

    def _bucket(self, request: Request, part: str = "bucket") -> dict[str, Any]:
        bucket = self._world.buckets.get(request.parts[part])
        if bucket is None:
            raise ServiceError(404, NO_BUCKET)
        if self.mount is not None:
            with self._world.lock:
                self.mount.take_in(bucket["name"])
        return bucket

    def _resources(self, bucket: dict[str, Any]) -> tuple[str, str]:
        """Return the resources whose policies apply to a bucket: itself and its project."""
        return f"buckets/{bucket['name']}", f"projects/{self._world.project(bucket['projectNumber']).id}"

    def _require(
        self, request: Request, permission: str, bucket: dict[str, Any] | None, project: Project | None = None
    ) -> None:
        kind = permission.split(".")[1].removesuffix("s")
        resources = self._resources(bucket) if bucket else (f"projects/{project.id}",) if project else ()
        self._world.require(
            request.caller,
            permission,
            *resources,
            message=f"{request.caller} does not have {permission} access to the Google Cloud Storage {kind}. "
            f"Permission '{permission}' denied on resource (or it may not exist).",
        )

    def _pass_on(self, request: Request) -> Raw:
        """Return the emulator's response to the request, with this service's addresses."""
        host = request.headers["Host"]
        connection = http.client.HTTPConnection(*self._emulator_address(), timeout=180)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP}
        connection.request(request.method, request.target, body=request.body or None, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status == 404:
            raise ServiceError(404, f"No such object: {request.parts['bucket']}/{request.parts.get('object', '')}")
        if self.mount is not None and request.method != "GET":
            with self._world.lock:
                self.mount.give_out(request.parts.get("to") or request.parts["bucket"])
        kept = {key: value for key, value in answer.getheaders() if key.lower() not in HOP_BY_HOP}
        if "Location" in kept:
            kept["Location"] = kept["Location"].replace(f"http://{host}", f"https://{host}")
        if kept.get("Content-type") == "application/json":
            body = body.replace(f"http://{host}".encode(), f"https://{host}".encode())
        return Raw(body, answer.status, kept)

    def _emulator_address(self) -> tuple[str, int]:
        with self._lock:
            if self._emulator is None:
                # One thread: the emulator's own state has no lock.
                self._emulator = HTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self._objects))
                threading.Thread(
                    target=self._emulator.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
                ).start()
            return "127.0.0.1", self._emulator.server_port


def _check_lifecycle(lifecycle: dict[str, Any]) -> None:
    """Refuse rules that the service does not have. Source: Bucket.lifecycle of the API's discovery document."""
    for rule in lifecycle.get("rule", ()):
        condition = rule.get("condition", {})
        if rule["action"]["type"] not in ACTIONS or not condition or set(condition) - CONDITIONS:
            raise ServiceError(400, "Invalid argument.")


def _uploaded_name(request: Request) -> str | None:
    """Return the object of an upload; None for a later part, whose session was authorized."""
    if "name" in request.query:
        return request.query["name"]
    if request.method == "PUT" or "upload_id" in request.query:
        return None
    if request.query.get("uploadType") == "resumable":
        return str(request.json["name"])
    # multipart/related: the first part is the object's metadata in JSON.
    _, _, rest = request.body.partition(b"\r\n\r\n")
    metadata, _ = json.JSONDecoder().raw_decode(rest.decode("utf-8", "replace").lstrip())
    return str(metadata["name"])
