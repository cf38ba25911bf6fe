"""SDXL DreamBooth LoRA."""
