"""Draws pictures: rows that share passes of a UNet, a job's samples, sheets. Read `rows`, then `denoising`."""
