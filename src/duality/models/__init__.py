"""What a trained model does, and what it is on the disk.

    model         ``Model`` and ``load``: write, score, look inside, publish
    requests      what a user asks of a model, as one object for each question
    trained       the parts of a trained model, read from a run or from a folder of its own
    sampling      prompts, blanks, temperature: a request becomes samples
    scoring       the likelihood of given texts, token by token
    likelihood    the likelihood of a corpus, with its standard error
    trace         a file with every step of a generation, its animated picture, a page that plays it
    folder        what a run folder holds, and where its numbers come from
    size          the weights of a recipe's network, and the memory that it needs at least
    plan          what a training needs on many devices
    cost          what a step costs a GPU, counted on the real code without one (fake_gpu, operators, fusion)
    roofline      how long a GPU needs for it

``size``, ``plan`` and ``cost`` need no weights: they read a recipe.
"""
