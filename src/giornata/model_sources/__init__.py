"""Where the server fetches model files from: HTTPS, the hub, Civitai. Read web_sources first."""
