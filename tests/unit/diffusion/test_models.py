"""Loading a base: frozen, in the right precision, and every wrong folder refused with the right blame."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.errors as hub_errors
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from giornata.diffusion.base.model_folder import damaged
from giornata.diffusion.base.models import BaseModel, check_model_folder, load_base, vae_dtype
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

FIELD = "spec.pretrained_model_name_or_path"


class StubHub:
    """Stands in for the network: answers with a folder or an error."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

    def _answer(self, *question: object) -> Path:
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def pipeline(self, name: str, *, revision: str | None, variant: str | None) -> Path:
        return self._answer(name, revision, variant)

    def vae(self, name: str) -> Path:
        return self._answer(name)

    def file(self, name: str, file: str, *, revision: str | None) -> Path:
        return self._answer(name, file, revision)


def load(model: Path | str, hub: StubHub | None = None, **fields: Any) -> BaseModel:
    spec = TrainSpec.model_validate({"model": str(model), "dataset": "ds_1", **fields})
    hub = hub or StubHub(AssertionError("nobody should ask the hub"))
    return load_base(spec, device="cpu", dtype=torch.float32, hub=hub)


def refused(*arguments: Any, **fields: Any) -> WorkloadFailed:
    with pytest.raises(WorkloadFailed) as failure:
        load(*arguments, **fields)
    return failure.value


@pytest.fixture
def copy(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_loaded_base_is_frozen_and_in_eval_mode(tiny_folder: Path) -> None:
    base = load(tiny_folder)
    modules = (base.unet, base.vae, *base.text_encoders)
    assert not any(module.training for module in modules)
    assert not any(parameter.requires_grad for module in modules for parameter in module.parameters())
    assert base.prediction_type == "epsilon"
    assert type(base.noise_scheduler).__name__ == "DDPMScheduler"
    assert base.noise_scheduler.config.beta_schedule == "scaled_linear"
    assert base.key == f"{tiny_folder}|||"
    assert [tokenizer.pad_token for tokenizer in base.tokenizers] == ["<|endoftext|>", "!"]


def test_the_vae_stays_fp32_unless_it_was_made_for_less(copy: Path) -> None:
    spec = TrainSpec.model_validate({"model": str(copy), "dataset": "ds_1"})
    base = load_base(spec, device="cpu", dtype=torch.bfloat16)
    assert {module.dtype for module in (base.unet, *base.text_encoders)} == {torch.bfloat16}
    assert base.vae.dtype == torch.float32
    edit(copy / "vae" / "config.json", force_upcast=False)
    assert load_base(spec, device="cpu", dtype=torch.bfloat16).vae.dtype == torch.bfloat16
    assert vae_dtype({}, torch.float16) == torch.float32


def test_separate_vae_is_loaded_from_its_own_folder_or_hub_and_refused_if_unfit(
    tiny_folder: Path, tmp_path: Path
) -> None:
    vae = Path(shutil.copytree(tiny_folder / "vae", tmp_path / "fixed"))
    edit(vae / "config.json", scaling_factor=0.5)
    base = load(tiny_folder, pretrained_vae_model_name_or_path=str(vae))
    assert base.vae.config.scaling_factor == 0.5
    assert base.key.endswith(f"|{vae}")
    hub = StubHub(vae)
    assert load(tiny_folder, hub, pretrained_vae_model_name_or_path="a/b").vae.config.scaling_factor == 0.5
    assert hub.asked == [("a/b",)]
    edit(vae / "config.json", latent_channels=16)
    failure = refused(tiny_folder, pretrained_vae_model_name_or_path=str(vae))
    assert (failure.reason, failure.faults[0].where) == (Reason.BAD_SPEC, "spec.pretrained_vae_model_name_or_path")
    failure = refused(tiny_folder, pretrained_vae_model_name_or_path=str(tmp_path / "none"))
    assert (failure.reason, failure.faults[0].where) == (Reason.BAD_SPEC, "spec.pretrained_vae_model_name_or_path")


def test_v_prediction_comes_from_the_scheduler_and_others_are_refused(copy: Path) -> None:
    config = copy / "scheduler" / "scheduler_config.json"
    edit(config, prediction_type="v_prediction")
    assert load(copy).prediction_type == "v_prediction"
    edit(config, prediction_type="sample")
    assert "'sample'" in refused(copy).message


# ---- what the job got wrong: BAD_SPEC -----------------------------------------------------------------------


def not_sdxl(folder: Path) -> None:
    edit(folder / "model_index.json", _class_name="FluxPipeline")


def no_second_encoder(folder: Path) -> None:
    shutil.rmtree(folder / "text_encoder_2")


def wrong_second_encoder(folder: Path) -> None:
    edit(folder / "model_index.json", text_encoder_2=["transformers", "CLIPTextModel"])


def no_text_time(folder: Path) -> None:
    edit(folder / "unet" / "config.json", addition_embed_type=None)


def no_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def pickled(folder: Path) -> None:
    (folder / "unet" / "diffusion_pytorch_model.safetensors").rename(folder / "unet" / "diffusion_pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (not_sdxl, "FluxPipeline, not StableDiffusionXLPipeline or StableDiffusionPipeline"),
        (no_second_encoder, "holds no text_encoder_2/"),
        (wrong_second_encoder, "text_encoder_2 is CLIPTextModel,"),
        (no_text_time, "addition_embed_type is None"),
        (no_index, "holds no model_index.json"),
        (pickled, "but diffusion_pytorch_model.bin"),
    ],
)
def test_folder_that_is_no_sdxl_model_is_refused_as_bad_spec(
    copy: Path, spoil: Callable[[Path], None], told: str
) -> None:
    spoil(copy)
    failure = refused(copy)
    assert failure.reason is Reason.BAD_SPEC
    assert [fault.where for fault in failure.faults] == [FIELD]
    assert told in failure.faults[0].message
    assert told in failure.message
    assert check_model_folder(copy) == list(failure.faults)


