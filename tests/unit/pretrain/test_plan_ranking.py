"""All choices by price, with what tells them apart."""

from dataclasses import replace
from datetime import date

import pytest

from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.pricing import choice_of, machines_of
from giornata.pretrain.planning.ranking import (
    STORING,
    interruptible,
    mfu_to_beat,
    rank,
    rows_that_decide,
)
from giornata.pretrain.planning.report import ranking_told, reasons, verdict
from giornata.pretrain.planning.request import request_of, schedule_of
from giornata.pretrain.recipes import sd2_base
from giornata.protocol.pretraining import Mode

FACTS = load_facts()
SEED = {**schedule_of(sd2_base()), "prices": "seed", "trainers": ["4xp4de"], "encoders": ["g5.2xlarge"]}


def ranked(**changes):
    return rank(request_of(schedule_of(sd2_base()) | changes), FACTS)


def by_mode(**changes):
    ranking = rank(request_of(SEED | changes), FACTS)
    return {choice.mode: choice for choice in ranking.choices}


def test_choices_are_sorted_and_every_mode_and_cluster_is_there_once():
    ranking = ranked()
    totals = [round(choice.bill.total_usd) for choice in ranking.choices]
    assert totals == sorted(totals)
    names = [(choice.machines.instances, choice.machines.trainer.name, choice.mode) for choice in ranking.choices]
    assert len(names) == len(set(names)) == 6 * 4
    assert ranking.best is ranking.choices[0]


def test_the_trainers_part_is_table_4_in_every_mode_that_does_not_encode_on_them():
    modes = by_mode()
    for mode in (Mode.OFFLINE, Mode.ONLINE, Mode.HYBRID):
        assert round(modes[mode].bill.trainer_usd) == 67_406
        assert not modes[mode].estimated
    assert modes[Mode.COLOCATED].bill.trainer_usd > 1.4 * 67_406
    assert modes[Mode.COLOCATED].estimated


def test_plan_encoder_count_depends_on_mode_and_headroom():
    modes = by_mode(headroom=1.0)
    assert [phase.encoders for phase in modes[Mode.ONLINE].phases] == [59, 49]
    assert [phase.encoders for phase in modes[Mode.HYBRID].phases] == [9, 2]
    assert [phase.encoders for phase in modes[Mode.OFFLINE].phases] == [0, 0]
    with_headroom = by_mode()
    assert [phase.encoders for phase in with_headroom[Mode.ONLINE].phases] == [64, 54]


def test_plan_stored_bytes_count_latents_and_text_by_mode():
    modes = by_mode()
    rows = (1_126_400_000, 1_740_800_000)
    assert modes[Mode.OFFLINE].stored_bytes == rows[0] * (16_384 + 157_696) + rows[1] * (65_536 + 157_696)
    assert modes[Mode.HYBRID].stored_bytes == rows[0] * 16_384 + rows[1] * 65_536
    assert modes[Mode.ONLINE].stored_bytes == modes[Mode.COLOCATED].stored_bytes == 0


def test_hybrid_stores_a_tenth_of_offline_at_256_pixels():
    phases = [{"samples": 1_126_400_000, "resolution": 256, "global_batch_size": 4096}]
    modes = by_mode(phases=phases)
    assert modes[Mode.HYBRID].stored_bytes / modes[Mode.OFFLINE].stored_bytes == pytest.approx(0.094, abs=0.001)


def test_encoding_before_costs_the_rows_and_beside_costs_the_samples():
    once, half = by_mode(), by_mode(dataset_rows=563_200_000)
    assert once[Mode.OFFLINE].bill.precompute_usd == pytest.approx(3723 + 21_036, abs=2)
    the_vae = 3723 * 272.7 / 317.8 + 21_036 * 1116.7 / 1161.8
    assert once[Mode.HYBRID].bill.precompute_usd == pytest.approx(the_vae, abs=2)
    by_rows = half[Mode.OFFLINE].bill.precompute_usd
    assert by_rows == pytest.approx(3723 / 2 + 21_036 * 563.2 / 1740.8, abs=2)
    assert half[Mode.ONLINE].bill == once[Mode.ONLINE].bill
    assert half[Mode.OFFLINE].stored_bytes < once[Mode.OFFLINE].stored_bytes / 2


