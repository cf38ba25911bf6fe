"""Python SDK over HTTP."""
