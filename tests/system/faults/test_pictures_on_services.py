"""Leases of pictures on PostgreSQL and S3: signed checksums, listings of a prefix, and nodes that die."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.fixtures.postgres import migrated_postgres, postgres_server, postgres_template  # noqa: F401
from tests.fixtures.seaweed import Seaweed, seaweed  # noqa: F401
from tests.system.conftest import PATIENCE_S
from tests.system.faults.ordered_pictures import OrderedPictures
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import Bucket, InstallationSetup
from tests.system.faults.test_model_faults import die_while_fetching, lora  # noqa: F401
from tests.system.faults.test_picture_faults import PICTURES, QUICK, flipped, fresh, report

BAD_DIGEST = 400
CHECKSUM = "X-Amz-SignedHeaders=[^&]*x-amz-checksum-sha256"


@pytest.fixture(scope="module")
def rig(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_template: str,  # noqa: F811
    seaweed: Seaweed,  # noqa: F811
) -> Iterator[Rig]:
    """The server has its rows in PostgreSQL, and its bytes in a bucket that it reaches by the storage proxy."""
    with migrated_postgres(postgres_template) as database:
        setup = InstallationSetup(database=database, bucket=Bucket(seaweed=seaweed, name=seaweed.bucket))
        with running_rig(tmp_path_factory.mktemp("rig"), setup) as running:
            yield running


def put(rig: Rig, **what: Any) -> Trap:
    """An upload by a URL that signs the checksum of its object."""
    return Trap("PUT", f"{rig.bytes.signed}.*{CHECKSUM}", **what)


def listing(rig: Rig, **what: Any) -> Trap:
    """The server's look at what storage has of a lease."""
    assert isinstance(rig.bytes, Bucket)
    return Trap("GET", f"^/{rig.bytes.name}/?[?](?=.*list-type=2)(?=.*prefix=[^&]+)", **what)


def test_pictures_of_a_node_that_dies_between_upload_and_report_are_drawn_by_another(rig: Rig) -> None:
    fresh(rig)
    trap = rig.control.set(report(hold=True))
    order = OrderedPictures(rig, prompts=PICTURES)
    victim = rig.start_drawing_node(**QUICK)
    assert trap.caught.wait(PATIENCE_S), order.story()
    victim.kill_all()
    rig.start_drawing_node(**QUICK)
    trap.release(cut=True)
    order.finish()


def test_bytes_that_differ_from_their_signed_checksum_are_refused_by_storage_and_sent_again(rig: Rig) -> None:
    fresh(rig)
    trap = rig.storage.set(put(rig, spoil_request=flipped))
    order = OrderedPictures(rig, prompts=PICTURES)
    rig.start_drawing_node(**QUICK)
    order.finish()
    assert trap.statuses == [BAD_DIGEST]


def test_upload_that_storage_has_forgotten_is_found_out_by_the_listing_and_made_again(rig: Rig) -> None:
    fresh(rig)
    forgotten, listed = rig.storage.set(put(rig, status=200)), rig.storage.set(listing(rig))
    order = OrderedPictures(rig, prompts=PICTURES)
    rig.start_drawing_node(**QUICK)
    order.finish()
    assert forgotten.caught.is_set()
    assert listed.caught.is_set()


def test_listing_that_fails_costs_no_picture(rig: Rig) -> None:
    fresh(rig)
    trap = rig.storage.set(listing(rig, status=503, times=2))
    order = OrderedPictures(rig, prompts=PICTURES)
    rig.start_drawing_node(**QUICK)
    order.finish()
    assert trap.caught.is_set()


def test_node_that_dies_while_it_fetches_a_model_from_a_bucket_leaves_its_pictures_to_the_next(
    rig: Rig,
    lora: str,  # noqa: F811
) -> None:
    fresh(rig)
    die_while_fetching(rig, lora, is_same_disk=False)
