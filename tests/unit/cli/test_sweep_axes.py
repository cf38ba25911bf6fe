"""The grid and the changes of `giornata sweep run`, as they are written on the command line."""

from pathlib import Path

import pytest

from giornata.cli.jobs.sweep import first_job, read_changes, read_grid
from giornata.domain.errors import InvalidInput


def test_several_values_make_an_axis_and_one_value_does_not() -> None:
    common, grid = read_grid(["rank=8,16", "learning_rate=1e-4, 5e-5", "max_train_steps=20", "network_alpha=[4, 8]"])
    assert common == {"max_train_steps": 20}
    assert grid == {"rank": [8, 16], "learning_rate": [1e-4, 5e-5], "network_alpha": [4, 8]}


def test_commas_of_lists_and_of_prompts_belong_to_the_value() -> None:
    common, grid = read_grid(["target_modules=to_k,to_q", "instance_prompt=sks, a dog", 'class_prompt=["a", "b, c"]'])
    assert common == {"target_modules": ["to_k", "to_q"], "instance_prompt": "sks, a dog"}
    assert grid == {"class_prompt": ["a", "b, c"]}


def test_lists_of_lists_are_values_of_a_list() -> None:
    common, grid = read_grid(['target_modules=[["to_k"], ["to_q", "to_v"]]', 'sample_prompts=["a", "b"]'])
    assert grid == {"target_modules": [["to_k"], ["to_q", "to_v"]]}
    assert common == {"sample_prompts": ["a", "b"]}


def test_texts_that_are_no_assignments_are_refused_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_grid(["rank", "=3", "rank=8"])
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize("text", ["{", "{}", "[]", "[1]", "[{}]"])
def test_a_file_that_has_no_list_of_changes_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "changes.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="--changes"):
        read_changes(path)


def test_the_first_job_has_the_first_values_under_their_own_names() -> None:
    assert first_job({"network_dim": 4}, {"rank": [8, 16]}, []) == {"rank": 8}
    assert first_job({"rank": 4}, {}, [{"learning_rate": 1e-4}]) == {"rank": 4, "learning_rate": 1e-4}
