"""When trainers are asked to leave: by the actor, which the first one looks at, or by Ray Train, which tells each."""

from giornata.pretrain.ray_train.progress_actor import RESIZE, STOP, ProgressActor
from giornata.pretrain.ray_train.worker import Notices


def test_ray_train_announcement_stops_trainer_before_next_step() -> None:
    told: list[object | None] = [None, None, object(), None]
    notices = Notices(None, first=False, announced=lambda: told.pop(0))
    assert [notices() for _ in range(3)] == [False, False, True]
    assert notices.leave == "", "nobody of this run asked for it"


def test_resize_request_ends_when_trainers_restart_and_stop_request_persists() -> None:
    actor = ProgressActor.__ray_metadata__.modified_class()
    actor.begun()
    assert (actor.leave(), actor.have_left()) == ("", False)
    actor.ask_to_resize()
    actor.left()
    assert (actor.leave(), actor.have_left()) == (RESIZE, True)
    actor.begun()
    assert (actor.leave(), actor.have_left()) == ("", False)
    actor.ask_to_stop()
    actor.ask_to_resize()
    actor.begun()
    assert actor.leave() == STOP
