"""Places for adapters: the same names, weights and formula as an adapter alone, and nobody feels the neighbors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.contract.diffusion.test_adapters import trained
from tests.contract.diffusion.test_formats import facts

from giornata.diffusion.adapter.adapter_plan import lean_shapes
from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear, StackedLora, adapters_off
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.files.adapter_start import check_start, start_from
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.domain.errors import WorkloadFailed
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.results.checkpoint_writer import state_of
from giornata.workloads.train.steps import optimizer_of

RANKS = (2, 5, 8, 1)
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2")


def spec_of(folder: Path, **fields: object) -> TrainSpec:
    given = {"model": str(folder), "dataset": "ds_1", "seed": 5, "target_modules": TARGETS, **fields}
    return TrainSpec.model_validate(given)


def slots_on(base: BaseModel, *, count: int = 4, text_encoders: bool = False) -> AdapterSlots:
    return AdapterSlots(base, spec_of(Path("base"), train_text_encoder=text_encoders), count=count, rank=8)


def filled(parameters: dict[str, torch.nn.Parameter], seed: int) -> None:
    """Weights that make a difference; A alone does not."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(normal(seed, "test", name, shape=tuple(parameter.shape)) * 0.1)


def noise_of(base: BaseModel, rows: int) -> torch.Tensor:
    """A forward pass with inputs that depend on the row's number only."""
    latents = torch.stack([normal(row, "latents", shape=(4, 8, 8)) for row in range(rows)])
    text = torch.stack([normal(row, "text", shape=(77, 64)) for row in range(rows)])
    ids = {"text_embeds": torch.ones((rows, 32)), "time_ids": torch.full((rows, 6), 64.0)}
    timesteps = torch.arange(rows) * 100 + 5
    return base.unet(latents, timesteps, text, added_cond_kwargs=ids).sample


@pytest.fixture
def specs(tiny_folder: Path) -> list[TrainSpec]:
    return [spec_of(tiny_folder, rank=rank, alpha=3.0, seed=rank) for rank in RANKS]


@pytest.fixture
def slots(tiny_base: BaseModel) -> Iterator[AdapterSlots]:
    with slots_on(tiny_base) as made:
        made.set_width(4)
        yield made


@pytest.mark.parametrize("text_encoders", [False, True])
def test_a_slot_begins_as_an_adapter_alone(tiny_base: BaseModel, tiny_folder: Path, text_encoders: bool) -> None:
    spec = spec_of(tiny_folder, rank=5, train_text_encoder=text_encoders)
    with add_adapters(tiny_base, spec) as adapters:
        alone = state_of(adapters, optimizer_of(adapters, spec))
    with slots_on(tiny_base, text_encoders=text_encoders) as slots:
        slot = slots.assign(2, spec)
        placed = state_of(slot.adapters, SlotOptimizer(slot, spec))
    assert set(placed) == set(alone)
    assert all(torch.equal(placed[name], alone[name]) for name in alone)
    assert all(placed[name].dtype == alone[name].dtype for name in alone)


