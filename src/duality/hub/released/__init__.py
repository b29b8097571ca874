"""The layouts in which others have released models like ours.

    config      config.json and the hyper-parameters of a checkpoint as settings, and back
    files       checkpoints and folders, read as data
    weights     the names, the order and the shapes of the tensors of the released network
    vocabulary  the tokenizer of a released model, and a mask token that is one of its pieces

What is read of other people is data: nothing of a file is run.
"""

RECORD = "released.json"  # in a run that was imported: what it does not need and ``export`` does