def test_all_faults_are_told_at_once(copy: Path) -> None:
    not_sdxl(copy)
    no_second_encoder(copy)
    no_text_time(copy)
    cut(copy / "vae" / "diffusion_pytorch_model.safetensors")
    failure = refused(copy)
    assert failure.reason is Reason.BAD_SPEC
    assert len(failure.faults) == 4


def test_a_folder_or_file_that_is_not_there_or_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"x")
    for name, told in ((tmp_path / "none", "does not exist"), (tmp_path / "model.ckpt", "is a file")):
        failure = refused(name)
        assert failure.reason is Reason.BAD_SPEC
        assert told in failure.message
        assert failure.faults[0].where == FIELD


def test_a_variant_that_is_not_there_says_what_is(copy: Path) -> None:
    failure = refused(copy, variant="fp16")
    assert failure.reason is Reason.BAD_SPEC
    assert len(failure.faults) == 4
    assert "no diffusion_pytorch_model.fp16.safetensors, but diffusion_pytorch_model.safetensors" in failure.message


def test_a_variant_that_is_there_is_loaded(copy: Path) -> None:
    for weights in list(copy.rglob("*.safetensors")):
        weights.rename(weights.with_suffix(".fp16.safetensors"))
    assert load(copy, variant="fp16").unet.dtype == torch.float32


def test_weights_that_do_not_fit_their_config_will_not_fit_elsewhere(copy: Path) -> None:
    edit(copy / "unet" / "config.json", block_out_channels=[32, 96])
    assert refused(copy).reason is Reason.BAD_SPEC


# ---- what is wrong with this copy: NODE_DOWNLOAD ----------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def no_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 4000)


def broken_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8:40] = b"x" * 32
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut, no_header, broken_header, empty])
@pytest.mark.parametrize("name", ["unet/diffusion_pytorch_model.safetensors", "text_encoder_2/model.safetensors"])
def test_damaged_weights_name_the_file_and_blame_the_machine(
    copy: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    spoil(copy / name)
    failure = refused(copy)
    assert failure.reason is Reason.NODE_DOWNLOAD
    assert [fault.where for fault in failure.faults] == [str(copy / name)]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\n<!DOCTYPE html>\n<title>Sign in</title>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00<html", "cut short"),
    ],
)
def test_web_page_lfs_pointer_or_truncated_file_in_place_of_weights_is_named(
    tmp_path: Path, content: bytes, word: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    (fault,) = damaged(path)
    assert word in str(fault)


def test_a_missing_shard_is_damage(copy: Path) -> None:
    single = copy / "unet" / "diffusion_pytorch_model.safetensors"
    shard = "diffusion_pytorch_model-00001-of-00001.safetensors"
    names = load(copy).unet.state_dict().keys()
    single.rename(copy / "unet" / shard)
    index = copy / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}))
    assert load(copy).unet.config.in_channels == 4
    (copy / "unet" / shard).unlink()
    failure = refused(copy)
    assert failure.reason is Reason.NODE_DOWNLOAD
    assert shard in failure.message


