"""Which files are read, and what is let go."""

import pytest

from giornata.domain.errors import InvalidInput
from giornata.foreign_configs.reading import read_configs, without

RUN = 'pretrained_model_name_or_path = "a/base-xl"\nnetwork_module = "networks.lora"\ncolor_aug = true\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ini", "x = 1", "must end in .toml, .json"),
        ("a.toml", "x = ", "cannot be parsed"),
        ("a.toml", "x = 1", "not a configuration of a supported trainer"),
        ("a.json", "[1]", "not a configuration of a supported trainer"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "cannot be parsed"),
    ],
)
def test_a_file_that_is_none_is_refused_with_what_would_be_one(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_configs([tmp_path / name])


def test_a_file_that_is_not_there_says_from_where_paths_hold(tmp_path):
    with pytest.raises(InvalidInput) as refused:
        read_configs([tmp_path / "none.toml"])
    assert "working directory" in refused.value.faults[0].hint


def test_files_of_two_trainers_are_refused(read):
    with pytest.raises(InvalidInput, match="does not fit the other files"):
        read(run_toml=RUN, preset_json={"training_method": "LORA"})


def test_a_refused_key_is_let_go_by_its_name_and_no_other_is(read):
    reading = read(run_toml=RUN)
    assert [row.key for row in reading.refused] == ["color_aug"]
    kept = without(reading, ["color_aug"])
    assert (kept.refused, "color_aug" in kept.left_out) == ((), True)
    with pytest.raises(InvalidInput, match="flip_aug is not among"):
        without(reading, ["flip_aug"])


def test_a_key_stands_for_those_within_it(read):
    lines = 'network_args = ["train_norm=True", "loraplus_lr_ratio=4"]'
    reading = read(run_toml=RUN + lines)
    assert [row.key for row in without(reading, ["network_args", "color_aug"]).refused] == []
