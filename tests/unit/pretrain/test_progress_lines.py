"""Lines of progress where no terminal is."""

import io
from typing import Any

from giornata.cli.pretraining import pretrain_encode, pretrain_ingest
from giornata.pretrain.reporting.progress_lines import PacedLines, TerminalProgress


class ReadClock:
    """Goes on by two seconds whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s


def progress(step: int) -> dict[str, Any]:
    metrics = {"phase": 0.0, "images_per_s": 64.0, "loss": 0.5, "data_wait_share": 0.0, "spent_usd": 1.25}
    return {"event": "progress", "step": step, "total": 100, "metrics": metrics}


def test_run_off_a_terminal_prints_a_line_every_ten_seconds() -> None:
    stream = io.StringIO()
    words = TerminalProgress(stream, ReadClock(2.0))
    for step in range(1, 17):
        words(progress(step))
    figures = "loss 0.500 · 64 images/s · data wait 0% · $1.25"
    assert stream.getvalue().splitlines() == [
        f"  step 1/100 · {figures}",
        f"  step 6/100 · {figures} · 0:03:08 left",
        f"  step 11/100 · {figures} · 0:02:58 left",
        f"  step 16/100 · {figures} · 0:02:48 left",
    ]


def test_encode_prints_shards_cost_rate_and_time_left_every_ten_seconds() -> None:
    paced, lines = PacedLines(ReadClock(5.0)), []
    for done in range(1, 6):
        told = {"done": done, "of": 10, "rows": 100 * done, "of_rows": 1000, "spent_usd": 0.5}
        lines.append(pretrain_encode._line(told, paced))
    assert lines == [
        "1 of 10 shards · $0.50",
        None,
        "3 of 10 shards · $0.50 · 20.0 examples/s · 0:00:35 left",
        None,
        "5 of 10 shards · $0.50 · 20.0 examples/s · 0:00:25 left",
    ]


def test_ingest_prints_the_rate_and_the_time_left_where_the_total_is_known() -> None:
    examined, wrote = PacedLines(ReadClock(10.0)), PacedLines(ReadClock(10.0))
    for done in (0, 500):
        line = pretrain_ingest._line({"what": "examined", "done": done, "total": None}, examined)
    assert line == "examined 500 rows · 50.0 examples/s"
    for done in (1, 2):
        line = pretrain_ingest._line({"what": "wrote", "done": done, "total": 4}, wrote)
    assert line == "wrote 2 of 4 shards · 0.1 shards/s · 0:00:20 left"
