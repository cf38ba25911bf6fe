"""AdamW over the adapter, with moments that can be taken out and put back bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from giornata.diffusion.ema import EMA, WeightAverage
from giornata.diffusion.schedule import learning_rate_factor
from giornata.protocol.specs import TrainSpec

EXP_AVG = "optimizer.exp_avg."
EXP_AVG_SQ = "optimizer.exp_avg_sq."


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters that share a learning rate, by name. They learn in the first `stop_step` steps; None: in all."""

    learning_rate: float
    parameters: Mapping[str, torch.nn.Parameter]
    stop_step: int | None = None


class AdapterOptimizer:
    """torch.optim.AdamW whose whole state is (step, first moments, second moments).

    Every parameter has a gradient and moments from the start, zeros if need be, so that all share one step count:
    AdamW skips parameters without a gradient (text encoder 1's last layer, whose output SDXL does not use), and
    each would need a count of its own. The implementation is fixed per kind of device: fused on CUDA, the plain
    loop elsewhere; they round differently, and the choice must not depend on anything else.
    """

    def __init__(self, groups: list[Group], spec: TrainSpec) -> None:
        self._spec = spec
        self._parameters = {name: parameter for group in groups for name, parameter in group.parameters.items()}
        self._groups = groups
        self.average = WeightAverage(self._parameters, decay=spec.ema_decay) if spec.use_ema else None
        self._on_cuda = all(parameter.is_cuda for parameter in self._parameters.values())
        self._adamw = torch.optim.AdamW(
            [{"params": list(group.parameters.values()), "lr": group.learning_rate} for group in groups],
            lr=spec.learning_rate,
            betas=(spec.adam_beta1, spec.adam_beta2),
            eps=spec.adam_epsilon,
            weight_decay=spec.adam_weight_decay,
            foreach=False,
            fused=self._on_cuda,
        )
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self.restore(0, {})

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """State as after `step` steps. Names are those of `state`; moments that are missing become zeros."""
        if self.average is not None:
            self.average.restore(tensors)
        for name, parameter in self._parameters.items():
            state = self._adamw.state[parameter]
            device = parameter.device if self._on_cuda else "cpu"
            state["step"] = torch.tensor(float(step), dtype=torch.float32, device=device)
            for field, prefix in (("exp_avg", EXP_AVG), ("exp_avg_sq", EXP_AVG_SQ)):
                moment = torch.zeros_like(parameter, requires_grad=False)
                if prefix + name in tensors:
                    moment.copy_(tensors[prefix + name])
                state[field] = moment

    def state(self) -> dict[str, torch.Tensor]:
        """`optimizer.exp_avg.<name>`, `optimizer.exp_avg_sq.<name>` and, with use_ema, `ema.<name>`; float32."""
        found = {}
        for name, parameter in self._parameters.items():
            state = self._adamw.state[parameter]
            found[EXP_AVG + name], found[EXP_AVG_SQ + name] = state["exp_avg"], state["exp_avg_sq"]
        averages = {} if self.average is None else self.average.tensors()
        return found | {EMA + name: average for name, average in averages.items()}

    def step(self, step: int) -> float:
        """Clip, update and clear the gradients of optimizer step `step` (from 0).

        Returns the UNet's learning rate of this step. Waits for no result of the device.
        """
        torch.nn.utils.clip_grad_norm_(
            list(self._parameters.values()), self._spec.max_grad_norm, foreach=self._on_cuda
        )
        factor = learning_rate_factor(self._spec, step)
        for settings, group in zip(self._adamw.param_groups, self._groups, strict=True):
            # AdamW with a rate of zero moves nothing, its decay of weights included.
            stopped = group.stop_step is not None and step >= group.stop_step
            settings["lr"] = 0.0 if stopped else group.learning_rate * factor
        self._adamw.step()
        if self.average is not None:
            self.average.update(step + 1)
        self._adamw.zero_grad(set_to_none=False)
        return self._spec.learning_rate * factor
