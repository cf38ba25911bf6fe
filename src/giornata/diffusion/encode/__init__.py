"""Encodes pictures, captions and prompts into latents and embeddings. Read latents, captions and prompt_embeds."""
