"""The progress of an order that a person follows."""

import io
from collections.abc import Iterator

from rich.console import Console

from giornata.cli.jobs.order_progress import finish_order, follow_order
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, Output
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.orders.order_pictures import OrderPicture


def order(state: JobState, why: str | None = None, error: str | None = None) -> Job:
    words = {"id": "job_1", "name": "foxes", "kind": "generate", "total_steps": 3, "cost_micro_usd": 0}
    return Job.model_construct(state=state, waiting_because=why, error=error, urls=None, **words)


def picture(place: int, state: PictureState = PictureState.SUCCEEDED, error: str | None = None) -> OrderPicture:
    return OrderPicture(
        id=place,
        number=place - 1,
        state=state,
        seed=7,
        prompt="a fox",
        media_type="image/png",
        filename=f"{place}.png",
        error=error,
    )


class ToldOrder:
    """Gives one state of the order after the other, and at each the pictures that have ended by then."""

    def __init__(self, *looks: tuple[Job, list[OrderPicture]]) -> None:
        self._looks = list(looks)

    def first(self) -> Job:
        return self._looks[0][0]

    def get_job(self, _job_id: str) -> Job:
        self._looks.pop(0)
        return self._looks[0][0]

    def ended_pictures(self, _job_id: str, *, after: int) -> Iterator[OrderPicture]:
        yield from (each for each in self._looks[0][1] if each.id > after)


def followed(told: ToldOrder) -> tuple[str, int]:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, width=120)
    job, progress = follow_order(told, told.first(), out, output=None, sleep=lambda _: None)  # type: ignore[arg-type]
    status = finish_order(job, progress, None, out)
    return screen.getvalue(), status


def test_reason_for_waiting_is_told_once_while_only_its_numbers_change() -> None:
    waiting = [
        (order(JobState.QUEUED, f"waiting for its turn, position {place} in the queue"), []) for place in (3, 2)
    ]
    shown, status = followed(ToldOrder(*waiting, (order(JobState.CANCELED), [])))
    assert shown.count("waiting for its turn") == 1 and "position 3" in shown
    assert "job_1 canceled: 0 pictures" in shown and status == EXIT_FAILED


def test_each_picture_is_told_once_and_counted_at_the_end() -> None:
    failed = picture(2, PictureState.FAILED, "cannot be drawn")
    looks = [(order(JobState.RUNNING), [picture(1)]), (order(JobState.SUCCEEDED), [picture(1), failed])]
    shown, status = followed(ToldOrder(*looks))
    assert shown.count("picture 1 failed: cannot be drawn") == 1
    assert "job_1 succeeded: 1 picture, 1 blocked, 1 failed" in shown and status == 0


def test_paused_order_ends_with_its_own_status_and_says_how_to_go_on() -> None:
    shown, status = followed(ToldOrder((order(JobState.PAUSED, "its budget is used up"), [])))
    assert "its budget is used up: giornata budget job_1 USD" in shown and status == EXIT_PAUSED
