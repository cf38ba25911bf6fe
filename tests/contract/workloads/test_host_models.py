"""Bases in host memory: a change back to one reads no file, and draws what its file would have drawn."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fixtures.picture_leases import ORDER, lease, params, sha256_of
from tests.fixtures.single_file import write_single_file
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.base.swap import size_bytes_of
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.tiny.tiny_model import tiny_sd15_pipeline
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.generate.workload import GenerateWorkload

MUCH = 10**9


@dataclass
class EngineOfFiles:
    """An engine whose loads are counted, by the files that they read. `files` are single-file bases by name."""

    root: Path
    layouts: Path
    files: dict[str, Path]
    host_model_bytes: int = MUCH
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workload = GenerateWorkload(device="cpu", load=self._load, host_model_bytes=self.host_model_bytes)

    def _load(self, source: ModelLocation, **options: Any) -> BaseModel:
        self.loads.append(source.name)
        return load_model(source, layouts=self.layouts, **options)

    def draw(self, name: str, *, vae: Path | None = None, loras: Sequence[Path] = (), gone: bool = False) -> bytes:
        """Draw a picture with the base; `gone`: its file has no bytes any more."""
        file = self.files[name]
        given: dict[str, Any] = {"model": {"name": name, "sha256": sha256_of(file)}}
        inputs = [("base", file), *(("lora", each) for each in loras)]
        given["loras"] = [{"name": each.name, "sha256": sha256_of(each)} for each in loras]
        if vae is not None:
            given["vae"] = {"name": str(vae)}
        start = lease(self.root, [params(file) | given], inputs)
        if gone:
            for each in start.inputs:
                each.path.write_bytes(b"")
        return self.drawn(start)

    def drawn(self, start: Start) -> bytes:
        told = RecordingReporter()
        self.workload.run(start, told)
        assert told.failed_pictures == {}
        path, *_ = told.pictures[ORDER, 0]
        assert path is not None
        return path.read_bytes()

    def fresh(self, name: str, **given: Any) -> bytes:
        """The picture as an engine draws it that has drawn nothing before."""
        return EngineOfFiles(self.root, self.layouts, self.files, host_model_bytes=0).draw(name, **given)

    def in_host_memory(self) -> set[str]:
        by_sha256 = {sha256_of(file): name for name, file in self.files.items()}
        return {by_sha256[each] for each in self.workload.files_in_host_memory()}


@pytest.fixture
def node_of(tiny_folder: Path, tiny_sd15_folder: Path, tmp_path: Path) -> partial[EngineOfFiles]:
    """Makes engines. The bases red and blue are of SD 1.5, and differ in all weights."""
    layouts = tmp_path / "layouts"
    for family, folder in (("sdxl", tiny_folder), ("sd15", tiny_sd15_folder)):
        shutil.copytree(folder, layouts / family, ignore=shutil.ignore_patterns("*.safetensors"))
    red = write_single_file(tmp_path / "red.safetensors", tiny_sd15_pipeline())
    blue = tmp_path / "blue.safetensors"
    save_file({name: 1.01 * each for name, each in load_file(red).items()}, blue)
    return partial(EngineOfFiles, tmp_path / "leases", layouts, {"red": red, "blue": blue})


@pytest.fixture
def sd15(tiny_sd15_folder: Path) -> BaseModel:
    return load_model(ModelLocation(name=str(tiny_sd15_folder), key="k"), device="cpu", dtype=torch.float32)


def test_a_change_back_reads_no_file_and_draws_equal_bytes(node_of: partial[EngineOfFiles]) -> None:
    node = node_of()
    red, blue = node.draw("red"), node.draw("blue")
    assert (red, blue) == (node.fresh("red"), node.fresh("blue"))
    assert red != blue

    again = [node.draw(name, gone=True) for name in ("red", "blue", "red")]

    assert again == [red, blue, red]
    assert node.loads == ["red", "blue"]
    assert node.in_host_memory() == {"red", "blue"}


def test_a_change_to_another_family_and_back_reads_no_file(
    node_of: partial[EngineOfFiles], tiny_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "large")
    node, start = node_of(), partial(lease, tmp_path, [params(folder)])
    red, large = node.draw("red"), node.drawn(start())
    shutil.rmtree(folder)
    assert [node.draw("red", gone=True), node.drawn(start()), node.draw("red", gone=True)] == [red, large, red]
    assert node.loads == ["red", str(folder)]
    assert node.in_host_memory() == {"red"}  # a folder has no sha256 by which it could be told


def test_without_the_setting_each_change_reads_the_file(node_of: partial[EngineOfFiles]) -> None:
    node = node_of(host_model_bytes=0)
    pictures = [node.draw(name) for name in ("red", "blue", "red")]
    assert pictures[0] == pictures[2]
    assert node.loads == ["red", "blue", "red"]
    assert node.in_host_memory() == set()


def test_the_base_that_was_used_longest_ago_makes_room(node_of: partial[EngineOfFiles], sd15: BaseModel) -> None:
    node = node_of(host_model_bytes=2 * size_bytes_of(sd15))
    for name in ("red", "blue", "red", "blue"):
        node.draw(name)
    assert node.loads == ["red", "blue"]
    node.files["green"] = node.files["red"].with_name("green.safetensors")
    save_file({name: 0.99 * each for name, each in load_file(node.files["red"]).items()}, node.files["green"])
    node.draw("green")
    assert node.in_host_memory() == {"blue", "green"}
    assert node.draw("red") == node.fresh("red")
    assert node.loads == ["red", "blue", "green", "red"]


def test_base_in_host_memory_is_unchanged_by_leases(
    node_of: partial[EngineOfFiles], sd15: BaseModel, tmp_path: Path
) -> None:
    node, style = node_of(), _lora(sd15, tmp_path / "style.safetensors")
    plain = node.draw("red")

    adapted = node.draw("red", loras=[style])
    node.draw("blue")

    assert node.draw("red", gone=True) == plain
    assert node.draw("red", loras=[style]) == adapted != plain
    assert node.loads == ["red", "blue"]
    assert adapted == node.fresh("red", loras=[style])


def test_a_base_with_another_vae_is_another_base(
    node_of: partial[EngineOfFiles], tiny_sd15_folder: Path, tmp_path: Path
) -> None:
    node, vae = node_of(), tmp_path / "vae"
    shutil.copytree(tiny_sd15_folder / "vae", vae)
    config = (vae / "config.json").read_text()
    (vae / "config.json").write_text(config.replace("{", '{"scaling_factor": 0.5,', 1))
    (weights,) = vae.glob("*.safetensors")
    save_file({name: 1.02 * each for name, each in load_file(weights).items()}, weights)
    plain, other = node.draw("red"), node.draw("red", vae=vae)
    assert plain != other
    shutil.rmtree(vae)
    assert [node.draw("red", gone=True), node.draw("red", vae=vae, gone=True)] == [plain, other]
    assert node.loads == ["red", "red"]


def _lora(base: BaseModel, path: Path) -> Path:
    """A LoRA of UNet and text encoder, which changes a picture."""
    spec = TrainSpec(model="owner/name", dataset="ds_1", seed=1, rank=2, resolution=64, train_text_encoder=True)
    draw = torch.Generator().manual_seed(1)
    with add_adapters(base, spec) as adapters:
        named = adapters.tensors().items()
        tensors = {name: value + 0.1 * torch.randn(value.shape, generator=draw) for name, value in named}
    facts = facts_of(spec, step=1, layers_per_block=1, family=base.family)
    return write_lora("kohya", path, tensors, facts, dtype="float32")
