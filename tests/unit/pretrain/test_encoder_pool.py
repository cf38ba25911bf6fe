"""How many encoders work beside a run, and when a run corrects it: on sums over steps, without a Ray."""

import io
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.encoding.encoder_actors import WorkTime
from giornata.pretrain.progress_lines import Lines, Words
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.training.encoder_pool import WARM_UP_STEPS, Change, EncoderWatch, encoders_now
from giornata.pretrain.training.progress import Progress, config_digest
from giornata.protocol.pretraining import Mode, PretrainConfig
from giornata.protocol.pretraining_checks import parse

ROWS = 16


def config_of(mode: Mode = Mode.ONLINE, *, most: int | None = 8, trainer_usd: float = 30.0) -> PretrainConfig:
    recipe = sdxl_tiny("somewhere")
    workers = replace(recipe.workers, trainer_usd_per_h=trainer_usd, encoder_usd_per_h=1.0)
    encode = replace(recipe.encode, mode=mode, encoders=2, max_encoders=most, correct_after_s=60.0)
    return replace(recipe, encode=encode, workers=workers)


def watched(
    watch: EncoderWatch,
    progress: Progress,
    *,
    wait: float,
    busy: float,
    steps: int = 30,
    rows_left: int = 10**6,
    first: bool = True,
) -> Change | None:
    """After steps of ten seconds each, with these shares of them."""
    for _ in range(WARM_UP_STEPS if first else 0):  # what the first steps look like counts for nothing
        watch.step(rows=ROWS, lap_s=100.0, waited_s=99.0, encode_s=0.0)
    for _ in range(steps):
        encode_s = busy * 10 * watch.encoders
        watch.step(rows=ROWS, lap_s=10.0, waited_s=wait * 10, encode_s=encode_s)
    return watch.decide(progress, rows_left=rows_left, restart_s=60.0)


def test_starved_trainers_get_more_encoders_and_it_is_written_down() -> None:
    config, progress = config_of(), Progress(step=33)
    change = watched(EncoderWatch(config, progress, trainers=1), progress, wait=0.4, busy=0.97)
    assert change is not None
    assert (change.before, change.encoders, change.step) == (2, 4, 33)
    assert "trainers wait 40.0%" in change.reason
    assert (change.data_wait, change.utilisation) == (pytest.approx(0.4), pytest.approx(0.97))
    kept = Progress.from_json(progress.to_json(), where="a checkpoint")
    assert encoders_now(config, kept, 0) == 4
    assert kept.encoder_changes[0]["reason"] == change.reason
    assert encoders_now(config, kept, 1) == 2, "another phase begins with its own number"
    kept.next_phase()
    assert encoders_now(config, kept, 1) == 2


@pytest.mark.parametrize(("wait", "busy"), [(0.0, 0.8), (0.01, 0.95), (0.4, 0.5)])
def test_fed_trainers_are_left_alone(wait: float, busy: float) -> None:
    """So are those that wait for something else than encoders."""
    progress = Progress()
    assert watched(EncoderWatch(config_of(), progress, trainers=1), progress, wait=wait, busy=busy) is None
    assert progress.encoders is None
    assert progress.encoder_changes == []
    assert [each["encoders"] for each in progress.encoders_seen] == [2]


def test_without_a_bound_nothing_is_corrected() -> None:
    progress = Progress()
    watch = EncoderWatch(config_of(most=None), progress, trainers=1)
    assert not watch.corrects
    assert watched(watch, progress, wait=0.4, busy=0.97) is None
    assert progress.encoders_seen == []


@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.COLOCATED])
def test_modes_without_encoders_beside_the_run_have_none(mode: Mode) -> None:
    watch = EncoderWatch(config_of(mode), Progress(), trainers=1)
    assert (watch.encoders, watch.corrects) == (0, False)
    assert watch.step(rows=ROWS, lap_s=1.0, waited_s=0.0, encode_s=0.0) == {}


def test_it_is_watched_long_enough() -> None:
    progress = Progress()
    watch = EncoderWatch(config_of(), progress, trainers=1)
    assert watched(watch, progress, wait=0.4, busy=0.97, steps=5) is None  # 50 s of 60
    assert progress.encoders_seen == []
    assert watched(watch, progress, wait=0.4, busy=0.97, steps=1, first=False) is not None


def test_a_change_that_cannot_earn_its_restart_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress()
    with caplog.at_level(logging.INFO):
        watch = EncoderWatch(config_of(), progress, trainers=1)
        assert watched(watch, progress, wait=0.4, busy=0.97, rows_left=2 * ROWS) is None
    assert progress.encoders is None
    assert "a restart costs more than is left to save" in caplog.text


