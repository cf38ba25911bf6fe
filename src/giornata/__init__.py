"""Giornata: fine-tuning, generation and pre-training of diffusion models on machines that may vanish."""

__version__ = "0.2.0"
