"""The parts that train: steps, graphs, compiled kernels, a base in 8 bits, memory.

Each returns what goes into the JSON file.
"""

import gc
import json
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.gpu.example_script import NoScript, script_of, script_told
from benchmarks.gpu.jobs import BaseTrainer, pictures, spreads
from benchmarks.gpu.plain import plain_ms
from benchmarks.gpu.settings import GpuSettings
from benchmarks.rig.figures import spread
from giornata.protocol.specs import TrainSpec

Way = Callable[[], dict[str, Any]]
GRAPHS = "cuda_graphs"
"""The field of a spec that switches CUDA graphs, in versions that have them."""
NOTHING: Mapping[str, Any] = MappingProxyType({"ways": {}, "failed": {}})


def steps(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """One job, jobs together, the plain loop, and the example script where it can run. Ratios are of images/s."""
    joint_rig, count = BaseTrainer(settings, home), settings.together
    ways: dict[str, Way] = {
        "alone": joint_rig.alone,
        f"{count} together": lambda: joint_rig.together(count),
        "peft and autocast": lambda: _plain(joint_rig, settings),
    }
    found = _by_turns(ways, settings.repetitions)
    inputs = pictures(home / "for-the-script-pictures", settings.pictures, settings.resolution)
    _let_go(joint_rig)
    try:
        path = script_of(settings.script, home)
        told = [script_told(path, settings, home, inputs) for _ in range(min(2, settings.repetitions))]
        rates = {"images_per_s": spread([1000 / each["step_ms"] for each in told], 3)}
        row = {"step_ms": spread([each["step_ms"] for each in told], 3), **rates, "peak_mib": None, "notices": []}
        found["ways"]["example script"] = {"repetitions": len(told), **row}
        found["script"] = {"sha256": told[0]["sha256"], "diffusers": told[0]["diffusers"]}
    except NoScript as error:
        found["script"] = {"missing": str(error)[-800:]}
    return found


def graphs(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """One job with CUDA graphs and without. Versions whose spec does not know of them measure nothing, and say so."""
    if GRAPHS not in TrainSpec.model_fields:
        return {"ways": {}, "failed": {}, "missing": f"the spec of this version has no {GRAPHS}"}
    if settings.device == "cpu":
        return {"ways": {}, "failed": {}, "missing": "a CPU has none"}
    joint_rig = BaseTrainer(settings, home)
    ways: dict[str, Way] = {name: partial(joint_rig.alone, **{GRAPHS: name}) for name in ("off", "on")}
    return _by_turns(ways, settings.repetitions)


def compiled(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """One job with compiled kernels and without; with CUDA graphs too where the spec knows of them."""
    joint_rig = BaseTrainer(settings, home)
    off = {GRAPHS: "off"} if GRAPHS in TrainSpec.model_fields else {}
    ways: dict[str, Way] = {name: partial(joint_rig.alone, **off, compile=name) for name in ("off", "on")}
    if off and settings.device == "cuda":
        ways["on, with CUDA graphs"] = partial(joint_rig.alone, **{GRAPHS: "on"}, compile="on")
    return _by_turns(ways, settings.repetitions)


def eight_bits(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """One job on a base in each format, one format after the other: the base is narrowed anew for each."""
    joint_rig = BaseTrainer(settings, home)
    found: dict[str, Any] = {"ways": {}, "failed": {}}
    for quantization in ("none", "int8", "fp8"):
        way = partial(joint_rig.alone, base_quantization=quantization)
        told = _by_turns({quantization: way}, min(2, settings.repetitions), before=found)
        found = {name: {**found[name], **told[name]} for name in found}
    return found


def memory(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """The allocator's peak while steps run, and what fit.py expects of the tensors. A CPU tells no peak."""
    joint_rig, found = BaseTrainer(settings, home), {}
    jobs: Mapping[str, dict[str, Any]] = {
        "plain": {},
        "selective gradient checkpointing": {"gradient_checkpointing": "selective"},
        "gradient checkpointing": {"gradient_checkpointing": True},
        "batch 4": {"train_batch_size": 4},
        "rank 64, feed-forward too": {"rank": 64, "target_modules": ("to_q", "to_k", "to_v", "to_out.0", "ff.net.2")},
        "DoRA": {"use_dora": True},
    }
    for name, changes in jobs.items():
        told = joint_rig.alone(**changes)
        expected_bytes = joint_rig.expected_bytes(joint_rig.spec(**changes))
        peak = told["peak_bytes"]
        found[name] = {
            "expected_mib": round(expected_bytes / 2**20),
            "peak_mib": None if peak is None else round(peak / 2**20),
            "peak_over_expected": None if peak is None else round(peak / expected_bytes, 3),
        }
    return {"jobs": found}


def _plain(joint_rig: BaseTrainer, settings: GpuSettings) -> dict[str, Any]:
    base = joint_rig.built.base
    if base is None:
        raise RuntimeError("no base was built yet")
    if base.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(base.device)
    step_ms = plain_ms(base, joint_rig.spec(), settings)
    peak = torch.cuda.max_memory_allocated(base.device) if base.device.type == "cuda" else None
    return {"step_ms": step_ms, "images_per_s": 1000 / step_ms, "peak_bytes": peak, "notices": []}


def _by_turns(ways: Mapping[str, Way], repetitions: int, *, before: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """`ways`: all of them, and all of them again in each repetition. A way that fails is left out from then on;
    `failed` says why. After each run a line tells what is known, with that of `before`: a part that is ended for
    taking too long leaves as much."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    found: dict[str, Any] = {"ways": {}, "failed": {}}
    for _ in range(repetitions):
        for name, way in ways.items():
            if name in found["failed"]:
                continue
            try:
                runs[name].append(way())
                found["ways"][name] = spreads(runs[name])
            except Exception as error:  # noqa: BLE001 - the supervisor of the ways: the others are worth measuring
                found["failed"][name] = f"{type(error).__name__}: {error}"[-1000:]
                traceback.print_exc()
            print(json.dumps({each: {**before[each], **found[each]} for each in found}), flush=True)
    return found


def _let_go(joint_rig: BaseTrainer) -> None:
    """Another process wants the device's memory now."""
    joint_rig.drop()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
