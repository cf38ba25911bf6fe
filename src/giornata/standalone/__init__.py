"""The tool for one machine: an engine and a storage, no server. A killed run is started again and goes on."""