def test_encoding_before_takes_time_and_its_price_does_not_depend_on_how_many_do_it():
    few, many = by_mode(encoding_instances=10), by_mode(encoding_instances=100)
    assert few[Mode.OFFLINE].bill.encoding_hours == pytest.approx(10 * many[Mode.OFFLINE].bill.encoding_hours)
    assert few[Mode.OFFLINE].bill.total_usd == pytest.approx(many[Mode.OFFLINE].bill.total_usd)


def test_machines_that_are_away_are_more_and_cost_the_same():
    there, away = by_mode(headroom=1.0), by_mode(headroom=1.0, availability=0.5)
    assert [phase.encoders for phase in away[Mode.ONLINE].phases] == [117, 97]
    assert away[Mode.ONLINE].bill.encoder_usd == pytest.approx(there[Mode.ONLINE].bill.encoder_usd, rel=0.02)
    assert away[Mode.OFFLINE].bill.precompute_usd == there[Mode.OFFLINE].bill.precompute_usd
    assert away[Mode.OFFLINE].bill.encoding_hours == 2 * there[Mode.OFFLINE].bill.encoding_hours


def test_storage_and_reading_are_paid():
    month, none = by_mode(), by_mode(storage_months=0)
    gb = month[Mode.OFFLINE].stored_bytes / 1e9
    difference = month[Mode.OFFLINE].bill.storage_usd - none[Mode.OFFLINE].bill.storage_usd
    assert difference == pytest.approx(gb * 0.023)
    dear = by_mode(storage_months=0, read_usd_per_gb=0.02)
    read = sum(phase.read_bytes for phase in dear[Mode.OFFLINE].phases)
    pictures = 1_126_400_000 * 25_000 + 1_740_800_000 * 80_000
    assert read == dear[Mode.OFFLINE].stored_bytes + pictures
    assert sum(phase.read_bytes for phase in dear[Mode.ONLINE].phases) == pictures
    more = dear[Mode.OFFLINE].bill.storage_usd - none[Mode.OFFLINE].bill.storage_usd
    assert more == pytest.approx(read / 1e9 * 0.02)


def test_the_seeds_smaller_gpus_are_found_to_be_cheaper():
    ranking = ranked(prices="seed", trainers=["4xp4de", "2xp4d"], modes=["online"], encoders=["g5.2xlarge"])
    assert [choice.machines.trainer.short for choice in ranking.choices] == ["p4d", "p4de"]
    cheaper = ranking.choices[0].bill
    assert cheaper.gpu_hours == pytest.approx(11_331, abs=1)
    assert cheaper.trainer_usd == pytest.approx(46_416, abs=1)


def test_plan_choice_without_price_is_left_out_and_named():
    ranking = ranked(prices="seed")
    assert {choice.machines.trainer.short for choice in ranking.choices} == {"p4de", "p4d"}
    assert any("4xp5en.48xlarge is left out" in text for text in ranking.left_out)
    priced = ranked(prices="seed", trainers=["4xp5en"], usd_per_hour={"p5en": 40.0})
    assert priced.best.machines.trainer_offer.usd_per_hour == 40
    nothing = ranked(prices="seed", trainers=["4xp5en"])
    assert (nothing.best, reasons(nothing), ranking_told(nothing)["choices"]) == (None, [], [])


