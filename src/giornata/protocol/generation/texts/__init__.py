"""Texts in result files for A1111 and ComfyUI, and their reader. Read `giornata.protocol.generation.metadata` first."""
