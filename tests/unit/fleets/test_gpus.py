"""Which GPUs nodes of this machine may have, one each."""

import subprocess

import pytest

from giornata.fleets.local import LIST_GPUS, gpus_of_machine


def listing(*lines: str):
    def run(command):
        assert command == LIST_GPUS
        return "\n".join(lines) + "\n"

    return run


def test_all_that_are_listed_unless_fewer_are_wanted():
    assert gpus_of_machine(None, {}, run=listing("0", "1", "2")) == ("0", "1", "2")
    assert gpus_of_machine(2, {}, run=listing("0", "1", "2")) == ("0", "1")


def test_gpus_of_machine_come_from_cuda_visible_devices_when_set():
    environment = {"CUDA_VISIBLE_DEVICES": "2, GPU-1a"}
    assert gpus_of_machine(None, environment, run=listing("0", "1", "2")) == ("2", "GPU-1a")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_not_listed(hidden):
    assert gpus_of_machine(None, {"CUDA_VISIBLE_DEVICES": hidden}, run=listing("0")) == ()


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("nvidia-smi"), subprocess.CalledProcessError(9, "nvidia-smi"), PermissionError()],
)
def test_machine_without_a_driver_lists_no_gpu(error):
    def run(_command):
        raise error

    assert gpus_of_machine(None, {}, run=run) == ()


def test_words_are_no_gpus():
    assert gpus_of_machine(None, {}, run=listing("No devices were found")) == ()


def test_gpus_of_machine_are_not_listed_when_zero_are_wanted():
    def run(_command):
        pytest.fail("it was asked")

    assert gpus_of_machine(0, {}, run=run) == ()