# ---- the hub ----------------------------------------------------------------------------------------------------

RESPONSE: Any = SimpleNamespace(headers={}, request=None)


def test_a_hub_id_is_fetched(tiny_folder: Path) -> None:
    hub = StubHub(tiny_folder)
    base = load("owner/name", hub, revision="main")
    assert hub.asked == [("owner/name", "main", None)]
    assert base.key == "owner/name|main||"


@pytest.mark.parametrize(
    ("error", "reason", "where"),
    [
        (hub_errors.RepositoryNotFoundError("404", response=RESPONSE), Reason.BAD_SPEC, FIELD),
        (hub_errors.GatedRepoError("403", response=RESPONSE), Reason.BAD_SPEC, FIELD),
        (hub_errors.RevisionNotFoundError("404", response=RESPONSE), Reason.BAD_SPEC, "spec.revision"),
        (hub_errors.RemoteEntryNotFoundError("404", response=RESPONSE), Reason.BAD_SPEC, FIELD),
        (hub_errors.HFValidationError("bad id"), Reason.BAD_SPEC, FIELD),
        (ValueError("no such variant: v9"), Reason.BAD_SPEC, "spec.variant"),
        (hub_errors.LocalEntryNotFoundError("offline"), Reason.NODE_DOWNLOAD, None),
        (hub_errors.HfHubHTTPError("503", response=RESPONSE), Reason.NODE_DOWNLOAD, None),
        (hub_errors.HTTPError("connection reset"), Reason.NODE_DOWNLOAD, None),
        (ConnectionError("no route to host"), Reason.NODE_DOWNLOAD, None),
        (OSError(28, "No space left on device"), Reason.NODE_DISK, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_the_hubs_errors_are_blamed_on_whom_they_concern(error: Exception, reason: Reason, where: str | None) -> None:
    failure = refused("owner/name", StubHub(error), revision="r1", variant="v9")
    assert failure.reason is reason
    assert [fault.where for fault in failure.faults] == ([where] if where else [])
    assert "owner/name" in failure.message


def test_hub_model_that_is_no_sdxl_is_refused_as_bad_spec(copy: Path) -> None:
    not_sdxl(copy)
    assert refused("owner/name", StubHub(copy)).reason is Reason.BAD_SPEC


def test_checking_a_folder_loads_no_heavy_library() -> None:
    code = (
        "import sys; import giornata.diffusion.base.model_folder as m; from pathlib import Path;"
        "m.check_model_folder(Path('.'));"
        "print(sorted({'torch', 'diffusers', 'transformers', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_an_edm_schedule_is_refused(copy: Path) -> None:
    edit(copy / "scheduler" / "scheduler_config.json", _class_name="EDMDPMSolverMultistepScheduler")
    failure = refused(copy)
    assert (failure.reason, failure.faults[0].where) == (Reason.BAD_SPEC, FIELD)
    assert "EDMDPMSolverMultistepScheduler" in failure.message


def test_weights_lie_where_torch_would_put_them_and_not_in_the_file(copy: Path) -> None:
    """In a mapped file they lie wherever its header ends, which changes the bits of what a CPU computes; and they
    would change with the file."""
    name = "diffusion_pytorch_model.safetensors"
    with safe_open(copy / "unet" / name, framework="pt") as opened:
        metadata = {**opened.metadata(), "note": "an odd number of letters"}
    for length in range(8):
        tensors = {key: value.clone() for key, value in load_file(copy / "unet" / name).items()}
        save_file(tensors, copy / "unet" / name, metadata=metadata | {"note": "x" * length})
        base = load(copy)
        modules = (base.unet, base.vae, *base.text_encoders)
        assert all(tensor.data_ptr() % 64 == 0 for module in modules for tensor in module.state_dict().values())
    before = {key: value.clone() for key, value in base.unet.state_dict().items()}
    size_bytes = (copy / "unet" / name).stat().st_size
    with (copy / "unet" / name).open("r+b") as file:  # in place: a mapping sees it
        file.seek(size_bytes // 2)
        file.write(bytes(size_bytes // 2))
    assert all(torch.equal(value, before[key]) for key, value in base.unet.state_dict().items())
