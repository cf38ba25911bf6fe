"""Trains and scores the small SDXL that draws shapes. Read `pretrain` first, then `courses` and `stage`."""
