"""CLIP's byte-pair vocabulary, as OpenAI published it (MIT license), and the number of tokens that a text has in it.

SDXL and Stable Diffusion 1.x share this vocabulary. Standard library only: a caption is counted wherever it is
checked, without torch or transformers. Read `token_count`, the only module.
"""

from giornata.domain.clip.token_count import MERGES, token_count

__all__ = ["MERGES", "token_count"]
