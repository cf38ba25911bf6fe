"""What a result may be called, and what it may say it is. What was kept before these rules stays within reach."""

import httpx
import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from tests.fixtures.users import ANN, claim, have, move_in, new_job

from giornata.control.attempts.commit import commit_artifact
from giornata.control.context import Context
from giornata.control.jobs.reading.job_outputs import read_artifacts
from giornata.control.ports.blobs import BlobRequest
from giornata.protocol.node.work import CommitArtifact
from giornata.store import schema
from giornata.store.database.database import Database

OCTETS = "application/octet-stream"
GOOD = {"name": "a.png", "sha256": "0" * 64, "size_bytes": 1}


@pytest.mark.parametrize("name", [".", ".."])
def test_a_result_is_not_called_like_a_folder(name: str) -> None:
    with pytest.raises(ValidationError, match="names a folder; a result is a file"):
        CommitArtifact.model_validate(GOOD | {"name": name})


@pytest.mark.parametrize("name", ["...", ".hidden", "..a", "a..", "a. b"])
def test_dots_are_fine_otherwise(name: str) -> None:
    assert CommitArtifact.model_validate(GOOD | {"name": name}).name == name


@pytest.mark.parametrize(
    "media_type",
    [
        "image/png\r\nX-Evil: 1",
        "image/png\n",
        "image",
        "",
        "a/b/c",
        "text/plain; charset",
        "text/pl\u00e4in",
        "a/b;\x00=c",
    ],
)
def test_artifact_with_invalid_media_type_is_refused(media_type: str) -> None:
    with pytest.raises(ValidationError, match="media_type"):
        CommitArtifact.model_validate(GOOD | {"media_type": media_type})


@pytest.mark.parametrize(
    "media_type",
    ["image/png", "application/vnd.x+json", "text/plain; charset=utf-8", 'text/plain;charset="utf-8"', OCTETS],
)
def test_artifact_with_valid_media_type_is_accepted(media_type: str) -> None:
    assert CommitArtifact.model_validate(GOOD | {"media_type": media_type}).media_type == media_type


def test_a_result_of_long_ago_can_be_fetched(ctx: Context, store: Database) -> None:
    move_in(ctx)
    job = new_job(ctx)
    lease = claim(ctx)
    sha256 = have(ctx, ANN, b"bytes")
    commit = CommitArtifact(name="a", sha256=sha256, size_bytes=5, media_type="image/png")
    commit_artifact(ctx, lease.attempt_id, commit)
    with store.begin() as tx:
        as_before = {"name": "..", "media_type": "image/png\r\nX-Evil: 1"}
        tx.connection.execute(sa.update(schema.artifacts).values(as_before))
    (artifact,) = read_artifacts(ctx, ANN, job.id).items
    assert (artifact.name, artifact.media_type) == ("..", OCTETS)
    url = httpx.URL(artifact.request.url)
    key = url.path.removeprefix("/v1/blobs/")
    opened = ctx.blobs.open_get(BlobRequest(method="GET", key=key, query=dict(url.params)))  # type: ignore[attr-defined]
    assert (opened.media_type, opened.path.read_bytes()) == (OCTETS, b"bytes")


def test_a_url_that_was_signed_long_ago_is_good_too(ctx: Context) -> None:
    ctx.blobs.write("ann/a", [b"bytes"])
    signed = httpx.URL(ctx.blobs.sign_get("ann/a", expires_in_s=60, media_type="image/png\r\nX-Evil: 1").url)
    asked = BlobRequest(method="GET", key="ann/a", query=dict(signed.params))
    assert ctx.blobs.open_get(asked).media_type == OCTETS  # type: ignore[attr-defined]
