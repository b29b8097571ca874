"""Scripts beside the library: computations on toys, figures, digests."""
