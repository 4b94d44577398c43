"""`pagefleet quantize`: write checkpoints of rounded weights, with calibration or without."""
