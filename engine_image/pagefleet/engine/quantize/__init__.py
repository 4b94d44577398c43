"""`pagefleet quantize`: write checkpoints of 4-bit weights, with calibration or without."""
