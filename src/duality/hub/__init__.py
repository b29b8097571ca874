"""The hub: models of other people as folders and runs, and ours for them.

    package      the folder of a model alone: its files, and config.json read with care
    fetch        what a user names as a model, fetched from the Hugging Face hub if it is there
    publish      ``Model.save_pretrained`` and ``Model.push_to_hub``, with the model card
    exchange     a released model becomes a run, and a run in a released layout
    released/    the layouts in which others have released models like ours

``package`` and ``fetch`` are used to load a model and know nothing of models; the others stand above them.
"""
