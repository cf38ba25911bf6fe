"""The optimizer over the adapter, with a state that can be taken out and put back bit for bit."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from giornata.diffusion.adapter.adapter_plan import size_of
from giornata.diffusion.draws.schedule import learning_rate_factor
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.protocol.specs import TrainSpec

# ---- `scale_weight_norms` of sd-scripts: after each step no layer's product s·B·A is longer than a bound
#
# Shapes: G layers of one shape and one scale s; r rank, I inputs (a kernel counted among them), O outputs. The
# length is Frobenius's: ‖B·A‖² = sum((BᵀB) ∘ (A·Aᵀ)), two r x r matrices, so that no matrix of the layer's own size
# is made. A layer that is too long has A and B multiplied by sqrt(bound / length) each.

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


class NormLimit:
    """A bound on the norms of layers, called after each update. `scaled` is how many layers were too long the last
    time, a scalar on the device; no call waits for the device."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], spec: TrainSpec, *, most: float) -> None:
        self._most, self._parameters = most, parameters
        alike: dict[tuple[torch.Size, torch.Size, float], list[str]] = defaultdict(list)
        for layer in (name.removesuffix(A_SUFFIX) for name in parameters if name.endswith(A_SUFFIX)):
            a, b = parameters[layer + A_SUFFIX], parameters[layer + B_SUFFIX]
            alike[a.shape, b.shape, _scale(spec, layer)].append(layer)
        self._groups = tuple((scale, tuple(layers)) for (_, _, scale), layers in alike.items())
        self.scaled = torch.zeros(())

    @torch.no_grad()
    def __call__(self) -> None:
        """Shorten the layers that are too long."""
        counts = [self._shorten(scale, layers) for scale, layers in self._groups]
        self.scaled = torch.stack(counts).sum()

    def _shorten(self, scale: float, layers: Sequence[str]) -> torch.Tensor:
        down = [self._parameters[layer + A_SUFFIX] for layer in layers]
        up = [self._parameters[layer + B_SUFFIX] for layer in layers]
        down_GrI = torch.stack([each.flatten(1) for each in down])
        up_GOr = torch.stack([each.flatten(1) for each in up])
        squared_G = ((up_GOr.mT @ up_GOr) * (down_GrI @ down_GrI.mT)).sum(dim=(1, 2)).clamp(min=0.0)
        lengths_G = squared_G.sqrt() * scale
        too_long_G = lengths_G > self._most
        factors = torch.where(too_long_G, (self._most / lengths_G).sqrt(), torch.ones_like(lengths_G)).unbind()
        for each, factor in zip((*down, *up), (*factors, *factors), strict=True):
            each.mul_(factor)
        return too_long_G.sum()


def norm_limit(parameters: Mapping[str, torch.nn.Parameter], spec: TrainSpec) -> NormLimit | None:
    """Return the norm limit that the job wants after each update, or None. `parameters` by the names of `Adapters`;
    they stay the same objects."""
    most = spec.scale_weight_norms
    return None if most is None else NormLimit(parameters, spec, most=most)


def _scale(spec: TrainSpec, layer: str) -> float:
    size = size_of(spec, layer)
    return size.alpha / size.rank


STATE = "optimizer."
GROUP = "optimizer.group."


