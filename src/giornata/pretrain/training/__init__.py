"""The loop of a trainer, and the model that it changes. Read trainer, step, then loop."""
