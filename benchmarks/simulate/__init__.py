"""The ancestor's policy beside ours, in the simulator. Read `comparison` first, then `ancestor` and `calibration`."""
