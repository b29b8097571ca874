"""The variance of gradients: the study of the curriculum, and the command `duality variance`.

objectives   what a run could be trained on, by name
draws        gradients of minibatches as in training, for several objectives
gradients    their variance and other statistics, with intervals
tables       the statistics as tables, sentences and a figure
study        all of it: ``measure_variance``
"""
