"""What a tracker that shows curves live gets to know of a job, and when."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydantic import SecretStr

from giornata.diffusion.wandb_run import WandbRun
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train import live_curves


@dataclass
class Kept:
    """What a keeper says of its checkpoints."""

    losses: list[float]
    announced: int | None = None
    validated: list[float] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)


def test_steps_go_out_as_far_as_the_last_checkpoint_and_each_checkpoint_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends: list[Callable[[Event], object]] = []
    sent: list[list[int]] = []

    def deliver(run: WandbRun, *_: object, **__: object) -> None:
        sent.append([step for step, _ in run.rows])

    monkeypatch.setattr(live_curves, "Meanwhile", lambda send, **_: sends.append(send))
    monkeypatch.setattr(live_curves, "deliver", deliver)
    monkeypatch.setattr(live_curves, "upload", lambda *_, **__: None)
    fields: dict[str, Any] = {"model": "owner/base", "dataset": "ds_1", "seed": 1, "report_to": ["wandb"]}
    start = Start(
        attempt="at_1", job="jb_1", kind="train", spec=fields, directory=tmp_path, wandb_api_key=SecretStr("k" * 40)
    )
    keeper = Kept([0.5, 0.4, 0.3, 0.2])
    live_curves.live_curves(start, TrainSpec(**fields), keeper, reporter=None, clock=lambda: 0.0)  # type: ignore[arg-type]
    (send,) = sends
    for announced in (None, 2, 2, 3):
        keeper.announced = announced
        send(Event())
    assert sent == [[1, 2], [1, 2, 3]]
