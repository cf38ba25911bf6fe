"""Files: checkpoints, exported LoRAs in the names of other programs, and the model card. Read checkpoint first."""
