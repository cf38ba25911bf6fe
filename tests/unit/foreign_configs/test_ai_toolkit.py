"""ai-toolkit's jobs."""

import pytest
import yaml

from giornata.protocol.specs import TrainSpec

JOB = """
job: extension
config:
  name: my_lora
  process:
    - type: sd_trainer
      training_folder: output
      device: cuda:0
      trigger_word: p3r5on
      network: {type: lora, linear: 16, linear_alpha: 16}
      save: {dtype: float16, save_every: 250, max_step_saves_to_keep: 4, push_to_hub: false}
      datasets:
        - {folder_path: in, caption_ext: txt, caption_dropout_rate: 0.05, resolution: [1024], num_repeats: 2}
      train:
        batch_size: 2
        steps: 2000
        gradient_accumulation_steps: 4
        noise_scheduler: ddpm
        optimizer: adamw8bit
        lr: 1e-4
        dtype: bf16
        ema_config: {use_ema: true, ema_decay: 0.99}
      model: {name_or_path: stabilityai/stable-diffusion-xl-base-1.0, is_xl: true}
      sample: {sampler: ddpm, sample_every: 250, prompts: ["[trigger] asleep"], guidance_scale: 7, sample_steps: 20}
meta: {version: "1.0"}
"""


def _changed(section, **values):
    job = yaml.safe_load(JOB)
    process = job["config"]["process"][0]
    if section == "datasets":
        process["datasets"].append(process["datasets"][0] | values)
    else:
        process[section] |= values
    return yaml.safe_dump(job)


def test_a_job_is_taken_with_its_tools_own_defaults(read):
    reading = read(job_yaml=JOB)
    expected = {
        "rank": 16,
        "alpha": 16.0,
        "max_train_steps": 2000,
        "learning_rate": 1e-4,
        "gradient_accumulation_steps": 4,
        "adam_epsilon": 1e-6,
        "adam_weight_decay": 0.01,
        "use_ema": True,
        "ema_decay": 0.99,
        "enable_bucket": True,
        "resolution": 1024,
        "mixed_precision": "bf16",
        "output_name": "my_lora",
        "sample_prompts": ["p3r5on asleep"],
        "train_text_encoder": False,
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert "add_embedding.linear_1" in reading.fields["target_modules"]
    (folder,) = reading.subsets
    assert (str(folder.path), folder.repeats, folder.trigger, folder.caption_extension) == ("in", 2, "p3r5on", ".txt")
    assert reading.refused == ()
    TrainSpec.model_validate({**reading.fields, "dataset": "ds_0"})


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("model", {"is_flux": True}, "model.is_flux"),
        ("model", {"arch": "qwen_image"}, "model.arch"),
        ("train", {"noise_scheduler": "flowmatch"}, "train.noise_scheduler"),
        ("train", {"lr_scheduler": "linear"}, "train.lr_scheduler"),
        ("train", {"optimizer": "automagic"}, "train.optimizer"),
        ("train", {"content_or_style": "style"}, "train.content_or_style"),
        ("network", {"type": "lokr", "lokr_factor": 8}, "network.lokr_full_rank"),
        ("datasets", {"flip_y": True}, "datasets.flip_y"),
        ("datasets", {"mystery": True}, "datasets.mystery"),
    ],
)
def test_ai_toolkit_option_without_equivalent_is_refused_by_name(read, section, values, key):
    assert {row.key for row in read(job_yaml=_changed(section, **values)).refused} == {key}


def test_prodigys_rate_is_one_where_the_tool_makes_it_one(read):
    fields = read(job_yaml=_changed("train", optimizer="prodigy", optimizer_params={"weight_decay": 0.1})).fields
    assert (fields["learning_rate"], fields["adam_weight_decay"]) == (1.0, 0.1)


def test_several_resolutions_without_buckets_are_refused(read):
    reading = read(job_yaml=JOB.replace("resolution: [1024]", "resolution: [512, 1024], buckets: false"))
    assert [row.key for row in reading.refused] == ["datasets.resolution"]
    assert (reading.fields["resolution"], [each.resolution for each in reading.subsets]) == (1024, [None])


def test_pictures_are_trained_at_each_of_several_resolutions(read):
    reading = read(job_yaml=JOB.replace("resolution: [1024]", "resolution: [512, 768, 1024]"))
    assert reading.refused == ()
    assert reading.fields["resolution"] == 1024
    assert [(str(each.path), each.resolution) for each in reading.subsets] == [("in", 512), ("in", 768), ("in", None)]