def test_a_slot_begins_with_somebodys_file_as_an_adapter_alone(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    theirs, ours = spec_of(tiny_folder, rank=2, alpha=3.0), spec_of(tiny_folder, rank=5)
    with add_adapters(tiny_base, theirs) as adapters:
        path = write_lora("kohya", tmp_path / "a", trained(adapters), facts(theirs), dtype="float32")
    with add_adapters(tiny_base, ours) as adapters:
        start_from(path, tiny_base, ours, adapters)
        wanted = adapters.tensors()
    with slots_on(tiny_base) as slots:
        check_start(path, tiny_base, lean_shapes(tiny_base, ours))  # while others train on the base
        slot = slots.assign(2, ours)
        start_from(path, tiny_base, ours, slot.adapters)
        found = slot.adapters.tensors()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_base_is_given_back(tiny_base: BaseModel, tiny_folder: Path) -> None:
    before = [(name, type(module)) for name, module in tiny_base.unet.named_modules()]
    bare = noise_of(tiny_base, 4)
    with slots_on(tiny_base, text_encoders=True) as slots:
        slots.set_width(4)
        filled(slots.assign(0, spec_of(tiny_folder, rank=8, train_text_encoder=True)).adapters.parameters, 1)
        assert torch.equal(noise_of(tiny_base, 4), bare)  # they do nothing unless switched on
        with slots.on():
            assert not torch.equal(noise_of(tiny_base, 4), bare)
            with adapters_off((tiny_base.unet,)):
                assert torch.equal(noise_of(tiny_base, 4), bare)
            assert not torch.equal(noise_of(tiny_base, 4), bare)
    assert [(name, type(module)) for name, module in tiny_base.unet.named_modules()] == before
    assert torch.equal(noise_of(tiny_base, 4), bare)


def test_layers_that_are_no_linear_ones_are_refused(tiny_base: BaseModel) -> None:
    before = [type(module) for module in tiny_base.unet.modules()]
    with pytest.raises(WorkloadFailed, match="conv1"):
        AdapterSlots(tiny_base, spec_of(Path("base"), target_modules=("to_q", "conv1")), count=2)
    assert [type(module) for module in tiny_base.unet.modules()] == before


def test_each_job_gets_the_formula_of_peft(tiny_base: BaseModel, specs: list[TrainSpec]) -> None:
    """Two rows each, of unequal ranks: what the UNet says is what peft's layer makes of each job alone."""
    wanted = []
    for number, spec in enumerate(specs):
        with add_adapters(tiny_base, spec) as adapters, torch.no_grad():
            filled(adapters.parameters, number)
            wanted.append(noise_of(tiny_base, 8)[2 * number : 2 * number + 2])
    with slots_on(tiny_base) as slots, torch.no_grad():
        for number, spec in enumerate(specs):
            filled(slots.assign(number, spec).adapters.parameters, number)
        slots.set_width(4)
        with slots.on():
            found = noise_of(tiny_base, 8)
    torch.testing.assert_close(found, torch.cat(wanted), atol=5e-5, rtol=1e-4)
    bare_by = (noise_of(tiny_base, 8) - found).abs().amax(dim=(1, 2, 3))
    assert float(bare_by.min()) > 1e-3  # ten times what rounding explains: every row has its adapter


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_layer_computes_each_job_s_formula_and_gradients(jobs: int) -> None:
    """In double precision, against W·x + scale·B·A·x written down job by job."""
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    original = torch.nn.Linear(6, 5).double().requires_grad_(False)
    a_JRI, b_JOR, scale_J = numbers(jobs, 4, 6), numbers(jobs, 5, 4), numbers(jobs)
    inputs, weights = numbers(2 * jobs, 7, 6), numbers(2 * jobs, 7, 5)
    layer = BatchedLoraLinear(original)
    layer.stack = StackedLora(
        a_JRI=a_JRI.clone().requires_grad_(), b_JOR=b_JOR.clone().requires_grad_(), scale_J11=scale_J.view(-1, 1, 1)
    )
    mine = inputs.clone().requires_grad_()
    found = layer(mine)
    (found * weights).sum().backward()
    for job in range(jobs):
        rows = slice(2 * job, 2 * job + 2)
        a_RI, b_OR = a_JRI[job].clone().requires_grad_(), b_JOR[job].clone().requires_grad_()
        alone = inputs[rows].clone().requires_grad_()
        wanted = original(alone) + scale_J[job] * (alone @ a_RI.T @ b_OR.T)
        (wanted * weights[rows]).sum().backward()
        pairs = [(found[rows], wanted), (mine.grad[rows], alone.grad)]
        pairs += [(layer.stack.a_JRI.grad[job], a_RI.grad), (layer.stack.b_JOR.grad[job], b_OR.grad)]
        for mine_found, theirs in pairs:
            torch.testing.assert_close(mine_found, theirs, atol=1e-11, rtol=1e-11)


def test_padding_never_gets_a_gradient(tiny_base: BaseModel, specs: list[TrainSpec]) -> None:
    with slots_on(tiny_base) as slots:
        for number, spec in enumerate(specs):
            filled(slots.assign(number, spec).adapters.parameters, number)
        slots.set_width(4)
        step_all(slots, tiny_base)
        for number, spec in enumerate(specs):
            views = slots.layout.views(slots.gradients_JM[number], dict.fromkeys(slots.ranks, spec.rank))
            assert all(bool(view.any()) for view in views.values())
            for view in views.values():
                view.zero_()
            assert not slots.gradients_JM[number].any()


def step_all(slots: AdapterSlots, base: BaseModel, *, rows: int = 4, spoil: int | None = None) -> torch.Tensor:
    """One backward pass; `spoil` names a row whose output is made infinite."""
    with slots.on():
        loss_B = noise_of(base, rows).square().mean(dim=(1, 2, 3))
        if spoil is not None:
            loss_B = loss_B * torch.tensor([float("inf") if row == spoil else 1.0 for row in range(rows)])
        loss_B.sum().backward()
    return loss_B.detach()


def test_a_neighbor_changes_no_bit_not_even_by_what_is_not_a_number(
    tiny_base: BaseModel, specs: list[TrainSpec]
) -> None:
    def run(others: str) -> torch.Tensor:
        with slots_on(tiny_base) as slots:
            slots.set_width(4)
            slot = slots.assign(1, specs[1])
            filled(slot.adapters.parameters, 1)
            optimizer = SlotOptimizer(slot, specs[1])
            for number in (0, 2, 3):
                if others != "none":
                    filled(slots.assign(number, specs[number]).adapters.parameters, 10 + number)
                if others == "nan":
                    slots.values_JM[number].fill_(float("nan"))
            for step in range(3):
                step_all(slots, tiny_base, spoil=2 if others == "inf" else None)
                optimizer.step(step)
            assert bool(torch.isfinite(slots.values_JM[1]).all())
            return slots.values_JM[1].clone()

    alone = run("none")
    for others in ("there", "inf", "nan"):
        assert torch.equal(run(others), alone), others


def test_moving_to_another_place_takes_everything_along(tiny_base: BaseModel, specs: list[TrainSpec]) -> None:
    with slots_on(tiny_base) as slots:
        slots.set_width(4)
        slot = slots.assign(3, specs[0])
        optimizer = SlotOptimizer(slot, specs[0])
        step_all(slots, tiny_base)
        optimizer.step(0)
        before = {name: tensor.clone() for name, tensor in state_of(slot.adapters, optimizer).items()}
        slot.move(0)
        assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(slot.adapters, optimizer).items())
        assert not slots.values_JM[3].any()
        slots.set_width(1)
        step_all(slots, tiny_base, rows=1)
        optimizer.step(1)
        after = state_of(slot.adapters, optimizer)
        assert any(not torch.equal(after[name], before[name]) for name in before)
        assert torch.equal(after["adapter." + next(iter(slot.adapters.parameters))], first_of(slots, specs[0]))


