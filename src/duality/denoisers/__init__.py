"""What was there: readouts make a denoiser of a network, wrappers change a denoiser's belief.

readouts       MeanDenoiser, SubsDenoiser, ScoreDenoiser, CausalDenoiser: what the network's numbers mean; check_fits
filters        Temperature, TopP
clamp          Clamped: known tokens stay (prompt, infilling); in_context: they are read, for a conditional likelihood
conditioning   labels and classifier-free guidance
memo           Memoized: a belief that is used again; Recorded: a belief that is kept
wrapping       what all wrappers share
"""
