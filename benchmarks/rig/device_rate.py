"""What a device does of matrix products: one MFU is measured against. A process of its own, which lets the device go.

`python -m benchmarks.rig.device_rate DEVICE DTYPE THREADS` prints FLOP/s.
"""

import subprocess
import sys
from collections.abc import Sequence

SIDES = {"cpu": 1024, "cuda": 8192}


def device_rate(device: str, precision: str, threads: int) -> float:
    """FLOP/s. `device` is auto, cpu or cuda; `precision` as in a spec."""
    dtype = "bfloat16" if precision == "bf16" else "float32"
    command = [sys.executable, "-m", "benchmarks.rig.device_rate", device, dtype, str(threads)]
    told = subprocess.run(command, check=True, capture_output=True)
    return float(told.stdout)


def main(arguments: Sequence[str]) -> None:
    """The process."""
    import torch

    from giornata.diffusion.base.unet_layers import matmul_flops_per_s

    wanted, dtype, threads = arguments
    torch.set_num_threads(int(threads))
    on_cuda = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_cuda else "cpu")
    print(matmul_flops_per_s(device, getattr(torch, dtype), side=SIDES[device.type]))


if __name__ == "__main__":
    main(sys.argv[1:])
