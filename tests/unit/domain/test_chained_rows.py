"""The rule of the chain: whatever is done to some rows of a chain, the first row that differs is named."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.accounts.audit_log import FIRST_PREVIOUS, ChainCheck, ChainLink, linked, row_sha256

TEXT = st.text(max_size=8)
VALUES = st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.booleans(), st.none()), max_size=3)
CONTENTS = st.lists(st.tuples(TEXT, VALUES), min_size=2, max_size=8)


def chain_of(contents: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    rows, link = [], ChainLink()
    for target, changes in contents:
        row = linked({"project_id": "p", "target": target, "changes": changes}, link)
        rows.append(row)
        link = ChainLink(number=row["number"], sha256=row["sha256"])
    return rows


def checked(rows: list[dict[str, Any]], head: dict[str, Any], known: ChainLink | None = None) -> ChainCheck:
    check = ChainCheck(known={} if known is None else {"p": known})
    for row in rows:
        check.add(row)
    check.end("p", ChainLink(number=head["number"], sha256=head["sha256"]))
    return check


@given(contents=CONTENTS)
def test_chain_as_it_was_written_is_sound_also_after_a_way_through_json(contents: list[tuple[str, Any]]) -> None:
    rows = [json.loads(json.dumps(row, indent=2)) for row in chain_of(contents)]
    check = checked(rows, rows[-1])
    assert (check.faults, check.rows, check.ends["p"].number) == ({}, len(rows), len(rows))
    assert rows[0]["previous_sha256"] == FIRST_PREVIOUS


@given(contents=CONTENTS, data=st.data())
def test_first_row_that_was_changed_deleted_or_moved_is_named(contents: list[tuple[str, Any]], data: Any) -> None:
    rows = chain_of(contents)
    head, at = rows[-1], data.draw(st.integers(0, len(rows) - 2))
    how = data.draw(st.sampled_from(["changed", "hash forged", "deleted", "moved", "repeated"]))
    if how == "changed":
        rows[at] = {**rows[at], "target": rows[at]["target"] + "!"}
    elif how == "hash forged":
        forged = {**rows[at], "target": rows[at]["target"] + "!"}
        rows[at] = {**forged, "sha256": row_sha256(forged)}
    elif how == "deleted":
        del rows[at]
    elif how == "moved":
        rows[at], rows[at + 1] = rows[at + 1], rows[at]
    else:
        rows.insert(at + 1, rows[at])
    (fault,) = checked(rows, head).first_faults()
    # A forged hash shows in the row after it, which names the old one.
    assert fault.number == at + (2 if how in {"hash forged", "repeated"} else 1)


@given(contents=CONTENTS, data=st.data())
def test_chain_without_its_newest_rows_is_told_by_its_head_or_by_an_earlier_one(
    contents: list[tuple[str, Any]], data: Any
) -> None:
    rows = chain_of(contents)
    kept = data.draw(st.integers(0, len(rows) - 1))
    (fault,) = checked(rows[:kept], rows[-1]).first_faults()
    assert fault.number == kept + 1
    forged = rows[kept - 1] if kept else {"number": 0, "sha256": FIRST_PREVIOUS}
    noted = ChainLink(number=rows[-1]["number"], sha256=rows[-1]["sha256"])
    (fault,) = checked(rows[:kept], forged, noted).first_faults()
    assert fault.number == kept + 1


def test_faults_of_one_chain_hide_none_of_another() -> None:
    check = ChainCheck()
    good, bad = chain_of([("a", {}), ("b", {})]), chain_of([("a", {}), ("b", {})])
    for row in bad:
        check.add({**row, "project_id": "q"})
    for row in good:
        check.add(row)
    assert [(fault.project_id, fault.number) for fault in check.first_faults()] == [("q", 1)]
    assert check.ends["p"].number == 2
