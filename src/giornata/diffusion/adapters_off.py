"""The base model's own word, while adapters are on it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from giornata.diffusion.slot_layer import SlotLinear


@contextmanager
def adapters_off(models: Iterable[nn.Module]) -> Iterator[None]:
    """Within, the models answer as if they had no adapters, and nothing is recorded for gradients.

    Afterwards every weight wants gradients or not, as it did before: peft switches that along with the adapter.
    """
    modules = [module for model in models for module in model.modules()]
    layers = [module for module in modules if isinstance(module, BaseTunerLayer)]
    slots = [(module, module.stack) for module in modules if isinstance(module, SlotLinear)]
    wanted = [(parameter, parameter.requires_grad) for layer in layers for parameter in layer.parameters()]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        for slot, _ in slots:
            slot.wear(None)
        with torch.no_grad():
            yield
    finally:
        for slot, stack in slots:
            slot.wear(stack)
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, before in wanted:
            parameter.requires_grad_(before)
