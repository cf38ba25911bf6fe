"""A running average of the adapter's weights, which is what the user gets when the job wants it."""

from collections.abc import Mapping

import torch

EMA = "ema."


class WeightAverage:
    """After each step the average moves towards the weights by 1 - decay.

    It warms up as diffusers' EMAModel does: after the first step it is the weights, and n steps later the decay is
    min(decay, (1 + n) / (10 + n)), so that the beginning is soon forgotten. Float32, where the weights are.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], *, decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self._average = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over `ema.<name>` of all names; of those that are missing, the weights as they are now."""
        for name, average in self._average.items():
            average.copy_(tensors.get(EMA + name, self._parameters[name].detach()))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the weights after `step` steps."""
        later = step - 1
        decay = min(self._decay, (1 + later) / (10 + later)) if later > 0 else 0.0
        for name, average in self._average.items():
            average.lerp_(self._parameters[name], 1.0 - decay)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The averages by the parameters' names, fp32, where the weights are; not copied."""
        return self._average
