"""Adapter kinds that jobs train: LoRA, DoRA, LoKr, new tokens, and slots that several jobs share; and LoRAs that rows
of pictures have. Read lora, then slots, then row_adapters."""