def first_of(slots: AdapterSlots, spec: TrainSpec) -> torch.Tensor:
    return next(iter(slots.layout.views(slots.values_JM[0], dict.fromkeys(slots.ranks, spec.rank)).values()))


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_schedule_free"])
def test_state_goes_from_a_place_to_an_adapter_alone_and_back(
    tiny_base: BaseModel, tiny_folder: Path, optimizer: str
) -> None:
    fields = {"rank": 3, "train_text_encoder": True, "use_ema": optimizer == "adamw", "optimizer": optimizer}
    spec = spec_of(tiny_folder, **fields)
    with slots_on(tiny_base, text_encoders=True) as slots:
        slot = slots.assign(1, spec)
        adapter_optimizer = SlotOptimizer(slot, spec)
        for step in range(2):
            slots.gradients_JM[1].fill_(0.5)
            zero_padding(slots, 1, 3)
            adapter_optimizer.step(step)
        state = {name: tensor.clone() for name, tensor in state_of(slot.adapters, adapter_optimizer).items()}
        result = adapter_optimizer.result()
    weights = {name.removeprefix("adapter."): value for name, value in state.items() if name.startswith("adapter.")}
    with add_adapters(tiny_base, spec) as adapters:
        alone = optimizer_of(adapters, spec)
        adapters.load(weights)
        alone.restore(2, state)
        there = {name: tensor.clone() for name, tensor in state_of(adapters, alone).items()}
        assert all(torch.equal(there[name], state[name]) for name in state)
        assert all(torch.equal(value, result[name]) for name, value in alone.result().items())
    with slots_on(tiny_base, text_encoders=True) as slots:
        slot = slots.assign(3, spec)
        adapter_optimizer = SlotOptimizer(slot, spec)
        slot.adapters.load(weights)
        adapter_optimizer.restore(2, there)
        back = state_of(slot.adapters, adapter_optimizer)
        assert set(back) == set(state)
        assert all(torch.equal(back[name], state[name]) for name in state)


def zero_padding(slots: AdapterSlots, place: int, rank: int) -> None:
    """As autograd leaves it."""
    views = slots.layout.views(slots.gradients_JM[place], dict.fromkeys(slots.ranks, rank))
    kept = {name: view.clone() for name, view in views.items()}
    slots.gradients_JM[place].zero_()
    for name, view in views.items():
        view.copy_(kept[name])


def test_the_text_encoders_part_stops_and_counts_for_nothing(tiny_base: BaseModel, tiny_folder: Path) -> None:
    spec = spec_of(tiny_folder, rank=8, train_text_encoder=True, stop_text_encoder_training=1, max_grad_norm=0.1)
    with slots_on(tiny_base, text_encoders=True) as slots:
        slot = slots.assign(0, spec)
        optimizer = SlotOptimizer(slot, spec)
        start, end = slots.layout.groups["text_encoders"]
        slots.gradients_JM[0].fill_(1.0)
        optimizer.step(0)
        stopped = slots.values_JM[0, start:end].clone()
        slots.gradients_JM[0].fill_(1e-3)
        slots.gradients_JM[0, start:end] = 1e6  # would leave nothing of the UNet's after clipping
        optimizer.step(1)
        assert torch.equal(slots.values_JM[0, start:end], stopped)
        unet = slots.layout.groups["unet"]
        assert float(optimizer.state()["optimizer.exp_avg." + last_name(slots)].abs().max()) > 1e-5
        assert unet[0] == end


def last_name(slots: AdapterSlots) -> str:
    return slots.layout.places[-1].name
