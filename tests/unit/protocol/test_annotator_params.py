"""Annotators' names, parameters and cache keys."""

import pytest

from giornata.protocol.generation.annotators import ANNOTATORS, annotation_key, annotator_faults, whole_params

SHA = "ab" * 32


@pytest.mark.parametrize("name", ANNOTATORS)
def test_annotator_without_parameters_has_no_faults(name: str) -> None:
    assert annotator_faults("controlnets.0", name, {}) == []


def test_unknown_annotator_is_refused_with_the_nearest_name() -> None:
    (fault,) = annotator_faults("controlnets.0", "cany", {})
    assert fault.where == "controlnets.0.annotator"
    assert "canny" in fault.hint


def test_all_faulty_parameters_are_told_at_once_with_their_places() -> None:
    params = {"low_threshold": 300, "high_threshold": 1.5, "sigma": 1}
    faults = annotator_faults("controlnets.0", "canny", params)
    assert [each.where for each in faults] == [
        "controlnets.0.annotator_params.low_threshold",
        "controlnets.0.annotator_params.high_threshold",
        "controlnets.0.annotator_params.sigma",
    ]


@pytest.mark.parametrize("value", [True, "8", float("nan")])
def test_parameter_that_is_no_number_within_its_bounds_is_refused(value: bool | str | float) -> None:
    assert annotator_faults("controlnets.0", "lineart", {"sigma": value})


@pytest.mark.parametrize("value", [float("inf"), 10**400])
def test_whole_number_without_bounds_is_refused(value: float) -> None:
    (fault,) = annotator_faults("controlnets.0", "canny", {"low_threshold": value})
    assert fault.where == "controlnets.0.annotator_params.low_threshold"


def test_canny_with_exchanged_thresholds_is_refused() -> None:
    (fault,) = annotator_faults("controlnets.0", "canny", {"low_threshold": 200, "high_threshold": 100})
    assert "above" in fault.message


def test_parameters_at_their_defaults_give_the_key_of_none() -> None:
    assert annotation_key(SHA, "canny", {"low_threshold": 100}) == annotation_key(SHA, "canny", {})
    assert whole_params("canny", {"low_threshold": 50}) == {"low_threshold": 50.0, "high_threshold": 200.0}


def test_key_differs_by_picture_annotator_and_parameter() -> None:
    keys = {
        annotation_key(SHA, "canny", {}),
        annotation_key("cd" * 32, "canny", {}),
        annotation_key(SHA, "grey", {}),
        annotation_key(SHA, "canny", {"low_threshold": 99}),
    }
    assert len(keys) == 4
