"""Leases of the `generate` kind that cannot be drawn, whole or in part."""

import shutil
from pathlib import Path

import pytest
from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params, sha256_of

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason


def test_pictures_that_cannot_be_drawn_are_named_and_the_others_go_on(tiny_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    each = [
        params(tiny_folder),
        params(tiny_folder, loras=[{"name": "nowhere.safetensors"}]),
        params(tiny_folder, image=sha256_of(broken)),
        params(tiny_folder, image="0" * 64),
        {**params(tiny_folder), "width": 63},
    ]

    told = CountedWorkload().draw(lease(tmp_path, each, [("picture", broken)]))

    assert list(told.pictures) == [(ORDER, 0)]
    reasons = {number: reason for (_, number), (reason, _) in told.failed_pictures.items()}
    assert reasons == {
        1: Reason.BAD_SPEC,
        2: Reason.BAD_DATA,
        3: Reason.BAD_DATA,
        4: Reason.BAD_SPEC,
    }
    assert "nowhere.safetensors" in told.failed_pictures[ORDER, 1][1]


def test_a_base_that_no_node_can_load_fails_each_picture_of_the_lease(tmp_path: Path) -> None:
    each = [params(tmp_path / "nowhere", seed=seed) for seed in range(2)]

    told = CountedWorkload().draw(lease(tmp_path, each))

    assert {reason for reason, _ in told.failed_pictures.values()} == {Reason.BAD_SPEC}
    assert len(told.failed_pictures) == 2
    assert "nowhere does not exist" in told.failed_pictures[ORDER, 1][1]


def test_a_damaged_base_ends_the_lease(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "damaged")
    weights = next((folder / "unet").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])

    with pytest.raises(WorkloadFailed) as failed:
        CountedWorkload().draw(lease(tmp_path, [params(folder)]))

    assert failed.value.reason is Reason.NODE_DOWNLOAD


def test_a_model_that_the_server_no_longer_has_fails_its_picture_with_words(
    tiny_folder: Path, tmp_path: Path
) -> None:
    each = [params(tiny_folder, loras=[{"name": "my-style", "sha256": "0" * 64}]), params(tiny_folder)]

    told = CountedWorkload().draw(lease(tmp_path, each))

    assert list(told.pictures) == [(ORDER, 1)]
    reason, message = told.failed_pictures[ORDER, 0]
    assert (reason, "the server no longer has the file of my-style" in message) == (Reason.BAD_DATA, True)
