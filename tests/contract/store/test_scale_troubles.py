"""What is decided is written down first, and mended whatever gets lost: replies, this process, the provider."""

from dataclasses import replace

import pytest
from tests.fixtures.fleet_rig import POLICY, FleetRig

from giornata.control.fleets.scale import scale_fleet
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.store import schema


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    return FleetRig(rig)


@pytest.mark.parametrize("verb", ["up", "down", "reallocate"])
def test_a_lost_reply_is_mended_by_the_next_turn_and_doubles_nothing(fleet_rig, rig, verb):
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    if verb == "up":
        fleet_rig.claim(instance)
        for _ in range(2):
            rig.add_job()
    elif verb == "down":
        with rig.store.begin() as tx:
            tx.connection.execute(schema.jobs.update().values(state="canceled"))
        fleet_rig.claim(instance)
        rig.clock.advance_s(61)
        fleet_rig.turn()
    else:
        fleet_rig.govern(replace(POLICY, max_nodes=1, billed_startup_timeout_s=30))
        rig.clock.advance_s(31)
    fleet_rig.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        fleet_rig.turn()
    assert "lost" in fleet_rig.row()["trouble"]
    fleet_rig.turns(5)
    assert fleet_rig.row()["trouble"] == ""
    assert fleet_rig.row()["told"] == fleet_rig.row()["desired"] == len(fleet_rig.present())
    assert len(fleet_rig.present()) == {"up": 3, "down": 0, "reallocate": 1}[verb]
    if verb == "reallocate":
        assert fleet_rig.present() != [instance]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_crash_around_the_call_is_mended_by_the_next_turn(fleet_rig, rig, point):
    fleet_rig.turn()
    rig.add_job()

    class Crash(BaseException):
        """The process ends here."""

    asked = fleet_rig.provider.desired

    def crashing(nodes, *, leaving=()):
        if point == "after":
            asked(nodes, leaving=leaving)
        raise Crash

    fleet_rig.provider.desired = crashing
    with pytest.raises(Crash):
        scale_fleet(fleet_rig.ctx, "gpu")
    assert (fleet_rig.row()["desired"], fleet_rig.row()["told"]) == (1, None), (
        "written down before the provider was asked"
    )
    fleet_rig.provider.desired = asked
    fleet_rig.turns(2)
    assert (fleet_rig.row()["told"], len(fleet_rig.present())) == (1, 1)


def test_a_refusal_is_shown_and_goes_when_it_is_over(fleet_rig, rig):
    fleet_rig.turn()
    rig.add_job()
    fleet_rig.provider.trouble = FleetRefused("the quota is used up")
    with pytest.raises(FleetRefused):
        scale_fleet(fleet_rig.ctx, "gpu")
    assert fleet_rig.row()["trouble"] == "fleet-refused: the quota is used up"
    fleet_rig.provider.trouble = None
    fleet_rig.turn()
    assert (fleet_rig.row()["trouble"], len(fleet_rig.present())) == ("", 1)


def test_a_server_that_starts_again_has_local_nodes_again(fleet_rig, rig):
    """What the provider has forgotten is asked for again."""
    rig.add_job()
    fleet_rig.turn()
    fleet_rig.provider.wanted = 0
    fleet_rig.provider.instances.clear()
    fleet_rig.turns(63)
    assert len(fleet_rig.present()) == 1
