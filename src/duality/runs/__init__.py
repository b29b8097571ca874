"""Runs: a recipe is trained into a folder.

train        ``train`` and ``distill``, as the library and the commands call them
requests     what a user asks of them: one dataclass each, whose fields are also the flags
session      a training, from the lock of its folder to the last step: checkpoints, validation, samples; ``consolidate``
resume       how a run is resumed: what may have changed, what it is compared with, more steps than before
start        what a training begins from: a new network, a run to distill, a model to finetune
corpus       the corpus of a run; data from memory, written into the run folder
trackers     the log of a training in other programs: ``tensorboard``, ``wandb``
listing      the run folders below a directory; the list of recipes, kept in a file
importing    a released model becomes a run; ``exporting`` a run in a released layout

folder/  recipe.json  env.json  tokenizer.json  corpus.json  metrics.jsonl  loss.png
         checkpoints/step-00001000/  samples/step-00001000.jsonl
         rounds/step-00000500/       (a distillation)   data/   (data that was given from memory)
         base.json                   (a distillation, a finetuning)
         trackers.json  tensorboard/  wandb/   (a training with trackers)
         training.lock               (while it is trained)
         evaluations.json            (results of suites)
         released.json               (an imported model: the tensors and the configuration of its file)
"""
