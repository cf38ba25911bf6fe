"""What goes out while a run goes on."""

import threading

import pytest

from giornata.diffusion.wandb_live import Meanwhile
from giornata.diffusion.wandb_run import TrackerFailed

PATIENCE_S = 60.0


def test_curves_go_out_again_and_again_and_no_longer_than_the_run() -> None:
    calls: list[threading.Event] = []
    third = threading.Event()

    def send(stop: threading.Event) -> None:
        calls.append(stop)
        if len(calls) == 3:
            third.set()

    with Meanwhile(send, every_s=0.0, tell=pytest.fail):
        assert third.wait(PATIENCE_S)
        assert not calls[0].is_set()
    after = len(calls)
    assert calls[0].is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "wandb-curves"]
    assert len(calls) == after


@pytest.mark.parametrize("failure", [TrackerFailed("no server"), OSError("no storage")])
def test_what_fails_is_told_and_tried_again(failure: Exception) -> None:
    told: list[str] = []
    sent = threading.Event()

    def send(_stop: threading.Event) -> None:
        if not told:
            raise failure
        sent.set()

    with Meanwhile(send, every_s=0.0, tell=told.append):
        assert sent.wait(PATIENCE_S)
    assert told == [f"the curves were not sent, but will be: {failure}"]


def test_what_the_end_of_the_run_cuts_short_is_no_failure() -> None:
    told: list[str] = []
    begun = threading.Event()

    def send(stop: threading.Event) -> None:
        begun.set()
        assert stop.wait(PATIENCE_S)
        raise TrackerFailed("was ended")

    with Meanwhile(send, every_s=0.0, tell=told.append):
        assert begun.wait(PATIENCE_S)
    assert told == []
