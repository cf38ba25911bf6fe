"""Adapter kinds that jobs train: LoRA, DoRA, LoKr, new tokens, and slots that several jobs share. Read lora, then
slots."""
