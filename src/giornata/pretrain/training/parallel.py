"""The model on the trainers: replicated (DDP), or with gradients and moments sharded (FSDP2, HSDP).

Weights, gradients as they are summed, and moments are float32. With bf16, a replicated model computes under autocast;
a sharded one gathers its weights as bfloat16, so that every operation is in it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch
from diffusers import UNet2DConditionModel
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from giornata.pretrain.run_state.peers import Peers
from giornata.protocol.pretraining import Parallel, Precision, Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """`model` is what is called while training, `unet` holds the parameters. Examples are fed in `dtype`."""

    model: nn.Module
    unet: UNet2DConditionModel
    device: torch.device
    dtype: torch.dtype
    autocast: bool
    channels_last: bool

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
    unet: UNet2DConditionModel, train: Train, peers: Peers, device: torch.device, *, node_size: int | None = None
) -> Sharding:
    """The UNet on the device, as the configuration wants it. `node_size` is how many trainers share a node (HSDP).

    A process that is not in a group trains alone, whatever the configuration says.
    """
    unet.to(device)
    if train.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    bf16 = train.mixed_precision is Precision.BF16
    sharded = peers.together and train.parallel is not Parallel.DDP
    if train.channels_last and not sharded:
        unet.to(memory_format=torch.channels_last)  # FSDP2 takes contiguous weights only
    model: nn.Module = unet
    if sharded:
        _shard(unet, _mesh(train.parallel, peers, device, node_size), bf16=bf16)
    elif peers.together and peers.world > 1:
        ids = [device.index or 0] if device.type == "cuda" else None
        model = DistributedDataParallel(unet, device_ids=ids, gradient_as_bucket_view=True)
    return Sharding(
        model=model,
        unet=unet,
        device=device,
        dtype=torch.bfloat16 if bf16 and sharded else torch.float32,
        autocast=bf16 and not sharded,
        channels_last=train.channels_last,
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


def _mesh(parallel: Parallel, peers: Peers, device: torch.device, node_size: int | None) -> DeviceMesh:
    shards = peers.world if parallel is Parallel.FSDP2 else node_size or peers.world
    if peers.world % shards:
        raise ValueError(f"{peers.world} trainers cannot be nodes of {shards} each: HSDP needs full nodes")
    if parallel is Parallel.FSDP2:
        return init_device_mesh(device.type, (peers.world,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (peers.world // shards, shards), mesh_dim_names=("replicate", "shard"))


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """A group of one, in which a single process can shard too: FSDP2's bfloat16 is faster than autocast's."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()
