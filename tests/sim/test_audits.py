"""Replay audits of a small fleet with liars: what the full size of `giornata simulate audits` shows, in seconds."""

from giornata.simulate.audits.audit_cases import LiarCase, LiarFindings, play_liars
from giornata.simulate.audits.audited_fleet import LiarSetting

SMALL = LiarSetting(machines=40, owners=8, liars=0.1, share=0.05, stretches=300)


def played(setting: LiarSetting, *, seed: int = 0) -> LiarFindings:
    return play_liars(LiarCase(name="test", about="", setting=setting), seeds=[seed])


def test_every_liar_is_out_soon_and_no_sound_machine_and_the_cost_is_bounded() -> None:
    found = played(SMALL)
    assert (found.liars, found.liars_left, found.sound_out) == (4, 0, 0)
    assert found.mean_stretches < 3 / SMALL.share
    assert 0.5 * SMALL.share < found.cost <= 1.2 * SMALL.share
    assert found.ok


def test_liars_of_one_owner_who_agree_are_out_and_put_no_sound_machine_out() -> None:
    found = played(LiarSetting(machines=40, owners=8, liars=0.2, share=0.05, stretches=300, agreeing=True))
    assert (found.liars_left, found.sound_out) == (0, 0)


def test_without_audits_no_liar_is_found_and_nothing_is_spent() -> None:
    found = played(LiarSetting(machines=20, owners=4, share=0.0, stretches=50))
    assert (found.liars_left, found.cost) == (found.liars, 0.0)


def test_without_liars_nobody_is_out() -> None:
    found = played(LiarSetting(machines=20, owners=4, liars=0.0, share=0.2, stretches=100))
    assert (found.sound_out, found.undecided, found.liars) == (0, 0, 0)


def test_equal_seeds_give_equal_findings() -> None:
    assert played(SMALL, seed=5) == played(SMALL, seed=5)