def test_what_did_not_pay_is_taken_back_after_a_restart() -> None:
    """The second watch knows of the first one only what lies in the checkpoint."""
    config, progress = config_of(), Progress(step=10)
    assert watched(EncoderWatch(config, progress, trainers=1), progress, wait=0.4, busy=0.97) is not None
    progress = Progress.from_json(progress.to_json(), where="a checkpoint")
    more = EncoderWatch(config, progress, trainers=1)
    assert more.encoders == 4
    back = watched(more, progress, wait=0.4, busy=0.93)
    assert back is not None
    assert (back.encoders, "dearer" in back.reason) == (2, True)
    assert [each["encoders"] for each in progress.encoder_changes] == [4, 2]
    # With more trainers, or for another price, it is another question.
    two = EncoderWatch(config, replace_progress(progress, encoders=4), trainers=2)
    found = watched(two, replace_progress(progress, encoders=4), wait=0.4, busy=0.93)
    assert found is not None
    assert found.encoders > 4


def replace_progress(progress: Progress, **values: Any) -> Progress:
    return Progress(**{**{k: v for k, v in progress.to_json().items() if k != "version"}, **values})


def test_phases_have_their_own_numbers_and_a_lower_bound_is_kept() -> None:
    config = config_of()
    first, second = config.phases
    config = replace(config, phases=(first, replace(second, encoders=5)))
    assert [config.encoders_of(place) for place in (0, 1)] == [2, 5]
    corrected = Progress(encoders=7)
    assert encoders_now(config, corrected, 0) == 7
    tighter = replace(config, encode=replace(config.encode, max_encoders=6))
    assert encoders_now(tighter, corrected, 0) == 6
    fixed = replace(config, encode=replace(config.encode, max_encoders=None))
    assert encoders_now(fixed, corrected, 0) == 2
    assert config_digest(config, 2) == config_digest(config_of(), 2), "a run may go on with other numbers"


def test_a_checkpoint_from_before_is_read() -> None:
    values = Progress(step=4).to_json()
    older = {name: value for name, value in values.items() if not name.startswith("encoder")}
    assert Progress.from_json(older, where="a checkpoint") == Progress(step=4)
    del older["ledgers"]
    with pytest.raises(InvalidInput, match="only 1 is known"):
        Progress.from_json(older, where="a checkpoint")
    with pytest.raises(InvalidInput, match="only 1 is known"):
        Progress.from_json({**values, "more": 1}, where="a checkpoint")


@pytest.mark.parametrize(
    ("change", "wheres"),
    [
        ({"encode": {"max_encoders": 1}}, {"encode.max_encoders"}),
        ({"encode": {"mode": "offline"}}, {"encode.max_encoders"}),
        ({"encode": {"correct_after_s": -1.0}}, {"encode.correct_after_s"}),
        ({"train": {"pinned_order": True}}, {"encode.max_encoders"}),
        (
            {"workers": {"trainer_usd_per_h": None, "encoder_usd_per_h": None}},
            {"workers.trainer_usd_per_h", "workers.encoder_usd_per_h"},
        ),
    ],
)
def test_what_cannot_be_corrected_is_refused(change: dict[str, dict[str, Any]], wheres: set[str]) -> None:
    values = config_of().to_json()
    assert parse(values)
    for table, fields in change.items():
        values[table] |= fields
    with pytest.raises(InvalidInput) as refused:
        parse(values)
    assert {fault.where for fault in refused.value.faults} == wheres


def times(values: Sequence[float]) -> Any:
    each = iter(values)
    return lambda: next(each)


def test_work_is_encoding_and_what_the_process_computes_between_not_waiting() -> None:
    batch = pa.table({columns.ROW: [0, 1]})
    # Made at 0 s; a batch from 10 to 14 s, after 0.5 s of computing; one from 14.2 to 18 s, all of 0.2 s computed.
    timer = WorkTime(times([0.0, 10.0, 14.0, 14.2, 18.0]), times([0.0, 0.5, 4.0, 5.0, 9.0]))
    first, second = timer.timed(lambda: batch), timer.timed(lambda: batch)
    assert first.column(columns.ENCODE_S).to_pylist() == pytest.approx([2.25, 2.25])
    assert second.column(columns.ENCODE_S).to_pylist() == pytest.approx([2.0, 2.0])


def test_a_change_is_told_to_people_and_programs() -> None:
    change = Change(
        step=40, phase=0, before=1, encoders=2, data_wait=0.3, utilisation=0.98, reason="trainers wait 30.0%"
    )
    message = {"event": "encoders", **asdict(change)}
    words, lines = io.StringIO(), io.StringIO()
    for view in (Words(words), Lines(lines)):
        view.begin(config_of())
        view(dict(message))
    assert words.getvalue() == "  step 40: 1 encoders become 2: trainers wait 30.0%\n"
    assert json.loads(lines.getvalue()) == message