class JobOptimizer(Protocol):
    """The optimizer of one job: alone, as `AdapterOptimizer`, or in a slot of a batch, as `SlotOptimizer`."""

    def step(self, step: int) -> float: ...

    def state(self) -> dict[str, torch.Tensor]: ...

    def gradients(self) -> list[torch.Tensor]: ...

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def result(self) -> dict[str, torch.Tensor]: ...

    def forget_gradients(self) -> None: ...

    @property
    def scaled(self) -> torch.Tensor | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate, by name. They learn in the first `stop_step` steps; None: in all.

    `settle` is called after each update in these, and may change the parameters.
    """

    learning_rate: float
    parameters: Mapping[str, torch.nn.Parameter]
    stop_step: int | None = None
    settle: Callable[[], None] | None = None

    def learns(self, step: int) -> bool:
        """Return True when optimizer step `step` (from 0) changes the group."""
        return self.stop_step is None or step < self.stop_step


class AdapterOptimizer:
    """An optimizer of the field whose whole state is (step, tensors of each parameter, numbers of each group).

    Every parameter has a gradient and a state from the start, zeros if need be, so that all share one step count:
    optimizers skip parameters without a gradient (text encoder 1's last layer, whose output SDXL does not use), and
    each would need a count of its own. The implementation is fixed per kind of device: they round differently, and
    the choice must not depend on anything else. `settle` is called after each update, before an average is taken.
    """

    def __init__(self, groups: list[ParameterGroup], spec: TrainSpec, *, settle: NormLimit | None = None) -> None:
        self._spec, self._groups, self._kind, self._settle = spec, groups, KINDS[spec.optimizer], settle
        self._parameters = {name: parameter for group in groups for name, parameter in group.parameters.items()}
        self._on_cuda = all(parameter.is_cuda for parameter in self._parameters.values())
        self._torch = self._kind.make(
            [{"params": list(group.parameters.values()), "lr": group.learning_rate} for group in groups],
            spec,
            fused=self._on_cuda,
        )
        self.average = WeightAverage(self._parameters, decay=spec.ema_decay) if spec.use_ema else None
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self.restore(0, {})

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the state as after `step` steps. Names are those of `state`; missing tensors are as at the
        beginning."""
        for name, parameter in self._parameters.items():
            state = self._kind.begin(parameter, step, on_cuda=self._on_cuda)
            for key in self._kind.tensors:
                if (kept := tensors.get(f"{STATE}{key}.{name}")) is not None:
                    state[key].copy_(kept)
            self._torch.state[parameter] = state
        numbers = self._kind.numbers
        numbers = numbers if self._kind.first_numbers is None else {**numbers, **self._kind.first_numbers(self._spec)}
        for number, group in enumerate(self._torch.param_groups):
            for key, first in numbers.items():
                kept = tensors.get(f"{GROUP}{number}.{key}")
                group[key] = first if kept is None else type(first)(kept.item())
        if self.average is not None:
            self.average.restore(tensors)

    def state(self) -> dict[str, torch.Tensor]:
        """Return all of the state but the step; the tensors themselves, where they are.

        `optimizer.<key>.<parameter>` (float32, or as the optimizer packs it), `optimizer.group.<n>.<key>` (float64
        scalars) and, where the result is another than the weights, `ema.<parameter>` (float32).
        """
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            state = self._torch.state[parameter]
            found |= {f"{STATE}{key}.{name}": state[key] for key in self._kind.tensors if key in state}
        for number, group in enumerate(self._torch.param_groups):
            for key in self._kind.numbers:
                found[f"{GROUP}{number}.{key}"] = torch.as_tensor(group[key], dtype=torch.float64)
        if self.average is not None or self._kind.result is not None:
            found |= {EMA + name: tensor for name, tensor in self._result().items()}
        return found

    def result(self) -> dict[str, torch.Tensor]:
        """Return the weights that the user gets, copied to the CPU in fp32: an average if the job wants one or the
        optimizer makes one, the weights themselves otherwise."""
        return {name: tensor.cpu().clone() for name, tensor in self._result().items()}

    @torch.no_grad()
    def _result(self) -> Mapping[str, torch.Tensor]:
        if self.average is not None:
            return self.average.tensors
        made = self._kind.result
        if made is None:
            return {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {
            name: made(parameter, self._torch.state[parameter], self._spec).detach()
            for name, parameter in self._parameters.items()
        }

    def step(self, step: int) -> float:
        """Clip, update and clear the gradients of optimizer step `step` (from 0).

        Returns the UNet's learning rate of this step. Waits for no result of the device unless the optimizer does.
        """
        learning = [group for group in self._groups if group.learns(step)]
        for group in self._groups:
            if not group.learns(step):
                _clear(group.parameters.values())  # nothing of it shall count in the norm
        torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), self._spec.max_grad_norm, foreach=True)
        factor = learning_rate_factor(self._spec, step)
        for settings, group in zip(self._torch.param_groups, self._groups, strict=True):
            settings["lr"] = group.learning_rate * factor if group.learns(step) else 0.0
        self._torch.step()
        for group in learning:
            if group.settle is not None:
                group.settle()
        if self._settle is not None:
            self._settle()
        if self.average is not None:
            self.average.update(step + 1)
        self.forget_gradients()
        return self._spec.learning_rate * factor

    @property
    def scaled(self) -> torch.Tensor | None:
        """Return how many layers the last step left too long, and scaled; None for jobs without such a bound."""
        return None if self._settle is None else self._settle.scaled

    def gradients(self) -> list[torch.Tensor]:
        """Return the tensors in which the passes of a step add up gradients: they stay where they are."""
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    def forget_gradients(self) -> None:
        """Set all gradients to zero, in place."""
        self._torch.zero_grad(set_to_none=False)


def _clear(parameters: Iterable[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


# ---- the running average (EMA) of the adapter's weights, which users get when the job wants it

EMA = "ema."


class WeightAverage:
    """A moving average of the weights: after each step it moves towards the weights by 1 - decay.

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
        """Return the averages by the parameters' names, fp32, where the weights are; not copied."""
        return self._average
