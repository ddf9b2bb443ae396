"""A registered model is signed with its data set, and every forgery is refused, also one with matching checksums."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from typer.testing import CliRunner

from slipway.components.register_model.registry import Registry
from slipway.core import dsse, integrity
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, Shard, Split
from slipway.core.statement import contents
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.doctor import configuration as checked
from slipway.pipelines.platforms.base import CheckWarning, Context
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.platforms.table import PLATFORMS
from slipway.pipelines.runs import attestation
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunRecord
from tests import absent

VERSION = Path("models/digits/1")
STATEMENT = VERSION / "provenance.intoto.jsonl"
# A key on the curve secp192k1, which the package cryptography does not support.
UNSUPPORTED = """-----BEGIN PUBLIC KEY-----
MEYwEAYHKoZIzj0CAQYFK4EEAB8DMgAEjF9b4sYmPFKoryh02neD1z0fhPcwVH4anEfz+5Q/l0wIZGLrXJjpGnoMx7UawzXk
-----END PUBLIC KEY-----
"""


def write_keys(name: str, key: Any) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    Path(f"{name}.key").write_bytes(pem)
    Path(f"{name}.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def write_data(content: bytes) -> None:
    """Write a data set of one shard, whose checksums match."""
    Path("data").mkdir(exist_ok=True)
    Path("data/test.tfrecord").write_bytes(content)
    shard = Shard(
        file="test.tfrecord", examples=1, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )  # fmt: skip
    described = Manifest(
        name="digits", fingerprint="f1", source="digits", settings={}, classes=["a", "b"], image_size=(8, 8),
        channels=1, resize=False, encodings=["png"],
        splits={"test": Split(examples=1, classes={"a": 1}, shards=[shard])},
    )  # fmt: skip
    Path("data/manifest.json").write_text(described.model_dump_json())


def configuration(**register: Any) -> RunConfig:
    values: dict[str, Any] = {
        "name": "digits",
        "data": {"source": "digits"},
        "model": {"builder": "a:b"},
        "train": {"epochs": 1},
        "register": register,
    }
    if not absent.lacks_extensions(["notify"]):
        values["notify"] = {"webhook": "https://chat/s3cret"}
    return validate(values, "test.yaml")


def executed(record: RunRecord) -> bool:
    """Do what the steps of a run do; return True."""
    Path("weights").mkdir()
    Path("weights/model.pt2").write_bytes(b"weights")
    Path("weights/variables").mkdir()
    Path("weights/variables/data").write_bytes(b"more weights")
    Path("weights/assets").mkdir()  # of a SavedModel, often without files
    integrity.seal(Path("weights"), {})
    metadata = {"run_id": record.run_id, "weights_checksum": "1"}
    registered = Registry(Path("models")).register("digits", Path("weights"), metadata, "any")
    outputs = {
        "prepare_data": {"dataset": str(Path("data").absolute()), "fingerprint": "f1"},
        "register_model": {"model": str(registered.version.folder.absolute())},
    }
    for step in record.steps:
        step.status, step.outputs = "succeeded", outputs.get(step.name, {})
    return True


class Silent:
    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        pass


def run(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    folder = runs.create(config)
    monkeypatch.setattr(launch, "_execute", lambda _folder, _config, record, *_: executed(record))
    with folder.held():
        return launch.run(folder, config, launch.new_record(folder, config), Silent())


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    (tmp_path / "my models").mkdir()
    monkeypatch.chdir(tmp_path / "my models")
    write_keys("signing", Ed25519PrivateKey.generate())
    write_data(b"examples")
    record = run(configuration(signing_key="signing.key"), monkeypatch)
    assert record.status == "succeeded"
    return record


def verify(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["runs", "verify", "digits", *options])
    return result.exit_code, result.stdout


def test_a_run_signs_what_it_registers_and_what_that_was_made_from(signed: RunRecord) -> None:
    code, shown = verify("--key", "signing.pub")
    assert (code, shown.splitlines()) == (0, [f"✓ model {VERSION}", f"✓ data set {Path('data').absolute()}"])
    assert verify() == (0, f"✓ model {VERSION}: signed; to verify that: --key FILE\n")
    envelope = json.loads(STATEMENT.read_bytes())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    names = {"model.pt2", "model.json", "metadata.json", "variables/data", "assets/"}
    assert {each["name"] for each in statement["subject"]} == names
    made = statement["predicate"]["buildDefinition"]
    assert made["externalParameters"]["configuration"]["train"]["epochs"] == 1.0
    [data] = [each for each in made["resolvedDependencies"] if each["name"] == "dataset"]
    assert data["annotations"] == {"fingerprint": "f1"}
    assert data["digest"] == {"sha256": hashlib.sha256(Path("data/manifest.json").read_bytes()).hexdigest()}
    assert statement["predicate"]["runDetails"]["metadata"]["invocationId"] == signed.run_id
    assert b"s3cret" not in base64.b64decode(envelope["payload"])


def forge_weights() -> None:
    """Replace the weights, with checksums that match."""
    (VERSION / "model.pt2").write_bytes(b"forged")
    integrity.seal(VERSION, {})
    metadata = json.loads((VERSION / "metadata.json").read_text())
    metadata["files_checksum"] = integrity.checksum(VERSION)
    (VERSION / "metadata.json").write_text(json.dumps(metadata))


def forge_statement() -> None:
    """Replace the weights, with a statement that matches, and the old signature."""
    forge_weights()
    envelope = json.loads(STATEMENT.read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    digests = contents(VERSION)
    statement["subject"] = [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    STATEMENT.write_text(json.dumps(envelope))


def change_payload_type() -> None:
    envelope = json.loads(STATEMENT.read_bytes())
    [signature] = envelope["signatures"]
    key = dsse.read_key("signing.key", private=True, setting="")
    payload = base64.b64decode(envelope["payload"])
    signature["sig"] = base64.b64encode(key.sign(payload)).decode()  # without the type
    STATEMENT.write_text(json.dumps(envelope))


def replace_folder_by_link() -> None:
    (VERSION / "variables").rename("variables")
    (VERSION / "variables").symlink_to(Path("variables").absolute())


def replace_version_by_link() -> None:
    VERSION.rename("elsewhere")
    VERSION.symlink_to(Path("elsewhere").absolute())


def replace_file_by_link(name: str) -> None:
    (VERSION / name).rename("elsewhere")
    (VERSION / name).symlink_to(Path("elsewhere").absolute())


def replace_by_fifo(name: str) -> None:
    (VERSION / name).unlink()
    os.mkfifo(VERSION / name)


def sign_another_payload(kind: str, payload: bytes) -> None:
    key = dsse.read_key("signing.key", private=True, setting="")
    STATEMENT.write_text(json.dumps(dsse.envelope(payload, kind, key, "")))


DEEP = "[" * 100_000 + "]" * 100_000
UNSIGNED = "its provenance is not signed with this key, or was changed"
OTHER_KIND = "another kind of statement is signed"


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (replace_folder_by_link, "variables is not what was signed"),
        (replace_version_by_link, ". is not what was signed"),
        (lambda: replace_file_by_link("model.pt2"), "model.pt2 is not what was signed"),
        (lambda: (VERSION / "link").symlink_to("model.pt2"), "link is not what was signed"),
        (lambda: (VERSION / "broken").symlink_to("none"), "broken is not what was signed"),
        (lambda: os.mkfifo(VERSION / "fifo"), "fifo is not what was signed"),
        (lambda: (VERSION / "empty").mkdir(), "empty/ is not what was signed"),
        (lambda: (VERSION / "assets").rmdir(), "assets/ is not what was signed"),
        (lambda: (VERSION / "a\nb").touch(), r"'a\nb' is not what was signed"),
        (lambda: replace_by_fifo("model.json"), "model.json is not a regular file"),
        (lambda: replace_by_fifo("metadata.json"), "its metadata.json is missing or damaged"),
        (lambda: replace_by_fifo("provenance.intoto.jsonl"), "it is not a regular file"),
        (lambda: (VERSION / "model.json").write_text(DEEP), "model.json cannot be read"),
        (lambda: (VERSION / "metadata.json").write_text(DEEP), "its metadata.json is missing or damaged"),
        (lambda: STATEMENT.write_text(DEEP), UNSIGNED),
        (lambda: Path("data/manifest.json").write_text(DEEP), "manifest.json cannot be read"),
        (lambda: sign_another_payload("application/vnd.in-toto+json", b"[]"), OTHER_KIND),
        (lambda: sign_another_payload("text/plain", statement_payload()), OTHER_KIND),
        (forge_weights, "metadata.json is not what was signed"),
        (forge_statement, "its provenance is not signed with this key, or was changed"),
        (change_payload_type, UNSIGNED),
        (lambda: STATEMENT.write_text("[]"), "its provenance is not signed with this key, or was changed"),
        (STATEMENT.unlink, "it is not signed"),
        (lambda: (VERSION / "extra.py").touch(), "extra.py is not what was signed"),
        (lambda: write_data(b"forged examples"), "is not the one with which the model was trained"),
        (lambda: Path("data/test.tfrecord").write_bytes(b"Examples"), "its SHA-256 does not match manifest.json"),
    ],
)
def test_what_was_forged_is_refused(signed: RunRecord, forge: Callable[[], object], said: str) -> None:
    forge()
    code, shown = verify("--key", "signing.pub")
    assert (code, said in shown) == (1, True), shown


@pytest.mark.parametrize("name", ["other/1", "digits/2"])
def test_a_signed_version_is_refused_under_another_name_or_number(signed: RunRecord, name: str) -> None:
    shutil.copytree(VERSION, Path("models", name))
    result = CliRunner().invoke(app, ["runs", "verify", name, "--key", "signing.pub"])
    assert (result.exit_code, "it was signed as digits/1" in result.stdout) == (1, True), result.stdout


@pytest.mark.parametrize(
    "record", [{"files": []}, {"files": {"a": 1}}, {"files": {"a": ["1", "2"]}}, {}, {"files": {"a\ud800": [1, "2"]}}]
)
def test_a_strange_record_with_its_checksum_is_damaged(signed: RunRecord, record: dict[str, Any]) -> None:
    checksum = integrity._checksum(record)
    (VERSION / "model.json").write_text(json.dumps({**record, "record_checksum": checksum}))
    code, shown = verify()
    assert (code, shown.splitlines()[0]) == (1, f"✗ model {VERSION}"), shown


def statement_payload() -> bytes:
    return base64.b64decode(json.loads(STATEMENT.read_bytes())["payload"])


def urlsafe(envelope: dict[str, Any]) -> str:
    for holder, name in ((envelope, "payload"), *((each, "sig") for each in envelope["signatures"])):
        holder[name] = base64.urlsafe_b64encode(base64.b64decode(holder[name])).decode().rstrip("=")
    return json.dumps(envelope)


def with_signatures(envelope: dict[str, Any]) -> str:
    """Return an envelope with a signature of another key before and after its own, which has no keyid."""
    [signature] = envelope["signatures"]
    foreign = dsse.envelope(
        base64.b64decode(envelope["payload"]), envelope["payloadType"], Ed25519PrivateKey.generate(), "a"
    )
    del signature["keyid"]
    envelope["signatures"] = [*foreign["signatures"], signature, {"keyid": "b", "sig": "AAAA"}]
    return json.dumps(envelope)


def in_a_bundle(envelope: dict[str, Any]) -> str:
    """Return a file with the envelope after some of another kind, an earlier version and another key, and no JSON."""
    key, payload = dsse.read_key("signing.key", private=True, setting=""), statement_payload()
    earlier = payload.replace(b"model.pt2", b"model.pt1")
    lines = [
        dsse.envelope(b"text", "text/plain", key, ""),
        dsse.envelope(earlier, attestation.PAYLOAD, key, ""),
        dsse.envelope(payload, attestation.PAYLOAD, Ed25519PrivateKey.generate(), ""),
    ]
    return "\n".join([*map(json.dumps, lines), "", "no JSON", json.dumps(envelope), ""])


@pytest.mark.parametrize(
    "written", [urlsafe, with_signatures, in_a_bundle, lambda envelope: json.dumps(envelope, indent=2)]
)
def test_every_form_of_an_envelope_is_read(signed: RunRecord, written: Callable[[dict[str, Any]], str]) -> None:
    STATEMENT.write_text(written(json.loads(STATEMENT.read_bytes())))
    code, shown = verify("--key", "signing.pub")
    assert code == 0, shown


@pytest.fixture(params=["ed25519", "secp256r1", "secp384r1", "secp521r1"])
def key(request: pytest.FixtureRequest) -> Any:
    curves = {"secp256r1": ec.SECP256R1, "secp384r1": ec.SECP384R1, "secp521r1": ec.SECP521R1}
    if request.param == "ed25519":
        return Ed25519PrivateKey.generate()
    return ec.generate_private_key(curves[request.param]())


def test_securesystemslib_verifies_a_statement(signed: RunRecord, key: Any) -> None:
    """Its keys have the id of the signature, without which it does not try one."""
    library = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    public = signer.SSlibKey.from_crypto(key.public_key())
    envelope = library.Envelope.from_dict(dsse.envelope(b"{}", "a/b", key, dsse.key_id(key.public_key())))
    assert envelope.verify([public], 1) == {public.keyid: public}
    envelope.payload = b"[]"
    with pytest.raises(Exception, match="do not match threshold"):
        envelope.verify([public], 1)


@pytest.fixture(params=[ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def signed_by_curve(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_keys("signing", ec.generate_private_key(request.param()))
    write_data(b"examples")
    assert run(configuration(signing_key="signing.key"), monkeypatch).status == "succeeded"


def test_a_key_of_a_curve_also_writes_openssfs_signature(signed_by_curve: None) -> None:
    assert verify("--key", "signing.pub")[0] == 0
    bundle = json.loads((VERSION / "model.sig").read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    names = ["metadata.json", "model.json", "model.pt2", "variables/data"]
    assert [resource["name"] for resource in statement["predicate"]["resources"]] == names
    (VERSION / "model.sig").write_text("{}")
    assert "model.sig is not what was signed" in verify("--key", "signing.pub")[1]
    copied = Registry(Path("models")).register("copy", VERSION, {"run_id": "another"}, "any")
    assert not (copied.version.folder / "model.sig").exists()


def test_the_package_model_signing_verifies_a_version(signed_by_curve: None) -> None:
    library = pytest.importorskip("model_signing.verifying")
    verifier = library.Config().use_elliptic_key_verifier(public_key=Path("signing.pub"))
    verifier.verify(VERSION, VERSION / "model.sig")
    (VERSION / "variables/data").write_bytes(b"forged")
    with pytest.raises(ValueError, match="variables/data"):
        verifier.verify(VERSION, VERSION / "model.sig")


def test_the_id_of_a_key_is_that_of_securesystemslib() -> None:
    """The ids were computed by securesystemslib 1.6.0."""
    keys = Ed25519PrivateKey.from_private_bytes(bytes(32)), ec.derive_private_key(1, ec.SECP256R1())
    assert [dsse.key_id(key.public_key()) for key in keys] == [
        "4cc3f338069d638e761ed397f5c53df4129a276face46a446c202617331ca1b3",
        "cf4736fae1a3a019d3506e4345cfb6549c7aa731eb5c19f61b60f0175882edcf",
    ]


def test_another_key_is_refused(signed: RunRecord) -> None:
    write_keys("other", Ed25519PrivateKey.generate())
    assert verify("--key", "other.pub")[0] == 1
    write_keys("curve", ec.generate_private_key(ec.SECP256K1()))
    Path("unsupported.pub").write_text(UNSUPPORTED)
    for name, said in (
        ("curve.pub", "of another kind"),
        ("unsupported.pub", "no public key that can be read"),
        ("signing.key", "no public key"),
        ("missing.pub", "No such file"),
    ):
        result = CliRunner().invoke(app, ["runs", "verify", "--key", name])
        assert (result.exit_code, said in result.output) == (2, True), result.output


def test_a_data_set_on_another_machine_is_named(signed: RunRecord) -> None:
    Path("data").rename("moved")
    code, shown = verify("--key", "signing.pub")
    assert (code, "not verified: it is not on this machine" in shown) == (0, True)


def test_a_copy_of_a_signed_model_is_signed_by_its_own_run_only(signed: RunRecord) -> None:
    copied = Registry(Path("models")).register("copy", VERSION, {"run_id": "another"}, "any")
    assert not (copied.version.folder / STATEMENT.name).exists()
    assert CliRunner().invoke(app, ["runs", "verify", "copy"]).exit_code == 0


def test_a_run_that_cannot_sign_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(b"examples")
    record = run(configuration(signing_key="missing.key"), monkeypatch)
    assert (record.status, STATEMENT.exists()) == ("failed", False)
    assert record.error is not None
    assert (
        "The key missing.key cannot be used: No such file or directory. The model is registered" in record.error.message
    )


@pytest.mark.extension("vertex")
def test_a_key_is_checked_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = configuration(signing_key="signing.key")
    with pytest.raises(UserError, match=r"signing\.key cannot be used"):
        checked.signing_key(Context(config, PLATFORMS["local"]))
    write_keys("signing", Ed25519PrivateKey.generate())
    assert checked.signing_key(Context(config, PLATFORMS["local"])) == "signing.key"
    with pytest.raises(CheckWarning, match="registered on Vertex AI are not signed"):
        checked.signing_key(Context(config, PLATFORMS["vertex"]))
