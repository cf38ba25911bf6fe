"""The loop of a trainer, the model that it changes, and its checkpoints."""
