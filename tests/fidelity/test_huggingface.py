"""What the Hugging Face Hub asks of clients, called by its own client, huggingface_hub."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.fakes.huggingface.hub import OWNER, READER, WRITER, FakeHub

MODEL = f"{OWNER}/model"
LARGE = b"\0weights" * 100


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with FakeHub() as started:
        yield started


def api(hub: FakeHub, token: str | bool = WRITER) -> HfApi:
    return HfApi(hub.url, token=token)


def commit(hub: FakeHub, files: dict[str, bytes], token: str = WRITER, **more: Any) -> Any:
    added = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=data) for path, data in files.items()]
    return api(hub, token).create_commit(MODEL, added, commit_message="Add", **more)


def test_a_repository_is_not_known_to_those_who_may_not_read_it(hub):
    """A missing repository, or a private one of others: 401 without a token, 404 with one; `RepoNotFound`.

    Source (read): hf_raise_for_status in huggingface_hub/utils/_http.py.
    """
    hub.add("org/private", {"a.csv": b"x"}, private=True)
    for token, status in ((False, 401), (READER, 404)):
        for name in ("org/private", "org/missing"):
            with pytest.raises(RepositoryNotFoundError) as caught:
                api(hub, token).dataset_info(name)
            assert caught.value.response.status_code == status


def test_files_of_a_gated_repository_need_consent_but_not_its_description(hub, tmp_path):
    """`GatedRepo` for files: 401 without a token, 403 with one; the repository and README.md can be read.

    Source (read): https://huggingface.co/docs/hub/datasets-gated, and hf_raise_for_status.
    """
    hub.add("org/gated", {"a.csv": b"x", "README.md": b"y"}, gated=True)
    assert api(hub, READER).dataset_info("org/gated").gated == "manual"
    download = api(hub, READER).hf_hub_download
    assert Path(download("org/gated", "README.md", repo_type="dataset", cache_dir=tmp_path)).read_bytes() == b"y"
    for token in (False, READER):
        with pytest.raises(GatedRepoError):
            api(hub, token).hf_hub_download("org/gated", "a.csv", repo_type="dataset", cache_dir=tmp_path)
        with pytest.raises(GatedRepoError):
            api(hub, token).auth_check("org/gated", repo_type="dataset")


def test_a_wrong_token_is_refused_also_for_public_repositories(hub):
    """Source (read): hf_raise_for_status in huggingface_hub/utils/_http.py, "Invalid credentials"."""
    hub.add("org/public", {"a.csv": b"x"})
    with pytest.raises(HfHubHTTPError) as caught:
        api(hub, "hf_wrong").dataset_info("org/public")
    assert not isinstance(caught.value, RepositoryNotFoundError)
    assert caught.value.response.status_code == 401


def test_revisions_are_branches_and_commits(hub):
    """Source (read): docs/huggingface_hub/guides/download, "From specific version"."""
    first = hub.add("org/set", {"a.csv": b"1"}).sha
    second = hub.add("org/set", {"a.csv": b"2"}).sha
    hub.add("org/set", {"b.parquet": b"3"}, branch="refs/convert/parquet")
    info = api(hub).dataset_info
    assert (info("org/set", revision="main").sha, info("org/set", revision=first).sha) == (second, first)
    assert info("org/set", revision="refs/convert/parquet").sha not in (first, second)
    with pytest.raises(RevisionNotFoundError):
        info("org/set", revision="v9")


def test_a_listing_has_pages_and_the_digests_of_files(hub):
    """Large files have their SHA-256, others git's SHA-1; pages follow the header Link.

    Source (read): RepoFile in huggingface_hub/hf_api.py; paginate in utils/_pagination.py.
    """
    hub.add("org/set", {**{f"{number:03d}.csv": b"x" for number in range(120)}, "z.parquet": LARGE})
    tree = {file.path: file for file in api(hub).list_repo_tree("org/set", recursive=True, repo_type="dataset")}
    assert len(tree) == 122
    assert tree["000.csv"].blob_id == hashlib.sha1(b"blob 1\0x").hexdigest()
    assert tree["z.parquet"].lfs.size == len(LARGE)


def test_large_files_are_stored_elsewhere_without_the_token(hub, tmp_path):
    """The hub redirects to a signed address, which refuses a request with another authorization.

    Source (read): _get_metadata_or_catch_error in huggingface_hub/file_download.py.
    """
    hub.add("org/set", {"z.parquet": LARGE}, private=False)
    path = api(hub).hf_hub_download("org/set", "z.parquet", repo_type="dataset", cache_dir=tmp_path)
    assert Path(path).read_bytes() == LARGE
    [oid] = hub.large
    request = urllib.request.Request(f"{hub.url}/storage/{oid}", headers={"Authorization": f"Bearer {WRITER}"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)


def test_only_the_owners_token_that_writes_creates_and_commits(hub):
    """Source (read): https://huggingface.co/docs/hub/security-tokens; create_repo in huggingface_hub/hf_api.py."""
    for token, name in ((READER, MODEL), (WRITER, "org/model")):
        with pytest.raises(HfHubHTTPError) as caught:
            api(hub, token).create_repo(name, private=True)
        assert caught.value.response.status_code == 403
    api(hub).create_repo(MODEL, private=True)
    with pytest.raises(HfHubHTTPError) as caught:
        api(hub).create_repo(MODEL)
    assert caught.value.response.status_code == 409
    with pytest.raises(HfHubHTTPError) as caught:
        commit(hub, {"a.txt": b"x"}, READER)
    assert caught.value.response.status_code == 403


