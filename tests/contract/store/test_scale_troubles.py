"""What is decided is written down first, and mended whatever gets lost: replies, this process, the provider."""

from dataclasses import replace

import pytest
from tests.fixtures.yard import POLICY, Yard

from giornata.control.fleets.scale import scale_fleet
from giornata.domain.errors import FleetRefused, FleetUnavailable
from giornata.store import schema


@pytest.fixture
def yard(shop) -> Yard:
    return Yard(shop)


@pytest.mark.parametrize("verb", ["up", "down", "reallocate"])
def test_a_lost_reply_is_mended_by_the_next_turn_and_doubles_nothing(yard, shop, verb):
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    if verb == "up":
        yard.claim(instance)
        for _ in range(2):
            shop.add_job()
    elif verb == "down":
        with shop.store.begin() as tx:
            tx.connection.execute(schema.jobs.update().values(state="canceled"))
        yard.claim(instance)
        shop.clock.advance_s(61)
        yard.turn()
    else:
        yard.govern(replace(POLICY, max_nodes=1, billed_startup_timeout_s=30))
        shop.clock.advance_s(31)
    yard.provider.lost_reply = True
    with pytest.raises(FleetUnavailable):
        yard.turn()
    assert "lost" in yard.row()["trouble"]
    yard.turns(5)
    assert yard.row()["trouble"] == ""
    assert yard.row()["told"] == yard.row()["desired"] == len(yard.present())
    assert len(yard.present()) == {"up": 3, "down": 0, "reallocate": 1}[verb]
    if verb == "reallocate":
        assert yard.present() != [instance]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_crash_around_the_call_is_mended_by_the_next_turn(yard, shop, point):
    yard.turn()
    shop.add_job()

    class Crash(BaseException):
        """The process ends here."""

    asked = yard.provider.desired

    def crashing(nodes, *, leaving=()):
        if point == "after":
            asked(nodes, leaving=leaving)
        raise Crash

    yard.provider.desired = crashing
    with pytest.raises(Crash):
        scale_fleet(yard.ctx, "gpu")
    assert (yard.row()["desired"], yard.row()["told"]) == (1, None), "written down before the provider was asked"
    yard.provider.desired = asked
    yard.turns(2)
    assert (yard.row()["told"], len(yard.present())) == (1, 1)


def test_a_refusal_is_shown_and_goes_when_it_is_over(yard, shop):
    yard.turn()
    shop.add_job()
    yard.provider.trouble = FleetRefused("the quota is used up")
    with pytest.raises(FleetRefused):
        scale_fleet(yard.ctx, "gpu")
    assert yard.row()["trouble"] == "fleet-refused: the quota is used up"
    yard.provider.trouble = None
    yard.turn()
    assert (yard.row()["trouble"], len(yard.present())) == ("", 1)


def test_a_server_that_starts_again_has_local_nodes_again(yard, shop):
    """What the provider has forgotten is asked for again."""
    shop.add_job()
    yard.turn()
    yard.provider.wanted = 0
    yard.provider.instances.clear()
    yard.turns(63)
    assert len(yard.present()) == 1
