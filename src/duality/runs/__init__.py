"""Runs: a recipe is trained into a folder.

train        ``train`` and ``distill``, as the library and the commands call them; data from memory
requests     what a user asks of them: one dataclass each, whose fields are also the flags
resume       how a run is begun or resumed: the lock of its folder, what may have changed, more steps than before
start        what a training begins from: a new network, a run to distill, a model to finetune
session      the steps of a training, and what is written between them: checkpoints, validation; ``consolidate``
corpus       the corpus of a run
trackers     the log of a training in other programs: ``tensorboard``, ``wandb``
listing      the run folders below a directory
doctor       what this machine can do; ``checks`` compares its numbers with those of a CPU in float64

folder/  recipe.json  env.json  tokenizer.json  corpus.json  metrics.jsonl  loss.png
         checkpoints/step-00001000/  samples/step-00001000.jsonl
         rounds/step-00000500/       (a distillation)   data/   (data that was given from memory)
         base.json                   (a distillation, a finetuning)
         trackers.json  tensorboard/  wandb/   (a training with trackers)
         training.lock               (while it is trained)
         evaluations.json            (results of suites)
         released.json               (an imported model: the tensors and the configuration of its file)
"""
