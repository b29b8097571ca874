"""What a trained model does, and what it is on the disk.

    model         ``Model`` and ``load``: write, score, look inside, publish
    requests      what a user asks of a model, as one object for each question
    trained       the parts of a trained model, and what follows from its recipe
    sampling      prompts, blanks, labels, temperature: a request becomes samples
    scoring       the likelihood of given texts, token by token
    likelihood    the likelihood of a corpus, with its standard error
    trace         a file with every step of a generation
    picture       an animated picture of traces
    player        a page that plays traces
    load          a model is read from a run or from a folder of its own
    folder        what a run folder holds
    provenance    where the numbers of a run come from
    size          the parameters of a recipe, and the memory that it needs at least
    plan          what a training needs on many devices

``size`` and ``plan`` need no weights: they read a recipe.
"""
