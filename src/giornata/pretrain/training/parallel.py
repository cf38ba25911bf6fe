"""The model on the trainers: replicated (DDP), or with gradients and moments sharded (FSDP2, HSDP). Passes of as many
pictures as fit are found by trial.

Weights, gradients as they are summed, and moments are float32. With bf16, a replicated model computes under autocast;
a sharded one gathers its weights as bfloat16, so that every operation is in it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch
from diffusers import UNet2DConditionModel
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.models import answer_to_zeros
from giornata.protocol.pretraining import LATENT_SIDE_PX, Parallel, Precision, Train

CPU_ROWS = 64
"""On a CPU, where nothing runs out early and larger passes are not faster."""
HEADROOM, MOMENTS = 8, 2
"""A size is taken when an eighth more fits too: batches of other shapes and the allocator's gaps need room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """`model` is what is called while training, `unet` holds the parameters. Examples are fed in `dtype`."""

    model: nn.Module
    unet: UNet2DConditionModel
    device: torch.device
    dtype: torch.dtype
    autocast: bool

    def computing(self) -> AbstractContextManager[object]:
        """The context of a forward pass: autocast, where it is used."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    @contextmanager
    def passing(self, *, last: bool) -> Iterator[None]:
        """Around the passes of a part of a step: gradients are summed over the trainers in the last part."""
        if isinstance(self.unet, FSDPModule):
            self.unet.set_requires_gradient_sync(last)
            self.unet.set_reshard_after_backward(last)
        quiet = isinstance(self.model, DistributedDataParallel) and not last
        with self.model.no_sync() if quiet else nullcontext():
            yield

    def gather_anew(self) -> None:
        """Weights were changed, or will be, outside of the optimizer: what was gathered of them is forgotten."""
        for module in self.unet.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by the names that they have in the UNet alone."""
        return dict(self.unet.named_parameters())


def shard_model(
    unet: UNet2DConditionModel, train: Train, channel: Channel, device: torch.device, *, node_size: int | None = None
) -> Sharding:
    """The UNet on the device, as the configuration wants it. `node_size` is how many trainers share a node (HSDP).

    A process that is not in a group trains alone, whatever the configuration says.
    """
    unet.to(device)
    if train.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    bf16 = train.mixed_precision is Precision.BF16
    sharded = channel.together and train.parallel is not Parallel.DDP
    if train.channels_last and not sharded:
        unet.to(memory_format=torch.channels_last)  # FSDP2 takes contiguous weights only
        unet.conv_in.register_forward_pre_hook(lambda _, args: args[0].contiguous(memory_format=torch.channels_last))
    model: nn.Module = unet
    if sharded:
        _shard(unet, _mesh(train.parallel, channel, device, node_size), bf16=bf16)
    elif channel.together and channel.world > 1:
        ids = [device.index or 0] if device.type == "cuda" else None
        model = DistributedDataParallel(unet, device_ids=ids, gradient_as_bucket_view=True)
    return Sharding(
        model=model,
        unet=unet,
        device=device,
        dtype=torch.bfloat16 if bf16 and sharded else torch.float32,
        autocast=bf16 and not sharded,
    )


def _shard(unet: UNet2DConditionModel, mesh: DeviceMesh, *, bf16: bool) -> None:
    # Inputs are not cast: SDXL's sizes of pictures do not survive bfloat16.
    half = torch.bfloat16 if bf16 else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    middle = () if unet.mid_block is None else (unet.mid_block,)
    for block in (*unet.down_blocks, *middle, *unet.up_blocks):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(unet, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def full_nodes(nodes: Sequence[str]) -> int | None:
    """The number of trainers on each node, from the node of each trainer, by rank.

    None where nodes have unequal numbers, or ranks that do not follow one another: HSDP has no replicas then, and all
    shard together. All trainers have to come to the same answer, or they would wait for ever.
    """
    sizes = [len(list(trainers)) for _, trainers in groupby(nodes)]
    return sizes[0] if len(sizes) == len(set(nodes)) and len(set(sizes)) == 1 else None


def _mesh(parallel: Parallel, channel: Channel, device: torch.device, node_size: int | None) -> DeviceMesh:
    shards = channel.world if parallel is Parallel.FSDP2 else node_size or channel.world
    if channel.world % shards:
        raise ValueError(f"{channel.world} trainers cannot be nodes of {shards} each: HSDP needs full nodes")
    if parallel is Parallel.FSDP2:
        return init_device_mesh(device.type, (channel.world,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (channel.world // shards, shards), mesh_dim_names=("replicate", "shard"))


def micro_batch(most: int, device: torch.device, attempt: Callable[[int], None], channel: Channel) -> int:
    """Find a micro-batch that fits, the same for all trainers: `most`, halved as often as needed.

    Raises torch.OutOfMemoryError when not even one row does.
    """
    if device.type != "cuda":
        return min(most, CPU_ROWS)
    return min(rows for (rows,) in channel.gather([fitting(most, attempt)]))


def fitting(most: int, attempt: Callable[[int], None]) -> int:
    """The first of most, most / 2, … that fits with headroom. `attempt` runs passes of so many rows, and raises
    torch.OutOfMemoryError."""
    rows = most
    while True:
        try:
            attempt(rows + rows // HEADROOM)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            rows = max(1, rows // 2)
        else:
            return rows


def try_passes(unet: UNet2DConditionModel, train: Train, channel: Channel, resolution: int, rows: int) -> None:
    """Passes of one UNet that only show whether so many rows fit, before the model is spread over the trainers.

    Trying the sharded model would need all trainers to run out of memory in the same pass. This way each tries alone,
    with memory taken for moments and average, which a step holds besides. Leaves no gradient behind. Raises
    torch.OutOfMemoryError.
    """
    device, side = unet.device, resolution // LATENT_SIDE_PX
    copies, shards = MOMENTS + train.use_ema, 1 if train.parallel is Parallel.DDP else channel.world
    if train.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    try:
        room = torch.empty(unet.num_parameters() * copies // shards, dtype=torch.float32, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=train.mixed_precision is Precision.BF16):
            answer_BCHW = answer_to_zeros(unet, rows=rows, side=side, device=device)
        answer_BCHW.square().sum().backward()
        del room
    finally:
        unet.zero_grad(set_to_none=True)
        unet.disable_gradient_checkpointing()
        torch.cuda.empty_cache()
