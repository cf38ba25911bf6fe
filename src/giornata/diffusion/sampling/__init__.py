"""Draws pictures: rows that share passes of a UNet (read rows, then denoising), and the samples and sheets of a job."""
