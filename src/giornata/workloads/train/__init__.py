"""DreamBooth LoRA."""
