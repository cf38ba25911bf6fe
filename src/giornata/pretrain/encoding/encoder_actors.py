"""What Ray's encoder actors run. They load their model once, and work as long as the data set is iterated."""

import time
from collections.abc import Callable

import pyarrow as pa

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encode_rows import encode_captions, encode_cut
from giornata.pretrain.encoding.encode_shards import ShardEncoder, Work, threads_of_one
from giornata.pretrain.encoding.encoders import device_of_an_encoder, open_encoder
from giornata.pretrain.encoding.transforms import CUT
from giornata.protocol.pretraining import PretrainConfig


class WorkTime:
    """How long an encoder works, told row by row, so that whoever takes the rows can tell how busy encoders are.

    Work is what passes while a batch is encoded, and between two batches what this process computes: cutting blocks
    into batches and serialising what goes out. Waiting for pictures, or for room for what was made, is not.
    """

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        self._clock_s, self._cpu_s = clock_s, cpu_s
        self._ended_s, self._ended_cpu_s = clock_s(), cpu_s()

    def timed(self, work: Callable[[], pa.Table]) -> pa.Table:
        """What `work` makes, with ENCODE_S."""
        began_s = self._clock_s()
        before_s = min(began_s - self._ended_s, self._cpu_s() - self._ended_cpu_s)
        made = work()
        self._ended_s, self._ended_cpu_s = self._clock_s(), self._cpu_s()
        each_s = (self._ended_s - began_s + before_s) / max(1, len(made))
        return made.append_column(columns.ENCODE_S, pa.array([each_s] * len(made), pa.float32()))


class EncodePictures:
    """An actor: pictures that are cut to posteriors, captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
        self._at_once, self._work_time = config.encode.encode_batch_size, WorkTime()

    def __call__(self, cut: pa.Table) -> pa.Table:
        """FED with ENCODE_S."""
        return self._work_time.timed(lambda: encode_cut(self._encoder, cut.select(CUT.names), at_once=self._at_once))


class EncodeCaptions:
    """An actor: captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(
            config.model, seed=config.seed, device=device_of_an_encoder(config), images=False
        )
        self._at_once, self._work_time = config.encode.encode_batch_size, WorkTime()

    def __call__(self, latents: pa.Table) -> pa.Table:
        """FED with ENCODE_S."""
        return self._work_time.timed(lambda: encode_captions(self._encoder, latents, at_once=self._at_once))


class EncodeShards:
    """An actor of the offline job: whole shards, written from where it is."""

    def __init__(self, config: PretrainConfig, source: Manifest) -> None:
        encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
        self._shards = ShardEncoder(config, source, encoder, threads=threads_of_one(config.encode.encoders))

    def __call__(self, works: pa.Table) -> pa.Table:
        """The same rows, when they are done."""
        for work in works.to_pylist():
            self._shards.encode(Work(number=work["number"], parts=tuple(work["parts"])))
        return works
