"""Trackers of experiments, for both trainers: W&B, and event files of TensorBoard. Read `wandb_run` first."""
