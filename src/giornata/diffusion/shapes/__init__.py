"""The small SDXL that draws plain shapes, and its pictures. Read `model` first, then `pictures`."""
