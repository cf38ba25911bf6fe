"""The names of columns between the stages. Every array is stored as bytes: fp16 or uint8, C order, sizes beside it.

A *source* row is a picture with its caption in a normalized shard. A *fed* row goes to a trainer.
"""

import pyarrow as pa

# Normalized shards, and the names of a row in all later stages
KEY = "key"  # sha256 of the picture's bytes, hex: seeds every draw
SHARD, ROW = "shard", "row"  # place in the manifest, place in the shard
IMAGE, CAPTION = "image", "caption"
CAPTIONS = "captions"  # all of a picture, with CAPTION; shards of one caption a picture lack the column
WIDTH, HEIGHT = "width", "height"  # of the picture as a viewer shows it

SOURCE = pa.schema(
    {KEY: pa.string(), IMAGE: pa.binary(), CAPTION: pa.string(), WIDTH: pa.int32(), HEIGHT: pa.int32()}
)
CAPTIONS_FIELD = pa.field(CAPTIONS, pa.list_(pa.string()))


def source_schema(*, several: bool) -> pa.Schema:
    """The schema of normalized shards with several captions of a picture, or with one."""
    return SOURCE.append(CAPTIONS_FIELD) if several else SOURCE


# One use of a row
PORTION, EPOCH = "portion", "epoch"
REASON = "reason"  # empty, or the reason why the row could not be read: it is recorded and not trained

# Cut pictures: uint8, HWC, before the encoder
PIXELS = "pixels"
TARGET_HEIGHT, TARGET_WIDTH = "target_height", "target_width"  # pixels of the cut
CROP_TOP, CROP_LEFT = "crop_top", "crop_left"
GEOMETRY = (TARGET_HEIGHT, TARGET_WIDTH, CROP_TOP, CROP_LEFT)

# The output of encoders: float16
MEAN, LOGVAR = "mean", "logvar"  # CHW, of the VAE's posterior; H, W = target / 8
PROMPT, POOLED = "prompt", "pooled"  # LD and P; POOLED is empty where the model has none

LATENTS = pa.schema(
    {
        KEY: pa.string(),
        CAPTION: pa.string(),
        **dict.fromkeys((HEIGHT, WIDTH, *GEOMETRY), pa.int32()),
        REASON: pa.string(),
        **dict.fromkeys((MEAN, LOGVAR, PROMPT, POOLED), pa.binary()),
    }
)
"""Encoded rows, with their text. An unreadable row keeps its place, with its reason and empty arrays. PROMPT and
POOLED are empty bytes where there is no text."""

# Encoded shards: shard and row are places, as in the source
STORED_LATENTS = [name for name in LATENTS.names if name not in {PROMPT, POOLED}]
LATENT_SHAPE_FIELD = pa.field("latent_shape", pa.list_(pa.int32(), 3))  # of MEAN and LOGVAR; zeros where unreadable
ARRAY = {b"dtype": b"float16", b"order": b"C"}


def array_field(name: str, shape: str) -> pa.Field:
    """A column of arrays, with metadata for readers: `shape` is numbers, or the column that holds the shape."""
    return pa.field(name, pa.binary(), metadata={**ARRAY, b"shape": shape.encode()})


USE = {PORTION: pa.int64(), EPOCH: pa.int32(), SHARD: pa.int32(), ROW: pa.int32()}
FED = pa.schema([*map(pa.field, USE, USE.values()), *LATENTS])
"""Rows of the graph, in every mode: LATENTS of one use of a row, with text."""
CUT = pa.schema(
    [
        *map(FED.field, (*USE, KEY, CAPTION, HEIGHT, WIDTH, *GEOMETRY, REASON)),
        pa.field(PIXELS, pa.binary()),
    ]
)
"""One use of a cut picture. An unreadable row keeps its place, with its reason and no pixels."""
