"""A job on a single file trains what it trains on the same model in diffusers layout."""

import shutil
from functools import partial
from pathlib import Path

from safetensors.torch import load
from tests.fixtures.single_file import write_single_file
from tests.fixtures.train_rig import TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import load_base
from giornata.diffusion.families import SD15
from giornata.workloads.train.workload import TrainWorkload


def test_the_same_weights_are_trained(tiny_sd15_folder: Path, tmp_path: Path) -> None:
    pipeline = SD15.load_pipeline(tiny_sd15_folder, dtype=None)
    file = write_single_file(tmp_path / "model.safetensors", pipeline)
    layouts = tmp_path / "layouts"
    shutil.copytree(tiny_sd15_folder, layouts / "sd15", ignore=shutil.ignore_patterns("*.safetensors"))
    inputs = draw_pictures(tmp_path / "pictures", 3)
    results = []
    for model in (tiny_sd15_folder, file):
        spec = spec_for(model, max_train_steps=3, train_text_encoder=True, text_encoder_lr=1e-3)
        train_rig = TrainRig(root=tmp_path / f"of {model.name}", spec=spec, inputs=inputs)
        workload = TrainWorkload(device="cpu", load=partial(load_base, layouts=layouts))
        results.append(train_rig.run(workload=workload).artifacts)
    for name in (name for name in results[0] if name.endswith(".safetensors")):
        ours, theirs = load(results[0][name]), load(results[1][name])
        assert ours.keys() == theirs.keys()
        assert all((ours[key] == theirs[key]).all() for key in ours)
