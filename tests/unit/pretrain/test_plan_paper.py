"""The seed's tables beside ours."""

import pytest

from giornata.pretrain.planning.facts import Mark, load_facts
from giornata.pretrain.planning.paper import LEFT_OUT, headline, paper, table_3

FACTS = load_facts()
ROWS = {(row.table, row.what): row for row in paper(FACTS)}


def test_the_headline_is_the_published_table_to_the_dollar():
    found = headline(FACTS)
    assert found.table4_on_demand_usd in (67_405, 67_406)
    assert found.table4_reserved_usd == 39_511
    assert found.a100_hours == 13_165
    assert (found.encoders_256, found.encoders_512) == (59, 49)


def test_what_is_compared_agrees():
    """Table 1 is a model of another loader, and its source contradicts itself at 512 pixels."""
    compared = [row for row in ROWS.values() if row.difference is not None and row.table != "1"]
    assert len(compared) == 6 + 3 + 11
    for row in compared:
        assert abs(row.difference) < (0.0045 if row.what == "encoding, once" else 0.003), row


def test_every_figure_of_theirs_is_marked():
    for row in ROWS.values():
        assert (row.theirs is None) == (row.mark is None), row
    marks = {row.mark for row in ROWS.values()}
    assert {Mark.PUBLISHED, Mark.RECOVERED, Mark.CALCULATED} <= marks
    assert ROWS["4", "GPU hours"].mark is Mark.RECOVERED
    assert ROWS["2", "loader, total"].mark is Mark.CALCULATED
    assert ROWS["2", "offline, total"].mark is Mark.PUBLISHED


def test_what_the_published_price_leaves_out_is_shown():
    ours = {what: row.ours for (table, what), row in ROWS.items() if table == LEFT_OUT}
    assert ours["encoding phase 2, at its price"] == pytest.approx(12_334, abs=1)
    assert ours["without storage, on demand"] == pytest.approx(81_900, rel=0.001)
    assert ours["without storage, one-year terms"] == pytest.approx(54_000, rel=0.001)
    assert ours["a month of storage, phase 1"] == pytest.approx(4298, abs=1)
    assert ours["a month of storage, phase 2"] == pytest.approx(7626, abs=1)
    assert "187 TB" in ROWS[LEFT_OUT, "a month of storage, phase 1"].note
    assert "332 TB" in ROWS[LEFT_OUT, "a month of storage, phase 2"].note
    assert ours["16 A100-40G instead"] == pytest.approx(46_400, rel=0.001)
    assert "11,331 A100-h" in ROWS[LEFT_OUT, "16 A100-40G instead"].note


def test_forty_encoders_are_named_as_too_few():
    for pixels, share in ((256, "69%"), (512, "83%")):
        row = ROWS["encoders", f"online at the final rate, {pixels} px"]
        assert row.theirs == 40 < row.ours
        assert share in row.note
    assert "$3,906 of trainers idle" in ROWS["encoders", "online at the final rate, 256 px"].note


def test_the_seeds_mfu_by_step():
    found = {(row.table, row.step): row.mfus for row in table_3(FACTS)}
    expected = {
        ("3b", "DDP over TCP"): (0.085, 0.094),
        ("3b", "+ EFA"): (0.220, 0.248),
        ("3b", "+ FSDP"): (0.271, 0.282),
        ("3b", "+ torch.compile"): (0.319, 0.325),
        ("3a", "+ torch.compile"): (0.314, 0.388),
    }
    for key, mfus in expected.items():
        assert tuple(found[key].values()) == pytest.approx(mfus, abs=0.0006), key
    assert len(found) == 8
