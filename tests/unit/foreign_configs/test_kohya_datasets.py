"""sd-scripts' dataset files: several folders, each with its repeats and captions."""

import json

from giornata.domain.errors import InvalidInput

RUN = 'pretrained_model_name_or_path = "a/base-xl"\nnetwork_module = "networks.lora"\ntrain_batch_size = 3\n'
DATASETS = """
[general]
enable_bucket = true
caption_extension = ".txt"

[[datasets]]
resolution = 768
batch_size = 2
keep_tokens = 2
shuffle_caption = true

  [[datasets.subsets]]
  image_dir = "dogs"
  class_tokens = "sks dog"
  num_repeats = 10

  [[datasets.subsets]]
  image_dir = "cats"
  class_tokens = "my cat"
  caption_extension = ".cap"
  caption_prefix = "photo,"

  [[datasets.subsets]]
  is_reg = true
  image_dir = "animals"
  class_tokens = "an animal"
  keep_tokens = 1
"""


def test_every_folder_keeps_its_repeats_and_captions(read):
    reading = read(run_toml=RUN, data_toml=DATASETS)
    told = [(str(each.path), each.repeats, each.caption, each.caption_extension) for each in reading.subsets]
    assert told == [("dogs", 10, "sks dog", ".txt"), ("cats", 1, "my cat", ".cap")]
    assert [str(each.path) for each in reading.class_subsets] == ["animals"]
    expected = {
        "resolution": 768,
        "train_batch_size": 2,
        "keep_tokens": 2,
        "enable_bucket": True,
        "with_prior_preservation": True,
        "class_prompt": "an animal",
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert reading.refused == ()


def test_the_options_may_name_the_file_with_the_datasets(read, tmp_path):
    (tmp_path / "mine.toml").write_text(DATASETS)
    reading = read(run_toml=RUN + f'dataset_config = "{tmp_path}/mine.toml"')
    assert len(reading.subsets) == 2


def test_kohya_job_wide_options_that_differ_between_folders_are_refused(read):
    other = (
        DATASETS + '[[datasets]]\nresolution = 512\n  [[datasets.subsets]]\n  image_dir = "x"\n  flip_aug = true\n'
    )
    reading = read(run_toml=RUN, data_toml=other)
    keys = {row.key: row.why for row in reading.refused}
    assert set(keys) == {"train_batch_size", "flip_aug"}


def test_folders_that_differ_in_what_is_shuffled_are_marked_in_their_captions(read):
    other = DATASETS + '[[datasets]]\nresolution = 768\nbatch_size = 2\n[[datasets.subsets]]\nimage_dir = "x"\n'
    reading = read(run_toml=RUN, data_toml=other.replace('image_dir = "cats"', 'image_dir = "cats"\nkeep_tokens = 1'))
    assert reading.refused == ()
    assert (reading.fields["shuffle_caption"], reading.fields["keep_tokens_separator"]) == (True, "|||")
    told = [(str(each.path), each.kept.marked("a, b, c,d")) for each in reading.subsets]
    assert told == [("dogs", "a, b ||| c,d"), ("cats", "a ||| b, c,d"), ("x", "a, b, c,d |||")]
    assert [each.kept for each in reading.class_subsets] == [None]
    assert [each.kept.words for each in reading.subsets] == [
        "captions keep 2 parts in front",
        "captions keep 1 part in front",
        "captions are not shuffled",
    ]


def test_folders_with_separators_or_marks_of_their_own_are_refused_where_they_differ(read):
    for word in ('caption_separator = ";"', 'keep_tokens_separator = "|||"'):
        other = DATASETS.replace('image_dir = "cats"', f'image_dir = "cats"\nkeep_tokens = 1\n{word}')
        reading = read(run_toml=RUN, data_toml=other)
        assert {row.key for row in reading.refused} == {"keep_tokens", word.partition(" ")[0]}


def test_every_folder_has_the_resolution_of_its_dataset(read):
    other = DATASETS + '[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = "x"\n'
    reading = read(run_toml=RUN, data_toml=other)
    assert reading.fields["resolution"] == 768
    assert [(str(each.path), each.resolution) for each in reading.subsets] == [
        ("dogs", None),
        ("cats", None),
        ("x", 512),
    ]
    assert "resolution" not in {row.key for row in reading.refused}


def test_several_resolutions_without_buckets_are_refused(read):
    other = DATASETS.replace("enable_bucket = true", "") + (
        '[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = "x"\n'
    )
    reading = read(run_toml=RUN, data_toml=other)
    assert "768 and 512" in {row.key: row.why for row in reading.refused}["resolution"]
    assert [each.resolution for each in reading.subsets] == [None, None, None]


def test_captions_of_a_metadata_file_are_by_picture(read, tmp_path):
    rows = {"/far/away/one.png": {"caption": "a dog", "tags": "grass, sun"}, "two": {"caption": "a cat"}, "three": {}}
    (tmp_path / "meta.json").write_text(json.dumps(rows))
    data = '[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = "x"\nmetadata_file = "{}"\n'
    (found,) = read(run_toml=RUN, data_toml=data.format(tmp_path / "meta.json")).subsets
    assert found.captions == {"one": "a dog, grass, sun", "two": "a cat"}
    missing = read(run_toml=RUN, data_toml=data.format("nowhere.json"))
    assert [row.key for row in missing.refused] == ["metadata_file"]


def test_two_files_with_datasets_are_refused(read):
    try:
        read(run_toml=RUN, data_toml=DATASETS, more_toml=DATASETS)
    except InvalidInput as refused:
        assert "second file with datasets" in str(refused.faults[0])
    else:
        raise AssertionError("was read")
