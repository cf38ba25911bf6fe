"""Draws pictures: rows that share passes of a UNet (read rows, then denoising), and a job's samples and sheets."""
