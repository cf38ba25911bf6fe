"""What Ray's encoder actors run. They load their model once, and work as long as the data set is iterated."""

import pyarrow as pa

from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encode_rows import encode_captions, encode_cut
from giornata.pretrain.encoding.encode_shards import ShardEncoder, Work, threads_of_one
from giornata.pretrain.encoding.encoders import device_of_an_encoder, open_encoder
from giornata.pretrain.encoding.transforms import CUT
from giornata.protocol.pretraining import PretrainConfig


class EncodePictures:
    """An actor: pictures that are cut to posteriors, captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
        self._at_once = config.encode.encode_batch_size

    def __call__(self, cut: pa.Table) -> pa.Table:
        """FED."""
        return encode_cut(self._encoder, cut.select(CUT.names), at_once=self._at_once)


class EncodeCaptions:
    """An actor: captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(
            config.model, seed=config.seed, device=device_of_an_encoder(config), images=False
        )
        self._at_once = config.encode.encode_batch_size

    def __call__(self, latents: pa.Table) -> pa.Table:
        """FED."""
        return encode_captions(self._encoder, latents, at_once=self._at_once)


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
