"""The run: Ray Train keeps the trainers running, and begins them anew when one is lost.

What a run has reached lies in its own storage, in checkpoints that are committed by us (`checkpoints`), and not in
Ray Train's: the trainers and the data sets of a new start read the same newest one, whoever starts them. So a run
that was killed goes on when the same command is given again, on this Ray or on another.
"""

from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from giornata.pretrain.streams import Remaining, Streams
from giornata.pretrain.worker import work
from giornata.protocol.pretraining import PretrainConfig, Workers

BACKENDS = {True: "nccl", False: "gloo"}


def fit(config: PretrainConfig, *, ray_storage: str, board: Any) -> None:
    """Train to the end of the last phase. Raises what ended the run for good."""
    workers = config.workers
    trainer = TorchTrainer(
        work,
        train_loop_config={"config": config.to_json(), "board": board},
        torch_config=TorchConfig(backend=BACKENDS[workers.use_gpu]),
        scaling_config=_scaling(workers),
        run_config=RunConfig(
            name=config.name,
            storage_path=ray_storage,
            failure_config=FailureConfig(max_failures=workers.max_failures),
        ),
        datasets={
            phase.name: Remaining(config=config.to_json(), phase=place) for place, phase in enumerate(config.phases)
        },
        dataset_config=Streams(config),
    )
    trainer.fit()


def _scaling(workers: Workers) -> ScalingConfig:
    least = workers.trainers if workers.min_trainers is None else workers.min_trainers
    return ScalingConfig(
        num_workers=workers.trainers if least == workers.trainers else (least, workers.trainers),
        use_gpu=workers.use_gpu,
        accelerator_type=workers.accelerator_type,
    )