def test_given_rates_and_prices_win():
    rates = [
        {"gpu": "H200", "gpus": 32, "resolution": px, "images_per_s": rate} for px, rate in ((256, 3e4), (512, 7e3))
    ]
    ranking = ranked(trainers=["4xp5en"], rates=rates, modes=["online"], usd_per_hour={"p5en.48xlarge": 20.0})
    best = ranking.best
    assert not best.estimated
    assert best.phases[0].training.basis == "measured: given with the request"
    assert best.bill.trainer_usd == pytest.approx((1_126.4e6 / 3e4 + 1_740.8e6 / 7e3) / 3600 * 80)
    guessed = ranked(trainers=["4xp5en"], modes=["online"], trainer_mfu=0.5)
    assert guessed.best.phases[0].training.mfu == 0.5
    assert guessed.best.estimated


def test_a_given_encoder_rate_wins():
    rates = [{"gpu": "A10G", "resolution": px, "images_per_s": 500.0} for px in (256, 512)]
    faster = by_mode(encoder_rates=rates, headroom=1.0)[Mode.ONLINE]
    assert [phase.encoders for phase in faster.phases] == [12, 3]


def test_plan_choices_of_equal_price_rank_the_faster_first():
    names = [choice.machines.instances for choice in ranked(trainers=["1xp5", "4xp5"], modes=["colocated"]).choices]
    assert names == [4, 1]


def test_h100_at_two_to_three_dollars_and_40_percent_is_the_mark_for_the_same_model():
    for usd, expected in ((2.0, 6740), (3.0, 10_110)):
        ranking = ranked(trainers=["1xlambda-8xh100"], modes=["offline"], usd_per_hour={"lambda-8xh100": 8 * usd})
        assert ranking.best.bill.trainer_usd == pytest.approx(expected, rel=0.005)


def test_encoders_on_the_trainers_own_type_are_tried_too():
    ranking = ranked(trainers=["4xp5"], modes=["offline"])
    assert ranking.best.machines.encoder.name == "p5.48xlarge"
    assert ranking.best.bill.encoding_hours == pytest.approx(ranking.best.bill.precompute_usd / (4 * 55.04)), (
        "the trainers' own instances encode"
    )


def test_the_mfu_down_to_which_an_estimate_stays_ahead():
    choice = ranked(trainers=["4xp5"], modes=["online"]).best
    usd = choice.bill.total_usd + choice.bill.trainer_usd
    assert mfu_to_beat(choice, usd) == pytest.approx(0.2)
    assert mfu_to_beat(choice, choice.bill.total_usd) == pytest.approx(0.4)
    assert mfu_to_beat(choice, choice.bill.encoder_usd) is None


def test_reasons_say_what_is_estimated_and_what_is_not():
    estimated = " ".join(reasons(ranked()))
    assert "a guess" in estimated
    assert "stays cheaper down to an MFU of" in estimated
    assert "Not in any total: the pictures themselves" in estimated
    known = " ".join(reasons(ranked(trainers=["2xp4d"], modes=["online"])))
    assert "published: seed, table 3a" in known
    assert "Measure before you rent" in estimated
    assert "Measure before you rent" not in known


def test_reasons_compare_with_the_fastest():
    said = reasons(ranked())
    assert any(text.startswith("The fastest is 32 H100 (4 p5), online: 4.4 days, not 29.2") for text in said)
    alone = reasons(ranked(trainers=["4xp5"], modes=["online"]))
    assert not any(text.startswith("The fastest") for text in alone)


def test_a_choice_of_trainers_that_was_not_checked_is_refused():
    request = replace(request_of(SEED), trainers=("four p4de",))
    with pytest.raises(KeyError, match="the facts have no row"):
        list(machines_of(request, FACTS))


def test_parts_are_the_total():
    for choice in ranked().choices:
        bill = choice.bill
        parts = bill.trainer_usd + bill.encoder_usd + bill.precompute_usd + bill.storage_usd
        assert bill.total_usd == pytest.approx(parts)
        assert bill.training_hours == pytest.approx(sum(phase.hours for phase in choice.phases))


def test_plain_values_for_json_hold_every_choice():
    told = ranking_told(ranked())
    assert len(told["choices"]) == 24
    first = told["choices"][0]
    assert first["total_usd"] == min(choice["total_usd"] for choice in told["choices"])
    assert first["phases"][0]["training"]["estimated"] is True


