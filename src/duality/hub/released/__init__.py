"""Released weights: checkpoints of the paper's own code, read and written."""
