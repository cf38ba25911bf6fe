"""Keeps compiled kernels for later jobs: on the node's own disk always, on others' only if the operator says so.

What torch writes for this (`torch.compiler.save_cache_artifacts`) is pickles and native code: a process that reads
them runs them. So nothing that came over the network is so much as parsed before it has proved that it was sealed
with the operator's key, which only that operator's nodes have, and no server, user or storage. A node without the key
neither fetches nor offers. See docs/adr/0016.

A sealed file: SEAL, 32 bytes of HMAC-SHA256 over (SEAL, the cache key, the content), the content. With the cache key
in it a file cannot be passed off under another key.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.determinism import fingerprint
from giornata.diffusion.tensor_file import json_sha256
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Reporter
from giornata.workloads.train.device.memory_budget import MemoryPlan
from giornata.workloads.train.faults import reason_of

SEAL = b"giornata kernels 1\n"
MAC_BYTES = 32
MOST_BYTES = 512 * 2**20
LEAST_SECRET_BYTES = 16
READY = "ready"

SHAPES = (
    *("adapter_type", "rank", "rank_pattern", "target_modules", "lora_unet_blocks", "use_dora"),
    *("decompose_both", "decompose_factor", "train_text_encoder", "train_text_encoder_ti"),
    *("mixed_precision", "resolution", "enable_bucket", "bucket_reso_steps", "min_bucket_reso", "max_bucket_reso"),
    *("with_prior_preservation", "prior_prediction", "masked_loss", "base_quantization", "bucket_no_upscale"),
    "max_token_length",
)
"""Fields on which it depends what regions are called with."""


class Unsealed(ValueError):
    """An error: the bytes were not sealed with this key for this entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCache:
    """The compiled kernels of a node. `directory` is where torch keeps kernels (TORCHINDUCTOR_CACHE_DIR), None when
    none was chosen: nothing is known of it then. With `secret` kernels are shared with other nodes. `load` and `save`
    have the signatures of torch.compiler's."""

    directory: Path | None = None
    secret: bytes | None = None
    load: Callable[[bytes], Any] = torch.compiler.load_cache_artifacts
    save: Callable[[], tuple[bytes, Any] | None] = torch.compiler.save_cache_artifacts

    def __post_init__(self) -> None:
        if self.secret is not None and len(self.secret) < LEAST_SECRET_BYTES:
            raise ValueError(f"the key of the kernels has fewer than {LEAST_SECRET_BYTES} bytes")

    def holds(self, key: str) -> bool:
        """Return True when kernels for such a job were made on this node, or fetched to it."""
        return self.directory is not None and (self.directory / READY / key).exists()

    def note(self, key: str) -> None:
        """Note that kernels of this key are here now. A disk that refuses costs the note and nothing else."""
        if self.directory is None:
            return
        place = self.directory / READY
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / key).touch()
        except OSError as error:
            if reason_of(error) is not Reason.NODE_DISK:
                raise

    def fetch(self, key: str, reporter: Reporter) -> bool:
        """Take over what another node has made. False, with a line in the log, when that cannot be had or trusted."""
        if self.secret is None:
            return False
        path = reporter.cache_get(key)
        if path is None:
            return False
        try:
            if path.stat().st_size > MOST_BYTES + len(SEAL) + MAC_BYTES:
                raise Unsealed("the file is larger than any that is written")
            content = opened(path.read_bytes(), key, self.secret)
        except (Unsealed, OSError) as error:
            reporter.log(f"kernels that another node compiled are not used, and are compiled here: {error}")
            return False
        if self.load(content) is None:
            reporter.log("kernels that another node compiled cannot be read, and are compiled here")
            return False
        self.note(key)
        return True

    def offer(self, key: str, reporter: Reporter, directory: Path) -> None:
        """Seal what was compiled since the attempt began, and hand it over. Nothing that goes wrong ends the job."""
        made = None if self.secret is None else self.save()
        if made is None or self.secret is None:
            return
        if len(made[0]) > MOST_BYTES:
            reporter.log(f"compiled kernels are not shared: they are {len(made[0]) / 2**20:.0f} MiB")
            return
        path = directory / "kernels.sealed"
        try:
            path.write_bytes(sealed(made[0], key, self.secret))
        except OSError as error:
            if reason_of(error) is not Reason.NODE_DISK:
                raise
            path.unlink(missing_ok=True)
            reporter.log(f"compiled kernels are not shared: {error}")
            return
        reporter.cache_put(key, path)


def sealed(content: bytes, key: str, secret: bytes) -> bytes:
    """Seal the content for the entry `key`, as it may travel."""
    return SEAL + _mac(content, key, secret) + content


def opened(received: bytes, key: str, secret: bytes) -> bytes:
    """Return the content of a sealed file. Raises Unsealed unless it was sealed with this secret for this very
    entry."""
    begin = len(SEAL) + MAC_BYTES
    mac, content = received[len(SEAL) : begin], received[begin:]
    if not received.startswith(SEAL) or not hmac.compare_digest(mac, _mac(content, key, secret)):
        raise Unsealed("they were not sealed with this node's key, or were changed since")
    return content


def _mac(content: bytes, key: str, secret: bytes) -> bytes:
    name = key.encode()
    message = b"%b%d %b\n%b" % (SEAL, len(name), name, content)
    return hmac.new(secret, message, hashlib.sha256).digest()


def kernel_key(base: BaseModel, spec: TrainSpec, memory_plan: MemoryPlan, *, layer: str, compiler: str) -> str:
    """Hash what decides which kernels a job needs. It only says where to look: torch finds each kernel by a hash of
    what it computes, and what is missing is compiled."""
    given = spec.model_dump(mode="json")
    depends: Mapping[str, Any] = {
        "compiler": compiler,
        "fields": {name: given[name] for name in SHAPES},
        "fingerprint": fingerprint(base.device),
        "footprint": asdict(memory_plan),
        "layer": layer,
        "unet": dict(sorted((name, str(value)) for name, value in base.unet.config.items() if name[0] != "_")),
    }
    return "kernels-" + json_sha256(depends)
