"""The paper *The Diffusion Duality*: its index, its claims and its studies."""