def test_a_commit_follows_the_one_that_it_names(hub):
    """Another parent than the last commit: 412.

    Source (read): test_create_commit_conflict in tests/test_hf_api.py of huggingface_hub.
    """
    api(hub).create_repo(MODEL)
    first = api(hub).model_info(MODEL).sha
    commit(hub, {"a.txt": b"x"}, parent_commit=first)
    with pytest.raises(HfHubHTTPError) as caught:
        commit(hub, {"a.txt": b"y"}, parent_commit=first)
    assert caught.value.response.status_code == 412
    assert hub.repositories["model", MODEL].at("main").files["a.txt"].data == b"x"


def test_large_files_are_uploaded_before_their_commit(hub):
    """A pointer to a file that was not uploaded is refused; what is there is not uploaded again.

    Source (read): https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md; _upload_lfs_files of the client.
    """
    api(hub).create_repo(MODEL)
    commit(hub, {"a.bin": LARGE, "empty.bin": b""})
    assert hub.repositories["model", MODEL].at("main").files["a.bin"].large
    before = hub.faults.history.count(f"huggingface PUT /storage/{next(iter(hub.large))}")
    commit(hub, {"b.bin": LARGE})
    assert hub.faults.history.count(f"huggingface PUT /storage/{next(iter(hub.large))}") == before == 1
    hub.large.clear()
    lost = CommitOperationAdd(path_in_repo="c.bin", path_or_fileobj=LARGE)
    lost._upload_mode, lost._is_uploaded, lost._should_ignore = "lfs", True, False
    with pytest.raises(BadRequestError, match="does not exist"):
        api(hub).create_commit(MODEL, [lost], commit_message="Add")


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("license: mine", '"license" must be one of'),
        ("model-index: [{name: m, results: [{task: {type: t}, metrics: [{type: a, value: 1}]}]}]", "dataset.type"),
        (
            "model-index: [{name: m, results: [{task: {type: t}, dataset: {type: d, name: d}, metrics: [{type: a}]}]}]",
            "metrics.value",
        ),
    ],
)
def test_a_card_with_metadata_of_another_form_is_refused(hub, card, problem):
    """Source (read): https://github.com/huggingface/hub-docs/blob/main/modelcard.md; _validate_yaml of the client."""
    api(hub).create_repo(MODEL)
    with pytest.raises(ValueError, match=problem):
        commit(hub, {"README.md": f"---\n{card}\n---\nText\n".encode()})


def test_other_requests_are_not_imitated(hub):
    """A request that Slipway does not make fails its test.

    Source (read): CONTRIBUTING.md: a fake answers other requests with 501.
    """
    with pytest.raises(HfHubHTTPError) as caught:
        next(iter(api(hub).list_models(author=OWNER)))
    assert caught.value.response.status_code == 501
