"""The ledger of a test split: a signed line for each model that was evaluated on it.

A test split wears out: of many models without a difference, some are better on it by chance. The gate's level depends
on how many were compared, so each is counted: once, whatever its run is called, and again on whatever data set has the
same test examples. The ledger is a folder beside the data sets of a store, named after the hashes of the test examples,
with a file for each model, in order. Each file names the SHA-256 of the one before, and is signed with a key of its
author (Ed25519, made when it is first needed), so that a changed or a removed one is noticed.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.core import dsse
from slipway.core.dsse import Key
from slipway.core.manifest import Split
from slipway.core.values import JsonObject

# Beside the folders of data sets; hidden, since it is none.
FOLDER = ".ledger"
IDENTITY_DIGITS = 16
PAYLOAD = "application/vnd.slipway.look+json"
# The part of the level that the first comparison spends; the n-th spends 1 / n² of that, and all together the level.
SPENT = 6 / np.pi**2
# The file of the private key, if it is not the user's.
KEY_VARIABLE = "SLIPWAY_LEDGER_KEY"
# Other runs that may add a line at the same time.
ATTEMPTS = 100


@dataclass(frozen=True)
class Look:
    """A model that was evaluated on a test split.

    `model` is the checksum of its weights, `value` what was shown of the gate's `metric`. `author` identifies the key
    with which the line is signed, "" of one that is damaged or was changed.
    """

    number: int
    when: str
    who: str
    run: str
    model: str
    metric: str
    value: float
    decision: str
    previous: str
    author: str = ""


@dataclass(frozen=True)
class Ledger:
    """All looks at a test split, in order, and what is wrong with the files, in sentences.

    `digest` is the SHA-256 of the last file, "" if there is none.
    """

    folder: Path
    looks: Sequence[Look]
    problems: Sequence[str]
    digest: str

    def as_dict(self) -> JsonObject:
        """Return the ledger for programs."""
        return {
            "split": self.folder.name,
            "models": self.count,
            "looks": [
                {name: entry for name, entry in asdict(look).items() if name != "previous"} for look in self.looks
            ],
            "problems": list(self.problems),
        }

    @property
    def count(self) -> int:
        """The number of models that were evaluated; those whose files were removed count, too."""
        return max((look.number for look in self.looks), default=0)

    def has(self, model: str | None) -> bool:
        """Return whether a model was evaluated."""
        return any(look.model == model for look in self.looks)

    def number_of(self, model: str | None, champion: str | None) -> int:
        """Return which comparison that of a model with the champion is, from 1: the same one if it is repeated."""
        last = next((look.number for look in self.looks if look.model == model), self.count + 1)
        return max(1, last - 1 if self.has(champion) else last)


def level(significance: float, number: int) -> float:
    """Return the level of the n-th comparison, so that all together reach `significance`, however many they are."""
    return float(significance * SPENT / number**2)


def ledger_of(data: Path, split: Split, hashes: NDArray[np.uint64] | None) -> Path:
    """Return the folder of the ledger of a data set's test split.

    Args:
        data: The data set's folder, STORE/NAME/FINGERPRINT.
        split: The test split.
        hashes: The hashes of its examples; None if the data set has none.
    """
    files = sorted(shard.sha256 for shard in split.shards)
    content = json.dumps(files).encode() if hashes is None else np.sort(hashes).tobytes()
    return data.absolute().parent.parent / FOLDER / hashlib.sha256(content).hexdigest()[:IDENTITY_DIGITS]


def read(folder: Path) -> Ledger:
    """Return the ledger in a folder, an empty one if it does not exist."""
    looks, problems, previous = [], [], ""
    for path in sorted(path for path in folder.glob("*.json") if path.stem.isdecimal()):
        content = path.read_bytes()
        look = _verified(content)
        if look is None:
            problems.append(f"The ledger of this test split was changed: {path} is damaged.")
            look = Look(int(path.stem), "", "", "", path.name, "", float("nan"), "", previous)
        elif look.previous != previous:
            problems.append(f"The ledger of this test split was changed: what was before {path} was removed.")
        looks.append(look)
        previous = hashlib.sha256(content).hexdigest()
    return Ledger(folder, looks, problems, previous)


def _verified(content: bytes) -> Look | None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        pem = json.loads(content)["publicKey"]
        key = load_pem_public_key(pem.encode())
        _, payload = next(dsse.payloads(content, key))
        return Look(**json.loads(payload), author=dsse.key_id(key)[:IDENTITY_DIGITS])
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return None


def add(ledger: Ledger, *, run: str, model: str, metric: str, value: float, decision: str) -> Ledger:
    """Add a model to a ledger, unless it is in it; return the new ledger.

    Raises:
        OSError: The folder cannot be written to.
    """
    key = _key()
    for _ in range(ATTEMPTS):
        if ledger.has(model):
            break
        look = Look(
            ledger.count + 1, datetime.now(UTC).isoformat(timespec="seconds"), _who(), run, model, metric, value,
            decision, ledger.digest,
        )  # fmt: skip
        described = {name: entry for name, entry in asdict(look).items() if name != "author"}
        payload = json.dumps(described, sort_keys=True).encode()
        public = key.public_key()
        signed: JsonObject = dsse.envelope(payload, PAYLOAD, key, dsse.key_id(public))
        signed["publicKey"] = dsse.pem(public)
        ledger.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # of another run; this one is the next
            _write_new(ledger.folder / f"{look.number:06d}.json", json.dumps(signed).encode())
        ledger = read(ledger.folder)
    return ledger


def _write_new(path: Path, content: bytes) -> None:
    """Create a file with its content at once, where files can be linked; otherwise, as on a mounted bucket, in turn.

    Raises:
        FileExistsError: It exists.
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(content)
        try:
            os.link(beside, path)
        except FileExistsError:
            raise
        except OSError:
            with path.open("xb") as file:
                file.write(content)
    finally:
        beside.unlink(missing_ok=True)


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user has no name
        return f"{os.getuid()}@{socket.gethostname()}"


def _key() -> Key:
    """Return the user's key, a new one for this process if none can be kept."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = Path(os.environ.get(KEY_VARIABLE) or "~/.config/slipway/ledger.key").expanduser()
    key = Ed25519PrivateKey.generate()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return dsse.read_key(str(path), private=True, setting=str(path))
    return key
