"""Uses that trainers wrote down, counted by a query: the same as a counter in memory has them."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from giornata.pretrain.feeding.ledger import Use
from giornata.pretrain.feeding.rows_of_phase import NumberSet, RowsOfPhase
from giornata.pretrain.run_state.proof import Counted, Trace, count_uses

STEPS, TRAINERS = 9, 2
Line = tuple[int, int, list[Use]]
"""(step, phase, uses)."""


def phases() -> list[RowsOfPhase]:
    """Of an epoch and a half, with a row of validation left out of a shard's middle, and of less than one."""
    left_out = ((1, NumberSet.of_spans([(2, 3)])),)
    return [
        RowsOfPhase(seed=3, phase=place, samples=samples, shard_rows=(7, 5, 6), left_out=left_out)
        for place, samples in enumerate((26, 11))
    ]


def written(folder: Path, attempts: Sequence[tuple[int, Sequence[Line]]]) -> None:
    """(step that it went on from, lines) of each attempt, dealt out to two trainers."""
    for now_ms, (from_step, lines) in enumerate(attempts):
        for rank in range(TRAINERS):
            trace = Trace(folder, from_step=from_step, now_ms=now_ms, rank=rank)
            for step, phase, uses in lines:
                trace(phase, step, uses[rank::TRAINERS])


def drawn(seed: int) -> list[tuple[int, list[Line]]]:
    """Attempts that each go on from an earlier step; some uses come often, some not at all."""
    draw = random.Random(seed)
    planned = [[(each.number, row) for each in phase.portions() for row in each.rows] for phase in phases()]
    attempts, begun = list[tuple[int, list[Line]]](), 0
    while begun < STEPS:
        ended = draw.randint(begun + 1, STEPS)
        lines = [(step, int(step > 5), draw.choices(planned[step > 5], k=5)) for step in range(begun + 1, ended + 1)]
        attempts.append((begun, lines))
        begun = STEPS if ended == STEPS else draw.randint(begun, ended)
    return attempts


@pytest.mark.parametrize("seed", range(12))
def test_as_a_counter_of_all_of_them_has_it(tmp_path: Path, seed: int) -> None:
    attempts, until_step = drawn(seed), STEPS - seed % 3
    written(tmp_path / "trace", attempts)
    kept, undone = Counter[tuple[int, int, int]](), 0
    for place, (_, lines) in enumerate(attempts):
        kept_until = min((begun for begun, _ in attempts[place + 1 :]), default=STEPS)
        undone += sum(len(uses) for step, _, uses in lines if step > kept_until)
        safe = [line for line in lines if line[0] <= min(kept_until, until_step)]
        kept.update((phase, *use) for _, phase, uses in safe for use in uses)
    once, more = (sum(test(count) for count in kept.values()) for test in (lambda n: n == 1, lambda n: n > 1))
    counted = count_uses(tmp_path / "trace", phases(), until_step=until_step, folder=tmp_path / "spilled")
    assert counted == Counted(once=once, more=more, undone=undone, attempts=len(attempts))


def test_use_counts_without_trace_are_zero(tmp_path: Path) -> None:
    none = count_uses(tmp_path / "trace", phases(), until_step=9, folder=tmp_path)
    assert none == Counted(once=0, more=0, undone=0, attempts=0)


@pytest.mark.parametrize(
    ("phase", "use"),
    [(0, (0, 99)), (0, (50, 0)), (1, (3, 0)), (2, (0, 0))],
    ids=["beyond its shard", "beyond the last portion", "beyond the samples", "beyond the last phase"],
)
def test_use_outside_the_plan_raises_error(tmp_path: Path, phase: int, use: Use) -> None:
    written(tmp_path / "trace", [(0, [(1, phase, [use])])])
    with pytest.raises(RuntimeError, match="not of this run"):
        count_uses(tmp_path / "trace", phases(), until_step=1, folder=tmp_path)


def test_a_row_of_validation_was_not_planned(tmp_path: Path) -> None:
    (portion,) = (each.number for each in phases()[0].portions() if (each.shard, each.epoch) == (1, 0))
    written(tmp_path / "trace", [(0, [(1, 0, [(portion, 2)])])])
    with pytest.raises(RuntimeError, match=rf"\({portion}, 2\) of phase 0"):
        count_uses(tmp_path / "trace", phases(), until_step=1, folder=tmp_path)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    use = next((each.number, row) for each in phases()[0].portions() for row in each.rows)
    written(folder := tmp_path / "a [run]*" / "trace", [(0, [(1, 0, [use])])])
    assert count_uses(folder, phases(), until_step=1, folder=tmp_path).once == 1


def test_trace_line_cut_off_by_killed_trainer_is_not_counted(tmp_path: Path) -> None:
    use = next([each.number, row] for each in phases()[0].portions() for row in each.rows)
    whole = (
        json.dumps({"from": 0, "ms": 5, "pid": 1}) + "\n" + json.dumps({"step": 1, "phase": 0, "uses": [use]}) + "\n"
    )
    (tmp_path / "cut.jsonl").write_text(whole + '{"step": 2, "phase": 0, "uses": [[')
    (tmp_path / "empty.jsonl").touch()
    counted = count_uses(tmp_path, phases(), until_step=9, folder=tmp_path)
    assert counted == Counted(once=1, more=0, undone=0, attempts=1)
