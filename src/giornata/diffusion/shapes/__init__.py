"""A small SDXL that really draws: pictures of plain shapes, a score without learned parts, and its pre-training."""
