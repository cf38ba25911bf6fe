"""The names of columns between the stages. Every array travels as bytes: fp16 or uint8, C order, sizes beside it.

A *source* row is a picture with its caption in a normalised shard. A *fed* row is what a trainer gets.
"""

import pyarrow as pa

# Normalised shards, and what names a row everywhere after them
KEY = "key"  # sha256 of the picture's bytes, hex: seeds every draw
SHARD, ROW = "shard", "row"  # place in the manifest, place in the shard
IMAGE, CAPTION = "image", "caption"
CAPTIONS = "captions"  # all that a picture has, CAPTION among them; no such column where only one is kept
WIDTH, HEIGHT = "width", "height"  # of the picture as a viewer shows it

SOURCE = pa.schema(
    {KEY: pa.string(), IMAGE: pa.binary(), CAPTION: pa.string(), WIDTH: pa.int32(), HEIGHT: pa.int32()}
)
CAPTIONS_FIELD = pa.field(CAPTIONS, pa.list_(pa.string()))


def source_schema(*, several: bool) -> pa.Schema:
    """Of normalised shards that keep several captions of a picture, or one."""
    return SOURCE.append(CAPTIONS_FIELD) if several else SOURCE


# One use of a row
PORTION, EPOCH = "portion", "epoch"
REASON = "reason"  # empty, or why the row could not be read: it is recorded and not trained

# Cut pictures: uint8, HWC, before the encoder
PIXELS = "pixels"
TARGET_HEIGHT, TARGET_WIDTH = "target_height", "target_width"  # pixels of the cut
CROP_TOP, CROP_LEFT = "crop_top", "crop_left"

# What encoders make: float16
MEAN, LOGVAR = "mean", "logvar"  # CHW, of the VAE's posterior; H, W = target / 8
PROMPT, POOLED = "prompt", "pooled"  # LD and P; POOLED is empty where the model has none

LATENTS = pa.schema(
    {
        KEY: pa.string(),
        CAPTION: pa.string(),
        HEIGHT: pa.int32(),
        WIDTH: pa.int32(),
        TARGET_HEIGHT: pa.int32(),
        TARGET_WIDTH: pa.int32(),
        CROP_TOP: pa.int32(),
        CROP_LEFT: pa.int32(),
        REASON: pa.string(),
        MEAN: pa.binary(),
        LOGVAR: pa.binary(),
        PROMPT: pa.binary(),
        POOLED: pa.binary(),
    }
)
"""Of rows that are encoded, text included. A row that could not be read keeps its place, with its reason. PROMPT and
POOLED are empty bytes where there is no text."""

# Encoded shards: shard and row are places, as in the source
STORED_LATENTS = [name for name in LATENTS.names if name not in {PROMPT, POOLED}]
LATENT_SHAPE_FIELD = pa.field("latent_shape", pa.list_(pa.int32(), 3))  # of MEAN and LOGVAR; zeros where unreadable
ARRAY = {b"dtype": b"float16", b"order": b"C"}


def array_field(name: str, shape: str) -> pa.Field:
    """Of arrays as bytes, with metadata that say how to read them: `shape` in numbers, or the column that has it."""
    return pa.field(name, pa.binary(), metadata={**ARRAY, b"shape": shape.encode()})


FED = pa.schema(
    [
        pa.field(PORTION, pa.int64()),
        pa.field(EPOCH, pa.int32()),
        pa.field(SHARD, pa.int32()),
        pa.field(ROW, pa.int32()),
        *LATENTS,
    ]
)
"""What the graph gives to trainers, in every mode: LATENTS of one use of a row, text included."""
