"""How good a model is: the likelihood of text, and measures of the samples it writes.

likelihood     nats per token of held-out text
judge          external language models that read samples
text_metrics   perplexity under a judge, entropy, n-grams, MAUVE
cases          what is sampled (a case), and what is measured on it (a row)
samples        samples in files, and real text cut like them
kept_scores    the scores of judges and scorers in a file
scorers        other measures of texts, by name or as a user's function: text in, numbers out
molecules      the scorer of SMILES: validity, uniqueness, novelty, internal diversity; pictures
sweep          the one pipeline from cases to rows
tables         rows in Markdown
figures        rows as figures; ``loss_curve`` is the figure of a training
quantiles      of the normal law and of Student's, for intervals
gradients      the variance of a stochastic gradient; ``variance_tables`` are its tables and figure
frontiers      quality against diversity over temperature, and the difference of two models at equal diversity
frontier_report  the frontiers of a sweep as a figure and a table

``SCORERS`` are the scorers that a user can choose by name.
"""

from duality.registry import Registry

SCORERS = Registry("scorer", {"molecules": "duality.evaluation.molecules:Molecules"})
