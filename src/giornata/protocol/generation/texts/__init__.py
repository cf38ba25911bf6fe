"""Texts in result files for A1111 and ComfyUI. Read `a1111_text` first."""
