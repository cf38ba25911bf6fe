"""Model code: models, LoRA, noise, latents, data order, formats."""
