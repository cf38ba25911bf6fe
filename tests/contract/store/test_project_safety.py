"""The policy of a project for unsafe pictures, and how it reaches the nodes."""

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.picture_rig import PictureRig, drawn, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, NODE, ROOT

from giornata.control.memory.process_cache import ORDER_SPEC_MS
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.control.projects.projects import list_projects, set_project_safety
from giornata.domain.errors import Forbidden, NotFound
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.node.pictures import PictureFlag, PictureUploads
from giornata.protocol.project.admin import ROOT_PROJECT, SetSafety

OFF, FLAG, BLOCK = SafetyPolicy


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def set_safety(picture_rig: PictureRig, policy: SafetyPolicy) -> SafetyPolicy | None:
    return set_project_safety(picture_rig.ctx, ROOT, ROOT_PROJECT, SetSafety(safety=policy)).safety


def leased(picture_rig: PictureRig, **claim: int) -> list[tuple[SafetyPolicy, bool]]:
    """The policy of each picture of the next lease, and whether nodes of before check the picture too."""
    return [(each.safety, each.params["safety_checker"]) for each in picture_rig.lease(**claim).pictures]


def test_lease_says_the_stricter_of_what_project_and_order_ask_for(picture_rig: PictureRig) -> None:
    checks = generate_spec() | {"safety_checker": True}
    found = {}
    for policy in SafetyPolicy:
        assert set_safety(picture_rig, policy) is policy
        picture_rig.order()
        picture_rig.order(spec=checks)
        found[policy] = leased(picture_rig)
    assert found == {
        OFF: [(OFF, False), (BLOCK, True)],
        FLAG: [(FLAG, False), (BLOCK, True)],
        BLOCK: [(BLOCK, True), (BLOCK, True)],
    }


def test_change_of_the_policy_holds_for_the_open_pictures_of_an_order(picture_rig: PictureRig) -> None:
    picture_rig.order(pictures=3)
    assert leased(picture_rig, most=1) == [(OFF, False)]
    set_safety(picture_rig, BLOCK)
    assert leased(picture_rig, most=1) == [(BLOCK, True)]


def test_change_by_another_server_process_holds_a_minute_later(picture_rig: PictureRig, clock: ManualClock) -> None:
    picture_rig.order(pictures=3)
    assert leased(picture_rig, most=1) == [(OFF, False)]
    with picture_rig.ctx.store.begin() as tx:
        tx.projects.set_safety(ROOT_PROJECT, BLOCK)
    assert leased(picture_rig, most=1) == [(OFF, False)]
    clock.advance_s(ORDER_SPEC_MS / 1000)
    assert leased(picture_rig, most=1) == [(BLOCK, True)]


def test_blocked_picture_gets_no_place_for_an_upload(picture_rig: PictureRig) -> None:
    picture_rig.order(pictures=2)
    lease = picture_rig.lease()
    files = [drawn(each, "a" * 64, 10) for each in lease.pictures]
    files[0] = files[0].model_copy(update={"flags": int(PictureFlag.BLOCKED)})
    given = picture_uploads(picture_rig.ctx, lease.attempt_id, PictureUploads(pictures=tuple(files)))
    assert [each.number for each in given.uploads] == [lease.pictures[1].number]


def test_only_the_operator_sets_the_policy_and_of_projects_that_exist(picture_rig: PictureRig) -> None:
    assert {each.safety for each in list_projects(picture_rig.ctx, ROOT, None, 100).items} == {OFF}
    for caller in (ANN, NODE):
        with pytest.raises(Forbidden):
            set_project_safety(picture_rig.ctx, caller, ANN.project_id, SetSafety(safety=BLOCK))
    for nobody in ("nobody", "no\u0000body"):
        with pytest.raises(NotFound):
            set_project_safety(picture_rig.ctx, ROOT, nobody, SetSafety(safety=BLOCK))
