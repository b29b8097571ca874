"""Files: what is written to the disk, whole or not at all."""
