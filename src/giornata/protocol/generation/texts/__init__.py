"""Texts in result files for A1111 and ComfyUI. Read `giornata.protocol.generation.metadata` first."""
