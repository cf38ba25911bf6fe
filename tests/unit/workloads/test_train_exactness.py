"""What a job's record says about the exactness of its bits."""

from typing import Any

from giornata.workloads.train.results.exporting import exactness_of

ALONE = {"torch": "2.13.0", "device": "cuda A", "threads": 1}
ALONE_SAID = "every step was made alone"


def history(*entries: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"from_step": step, "fingerprint": fingerprint} for step, fingerprint in entries]


def joint(width: int) -> dict[str, Any]:
    return {"joint": {"place": 0, "width": width, "rank": 16}}


def test_a_run_under_one_fingerprint_is_solo_without_more_words() -> None:
    assert exactness_of(history((0, ALONE))) == {"class": "solo", "why": ALONE_SAID}


def test_every_change_of_hardware_and_versions_is_named() -> None:
    moved = ALONE | {"torch": "2.14.0", "device": "cuda B"}
    found = exactness_of(history((0, ALONE), (3, moved), (7, moved | {"threads": 2})))
    assert found["class"] == "solo"
    assert found["why"] == (
        f"{ALONE_SAID}; from step 3 on with device cuda B instead of cuda A, torch 2.14.0 instead of 2.13.0; "
        "from step 7 on with threads 2 instead of 1"
    )


def test_a_footprint_that_was_lowered_on_the_way_is_named() -> None:
    lowered = ALONE | {"footprint": {"rows": 1, "gradient_checkpointing": "full"}}
    said = 'footprint {"gradient_checkpointing": "full", "rows": 1} instead of unset'
    assert exactness_of(history((0, ALONE), (2, lowered)))["why"] == f"{ALONE_SAID}; from step 2 on with {said}"
    assert exactness_of(history((0, lowered)))["why"] == ALONE_SAID  # so it would be again on equal hardware


def test_places_and_widths_are_what_joint_means_and_the_rest_is_named() -> None:
    shared = history((0, ALONE | joint(2)), (4, ALONE | joint(4)))
    said = "from step 0 on, steps were made in a batch shared with other jobs"
    assert exactness_of(shared) == {"class": "joint", "why": said}
    left = history((0, ALONE | joint(2)), (5, ALONE | {"device": "cuda B"}))
    assert exactness_of(left)["why"] == f"{said}; from step 5 on with device cuda B instead of cuda A"
