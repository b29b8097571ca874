"""How good a model is: the likelihood of text, and measures of the samples it writes.

requests         what a user asks of a sweep, for the library and the command line
judge            language models that read samples; our own autoregressive runs are some
metrics          perplexity under a judge, entropy, n-grams, MAUVE; means with their 95 % intervals
scorers          other measures of texts, by name or as a user's function: text in, numbers out
molecules        the scorer of SMILES: validity, uniqueness, novelty, internal diversity; pictures
samples          cases, samples and rows, and their files
sweep            the one pipeline from cases to rows, and a sweep over runs
tables           rows in Markdown
figures          the one style of figures, and rows as figures
frontiers        the difference of two models at equal diversity, from their curves over temperature
suites           the test sets of the paper's tables
compare          several recipes trained and measured alike

``SCORERS`` are the scorers that a user can choose by name.
"""

from duality.registry import Registry

SCORERS = Registry(
    "scorer",
    {
        "molecules": "duality.evaluation.molecules:Molecules",
        "tales": "duality.evaluation.tales:TalesScorer",
        "prose": "duality.evaluation.prose:Prose",
    },
)
