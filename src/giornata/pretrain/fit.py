"""Ray Train keeps the trainers running, and begins them anew when one is lost.

What a run has reached lies in its own storage, in checkpoints that are committed by us (giornata.pretrain.committed),
and not in Ray Train's: the trainers and the data sets of a new start read the same newest one, whoever starts them.
So a run that was killed goes on when the same command is given again, on this Ray or on another.
"""

from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from giornata.pretrain.streams import Remaining, Streams
from giornata.pretrain.worker import work
from giornata.protocol.pretraining import PretrainConfig, Workers

BACKENDS = {True: "nccl", False: "gloo"}


def fit(config: PretrainConfig, *, board: Any, ray_storage: str) -> None:
    """Train to the end of the last phase, or until somebody asks the board to stop. Raises what ended the run for
    good. `ray_storage` is for Ray Train's own notes."""
    workers, values = config.workers, config.to_json()
    TorchTrainer(
        work,
        train_loop_config={"config": values, "board": board},
        torch_config=TorchConfig(backend=BACKENDS[workers.use_gpu]),
        scaling_config=_scaling(workers),
        run_config=RunConfig(
            name=config.name,
            storage_path=ray_storage,
            failure_config=FailureConfig(max_failures=workers.max_failures),
        ),
        datasets={phase.name: Remaining(config=values, phase=place) for place, phase in enumerate(config.phases)},
        dataset_config=Streams(config),
    ).fit()


def _scaling(workers: Workers) -> ScalingConfig:
    least = workers.trainers if workers.min_trainers is None else workers.min_trainers
    return ScalingConfig(
        num_workers=workers.trainers if least == workers.trainers else (least, workers.trainers),
        use_gpu=workers.use_gpu,
        accelerator_type=workers.accelerator_type,
    )
