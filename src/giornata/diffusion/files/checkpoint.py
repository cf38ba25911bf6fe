"""A checkpoint: one safetensors file with everything that an exact resume needs. Nothing is ever unpickled.

    adapter.<name>                the adapter's weights, float32
    optimizer.<key>.<name>        what the optimizer remembers of each of them, such as AdamW's exp_avg and exp_avg_sq
    optimizer.group.<n>.<key>     its numbers for a group of them, float64
    ema.<name>                    what users get, where that is an average
    log.loss                      the loss of every step so far, in jobs that report to a tracker
    log.validation_loss           the losses on held-out pictures so far
    log.samples                   small pictures of the steps so far, in jobs that draw in the middle of training
    log.more_samples              those of steps without a column, in jobs that report to a tracker, too
    metadata "giornata"           the Header, as JSON with sorted keys

The one metadata key keeps the bytes a function of the content (safetensors writes several keys in no fixed order).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from giornata.diffusion.draws.determinism import Fingerprint
from giornata.diffusion.draws.sample_order import Sample
from giornata.diffusion.families import SDXL
from giornata.diffusion.tensor_file import (
    UnreadableTensorFile,
    json_sha256,
    read_file_header,
    read_tensors,
    write_tensor_file,
)
from giornata.domain.errors import Fault, WorkloadFailed, in_short
from giornata.domain.files.datasets import usage_words
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

FORMAT = 1
ADAPTER = "adapter."
NOTHING: Mapping[str, torch.Tensor] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The description of a checkpoint inside its own file. `step` counts the optimizer steps that are done.

    `fingerprint` is that of the attempt that wrote it; `history` lists each fingerprint that the weights went
    through, in order: [{"from_step": 0, "fingerprint": {…}}, …], the present one last. `base_sha256` is the hash of
    the base model by giornata.diffusion.base.weights_digest; older checkpoints have none, and it is empty. `family`
    is the base model's, which not every spec tells.
    """

    step: int
    spec: dict[str, Any]
    spec_sha256: str
    data_sha256: str
    fingerprint: Fingerprint
    history: tuple[dict[str, Any], ...]
    base_sha256: str = ""
    format: int = FORMAT
    family: str = SDXL.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A checkpoint that was read and found whole. Names in `tensors` are those of the file."""

    header: Header
    tensors: Mapping[str, torch.Tensor]


def told_spec(spec: TrainSpec) -> dict[str, Any]:
    """Return the spec as a checkpoint stores it: without the files' name, by which no checkpoint may differ from
    another."""
    return spec.model_dump(mode="json", exclude={"output_name"})


def spec_sha256(spec: TrainSpec) -> str:
    """Hash of the whole spec, but for the files' name."""
    return json_sha256(told_spec(spec))


def data_sha256(samples: Iterable[Sample]) -> str:
    """Hash of what is trained on: contents, captions, roles, repeats, resolutions; in no order and under no name."""
    return json_sha256(
        sorted(
            [sample.role, sample.sha256, sample.caption, *usage_words(sample.repeats, sample.resolution)]
            for sample in samples
        )
    )


