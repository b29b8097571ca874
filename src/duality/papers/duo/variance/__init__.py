"""The variance of gradients: the study of the curriculum, and the command `duality variance`.

settings     what is asked of a measurement, for the library and the command line
objectives   what a run could be trained on, by name
gradients    the variance of gradients and other statistics, with intervals
study        draws as in training, and all of it, with tables and a figure: ``measure_variance``
"""
