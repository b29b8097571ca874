"""The variance of gradients: the study of the curriculum."""
