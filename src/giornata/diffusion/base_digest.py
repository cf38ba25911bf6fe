"""What a base model is, whatever it is called: a hub's branch moves on, and a folder can be overwritten.

The digest is of the weights as they were loaded, in the precision of the job: of what a result depends on. So it does
not matter whether they came from a folder, from a single file, or from the hub.
"""

import hashlib

from giornata.diffusion.checkpoint import canonical_json
from giornata.diffusion.models import BaseModel
from giornata.diffusion.weights_digest import described, tensors_digest


def base_sha256(base: BaseModel) -> str:
    """Hash of every weight and buffer of UNet, VAE and text encoders by its name, and of the noise schedule.

    Taken of the base as it is when no adapter is on it.
    """
    modules = {"unet": base.unet, "vae": base.vae}
    modules |= {f"text_encoders.{number}": encoder for number, encoder in enumerate(base.text_encoders)}
    parts = [[name, tensors_digest(module)] for name, module in modules.items()]
    parts.append(described("noise_scheduler.alphas_cumprod", base.noise_scheduler.alphas_cumprod))
    parts.append(["prediction_type", base.prediction_type])
    return hashlib.sha256(canonical_json(parts).encode("ascii")).hexdigest()
