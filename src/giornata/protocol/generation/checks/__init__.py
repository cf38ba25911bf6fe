"""Checks of orders: contradictions, prompts, masks, and the models that they name. Read `contradictions` first."""