def write_checkpoint(path: Path, header: Header, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write aside, sync, rename, sync the folder: under `path` there is a whole checkpoint or none."""
    write_tensor_file(path, asdict(header), tensors, durable=True)


def read_header(path: Path) -> Header:
    """Read the header alone. Raises WorkloadFailed(CRASHED) when the file is not a checkpoint."""
    try:
        fields = read_file_header(path)
        fields["history"] = tuple(fields["history"])
        header = Header(**fields)
    except UnreadableTensorFile as error:
        raise _unreadable(path, f"it is not a whole checkpoint ({error})") from error
    except (KeyError, TypeError) as error:
        raise _unreadable(path, f"it is not a whole checkpoint ({type(error).__name__}: {error})") from error
    if header.format != FORMAT:
        raise _unreadable(path, f"its format is {header.format}, and this version reads {FORMAT}")
    return header


def read_checkpoint(
    path: Path,
    *,
    step: int,
    spec: TrainSpec,
    data_hash: str,
    wanted: Mapping[str, torch.Tensor],
    welcome: Mapping[str, torch.Tensor] = NOTHING,
) -> LoadedCheckpoint:
    """Read a checkpoint of this very job. `wanted` are tensors of the names, shapes and dtypes that it has to have,
    and `welcome` those that it may lack, because earlier versions did not write them.

    Raises WorkloadFailed: CRASHED when the file cannot be read, BAD_SPEC when it is of another job; the latter
    lists all that does not fit: another spec, other data, another step, missing, surplus or misshapen tensors,
    values that are not finite.
    """
    header = read_header(path)
    faults = header_faults(header, step=step, spec=spec, data_hash=data_hash)
    try:
        _, tensors = read_tensors(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, f"its tensors cannot be read ({error})") from error
    there = {name: like for name, like in welcome.items() if name in tensors}
    faults += _tensor_faults(tensors, {**wanted, **there})
    refuse(path, faults)
    return LoadedCheckpoint(header=header, tensors=tensors)


def header_faults(header: Header, *, step: int, spec: TrainSpec, data_hash: str) -> list[Fault]:
    """Return the reasons why a checkpoint is not one of this job; empty when it is."""
    # A field that this version knows and that one did not yet means there what it means by default here.
    ours, theirs = told_spec(spec), _defaults() | header.spec
    faults = []
    if theirs != ours or json_sha256(header.spec) != header.spec_sha256:
        changed = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        message = "the checkpoint was made under another spec" + (f": {', '.join(changed)} differ" if changed else "")
        faults.append(Fault(where="resume.spec_sha256", message=message, hint="resume only the job that wrote it"))
    if header.data_sha256 != data_hash:
        message = "the checkpoint was trained on other pictures or captions"
        faults.append(Fault(where="resume.data_sha256", message=message, hint="resume with the very same dataset"))
    if header.step != step:
        faults.append(Fault(where="resume.step", message=f"step {step} was named, the file says {header.step}"))
    return faults


def base_faults(header: Header, base_sha256: str) -> list[Fault]:
    """Return a fault when the weights were trained on another base model than this one, whatever its name."""
    if header.base_sha256 in {"", base_sha256}:
        return []
    message = (
        f"has other weights than the model of this name that the checkpoint was trained on "
        f"({base_sha256[:12]}, not {header.base_sha256[:12]}): it changed under its name"
    )
    hint = "bring the old one back and retry the job; name a revision, which does not move, or start anew"
    return [Fault(where="spec.pretrained_model_name_or_path", message=message, hint=hint)]


def _defaults() -> dict[str, Any]:
    """Return the default values of the spec's optional fields."""
    spec = TrainSpec.model_construct(pretrained_model_name_or_path="", dataset="")
    required = {"pretrained_model_name_or_path", "dataset"}
    return {name: value for name, value in told_spec(spec).items() if name not in required}


def _tensor_faults(tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[Fault]:
    faults = [Fault(where=name, message="is missing") for name in sorted(wanted.keys() - tensors.keys())]
    faults += [Fault(where=name, message="is unknown") for name in sorted(tensors.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & tensors.keys()):
        tensor, like = tensors[name], wanted[name]
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            found = f"{tuple(tensor.shape)} of {tensor.dtype}"
            faults.append(Fault(where=name, message=f"is {found}, not {tuple(like.shape)} of {like.dtype}"))
        elif not bool(torch.isfinite(tensor).all()):
            faults.append(Fault(where=name, message="holds values that are not finite"))
    return faults


def _unreadable(path: Path, why: str) -> WorkloadFailed:
    """Return the failure for an unreadable checkpoint. It blames neither job nor node: the bytes were verified on
    arrival, so a second machine should try them."""
    return WorkloadFailed(Reason.CRASHED, f"cannot resume from {path.name}: {why}")


def refuse(path: Path, faults: list[Fault], reason: Reason = Reason.BAD_SPEC) -> None:
    """Raise WorkloadFailed that carries all faults, if there are any."""
    if faults:
        raise WorkloadFailed(reason, f"cannot resume from {path.name}: {in_short(faults)}", tuple(faults))


# ---- snapshots: tensors of one moment, copied to the CPU while the steps go on
#
# All tensors of a kind are joined into one, so that a copy off a GPU is one transfer rather than thousands. On CUDA
# it goes to pinned memory on a stream of its own: the caller may change the originals at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tensors of one device and dtype, one after the other in `flat_N`; `copied` tells when they have arrived."""

    shapes: Mapping[str, torch.Size]
    flat_N: torch.Tensor
    copied: torch.cuda.Event | None

    def tensors(self) -> dict[str, torch.Tensor]:
        if self.copied is not None:
            self.copied.synchronize()
        pieces = self.flat_N.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


class TensorSnapshot:
    """Copies of tensors, on their way to the CPU."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        kinds: dict[tuple[torch.device, torch.dtype], dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            kinds[tensor.device, tensor.dtype][name] = tensor.detach()
        self._parts = [_part(named) for named in kinds.values()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors, on the CPU, by name. Waits until they are there."""
        return {name: tensor for part in self._parts for name, tensor in part.tensors().items()}


def _part(named: Mapping[str, torch.Tensor]) -> _Part:
    shapes = {name: tensor.shape for name, tensor in named.items()}
    flat_N = torch.cat([tensor.reshape(-1) for tensor in named.values()])
    if not flat_N.is_cuda:
        return _Part(shapes=shapes, flat_N=flat_N, copied=None)
    aside = torch.cuda.Stream(flat_N.device)
    aside.wait_stream(torch.cuda.current_stream(flat_N.device))
    with torch.cuda.stream(aside):
        host_N = torch.empty(flat_N.shape, dtype=flat_N.dtype, pin_memory=True)
        host_N.copy_(flat_N, non_blocking=True)
        flat_N.record_stream(aside)
        copied = aside.record_event()
    return _Part(shapes=shapes, flat_N=host_N, copied=copied)
