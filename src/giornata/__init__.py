"""Giornata: fine-tuning, generation and pre-training of diffusion models on machines that may vanish.

Read `docs/tour.md` first; in the package, `domain` has the rules and `control` what the server does.
"""

__version__ = "0.2.0"
