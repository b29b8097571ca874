"""Networks: one file each."""
