"""Encodes pictures and captions into latents and embeddings. Read latents and captions."""
