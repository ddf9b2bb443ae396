"""The repositories of the hub on loopback: commits, their files, and what is stored as large files (LFS).

Which files are large: the default `.gitattributes` of new repositories, and binary content, which a plain commit may
not have (https://huggingface.co/docs/hub/repositories-getting-started).
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

ATTRIBUTES = ".gitattributes"
LARGE = (
    "*.7z", "*.arrow", "*.bin", "*.ckpt", "*.gz", "*.h5", "*.joblib", "*.model", "*.msgpack", "*.npy", "*.npz",
    "*.onnx", "*.parquet", "*.pb", "*.pickle", "*.pkl", "*.pt", "*.pth", "*.safetensors", "*.tar", "*.tflite", "*.zip",
)  # fmt: skip
ATTRIBUTES_CONTENT = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE).encode()
NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


@dataclass(frozen=True)
class Blob:
    """The content of a file, and whether it is stored as a large one."""

    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        """Git's SHA-1 of what git stores: the content, or the pointer to a large file."""
        content = self.data
        if self.large:
            rows = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}", f"size {len(self.data)}")
            content = "".join(f"{row}\n" for row in rows).encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def as_entry(self, path: str) -> dict[str, Any]:
        """Return it as in a listing: https://huggingface.co/docs/hub/api, RepoFile in huggingface_hub/hf_api.py."""
        entry = {"type": "file", "path": path, "oid": self.oid, "size": len(self.data)}
        if self.large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}
        return entry


@dataclass(frozen=True)
class Commit:
    """A commit: its SHA-1, its message and all files."""

    sha: str
    message: str
    files: dict[str, Blob]


@dataclass
class Repository:
    """A repository; `gated` ones need their owner's consent, which `readers` have."""

    kind: str
    name: str
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def commit(self, files: dict[str, Blob], message: str, branch: str = "main") -> Commit:
        """Add a commit with these files as all of its content."""
        about = "\n".join([self.branches.get(branch, ""), message, *(f"{p} {b.oid}" for p, b in sorted(files.items()))])
        added = Commit(hashlib.sha1(about.encode()).hexdigest(), message, dict(sorted(files.items())))
        self.commits[added.sha] = added
        self.branches[branch] = added.sha
        return added

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.branches.get(revision, revision))

    def as_json(self, commit: Commit) -> dict[str, Any]:
        """Return it as `/api/models/…` does; see ModelInfo and DatasetInfo in huggingface_hub/hf_api.py."""
        return {
            "_id": hashlib.sha1(self.name.encode()).hexdigest()[:24],
            "id": self.name,
            "author": self.owner,
            "sha": commit.sha,
            "private": self.private,
            "gated": "manual" if self.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": path} for path in commit.files],
        }


def new(kind: str, name: str, *, private: bool) -> Repository:
    """Return a new repository, with the commit that the hub makes."""
    repository = Repository(kind, name, private)
    repository.commit({ATTRIBUTES: Blob(ATTRIBUTES_CONTENT, False)}, "initial commit")
    return repository


def is_large(path: str, sample: bytes) -> bool:
    """Whether the hub stores a file as a large one, by its name and its first bytes; an empty one never is."""
    name = path.rpartition("/")[2]
    return bool(sample) and (b"\0" in sample or any(fnmatch.fnmatch(name, pattern) for pattern in LARGE))