def test_plan_choice_of_given_machines_and_mode_is_priced_alone():
    request = request_of(SEED)
    machines = next(each for each in machines_of(request, FACTS) if not isinstance(each, str))
    assert choice_of(request, FACTS, machines, Mode.ONLINE).name == "4xp4de.24xlarge online g5.2xlarge"
    assert choice_of(request, FACTS, machines, Mode.COLOCATED).name == "4xp4de.24xlarge colocated"


@pytest.mark.parametrize("changes", [{}, {"prices": "seed"}, {"trainers": ["4xp4de"], "encoders": ["g5.2xlarge"]}])
def test_the_ranking_flips_at_the_number_of_rows_that_is_told(changes):
    found = rows_that_decide(ranked(**changes))
    below, above = (ranked(**changes, dataset_rows=round(found.rows * factor)).best for factor in (0.999, 1.001))
    assert (below.mode in STORING, above.mode in STORING) == (True, False)
    assert (below.name, above.name) == (found.below.name, found.above.name)


def test_ranking_of_one_kind_of_mode_has_no_turning_point():
    assert rows_that_decide(ranked(modes=["online", "colocated"])) is None
    assert rows_that_decide(ranked(modes=["offline"])) is None
    assert rows_that_decide(ranked(prices="seed", trainers=["4xp5en"])) is None


def test_the_verdict_names_the_cheapest_the_difference_and_the_rows_that_decide():
    configured = {"mode": "hybrid", "trainers": "4xp5.48xlarge", "encoders": [8, 8]}
    first, second = verdict(ranked(configured=configured))
    assert "cheapest is 8 H100 (1 lambda-8xh100), colocated: ~$22,350 in 29.2 days" in first
    assert "~$46,552 in 7.1 days, costs $24,202 more (2.1 times as much)" in first
    assert "(1 use per row)" in second and "Below 605 million rows (more than 4.7 uses per row)" in second
    assert "600,000,000 (4.8 uses per row)" in verdict(ranked(dataset_rows=600_000_000))[1]


def test_an_h100_encodes_cheaper_than_an_a10g_and_a_4090_cheaper_than_both():
    (said,) = [text for text in reasons(ranked()) if text.startswith("To encode a million pictures")]
    for part in ("$1.19 on lambda-8xh100", "$3.31 on g5.2xlarge", "$0.59 on saladcloud-rtx4090 (interruptible)"):
        assert part in said


def test_interruptible_trainers_are_compared_with_the_others():
    taken = interruptible(ranked())
    assert taken.best.machines.trainer_offer.term == "interruptible"
    assert taken.best.name == "1xp5en.48xlarge colocated"
    assert any(text.startswith("On interruptible machines (AWS)") for text in reasons(ranked()))
    assert interruptible(ranked(prices="seed")) is None
    assert not any("interruptible machines" in text for text in reasons(ranked(trainer_term="interruptible")))


def test_machines_with_an_interruptible_price_alone_are_priced_by_it():
    only = ranked(trainers=["1xp5"], encoders=["saladcloud-rtx4090"], modes=["online"]).best
    assert (only.machines.encoder_offer.usd_per_hour, only.machines.encoder_offer.term) == (0.33, "interruptible")


def test_prices_of_more_than_four_months_are_warned_of():
    def warned(today):
        ranking = rank(request_of(schedule_of(sd2_base())), FACTS, today=today)
        return " ".join(text for text in reasons(ranking) if text.startswith("Prices older than 4 months"))

    assert "p5.48xlarge" not in warned(date(2026, 11, 22)) and "saladcloud-l40s (2025-07-07)" in warned(
        date(2026, 11, 22)
    )
    assert "saladcloud-rtx4090" not in warned(date(2026, 11, 22))
    assert "p5.48xlarge (2026-11-09)" in warned(date(2027, 4, 1))
    assert warned(None) == warned(date(2023, 1, 1)) == ""
