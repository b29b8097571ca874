"""Models: what a trained model is on the disk, and what it does."""
