"""The catalogue of bad inputs: every line is a command that must be refused.

A command ends with exit code 2 and a line with the words beside it: what was got, what is allowed, what to do. It
creates, changes and removes nothing. A new command or option is added to the catalogue as one line; names in braces are
the files and runs of ``world``.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import session
from support.released import prefixed, reference_tensors, write_folder
from support.runs import small_recipe

from duality.cli import COMMANDS
from duality.cli.main import main
from duality.models.model import load
from duality.runs.requests import DistillRequest, RoundChanges
from duality.runs.train import plan_distillation

SEED = "must be a whole number from 0 to 2**63 - 1"
EMPTY = "is empty: give one, or leave"
TRAIN = "train duo-laptop --out {new} --data {text} --set data.tokenizer=bytes data.length=32 backbone=nano"

TUNE = "train --from {run} --out {new} --data {text} --set"
BYTES = "--data {text} --set data.tokenizer=bytes backbone=nano backbone.width=32"

CATALOGUE = f"""
                                                            | Missing subcommand
trian                                                       | train
recipes --table 9                                           | no table 9: its tables are 1, 2, 3, 4, 5, 6, 7
recipes --table two                                         | invalid
--data {{text}}                                             | --data
train                                                       | RECIPE
train duo-labtop                                            | did you mean duo-laptop
train duo-laptop extra                                      | extra
train duo-laptop --stepz 3                                  | --stepz
train duo-laptop --steps                                    | --steps
train ''                                                    | an argument is empty
train duo-laptop --out {{new}} --data ''                    | the value of --data {EMPTY}
train duo-laptop --out {{new}} --data ' '                   | the value of --data {EMPTY}
train duo-laptop --out {{new}} --data=                      | the value of --data {EMPTY}
train duo-laptop --out '' --data {{text}}                   | the value of --out {EMPTY}
train duo-laptop --set data.corpus=                         | the value of data.corpus {EMPTY}
train duo-laptop --set training.steps                       | write --set field=value
train duo-laptop --set =3                                   | write --set field=value
train duo-laptop --set                                      | set
train duo-laptop --set training.stepz=3                     | did you mean steps
train duo-laptop --set trainin.steps=3                      | did you mean training
train duo-laptop --set training.steps.more=3                | which has no parts
train duo-laptop --set training=fast                        | or set training.steps
{TRAIN} --steps 0                                           | training.steps is 0: it must be at least 1
{TRAIN} --steps -5                                          | training.steps is -5: it must be at least 1
{TRAIN} --steps 1.5                                         | invalid
{TRAIN} --steps many                                        | invalid
{TRAIN} --seed -1                                           | training.seed is -1: it {SEED}
{TRAIN} --seed 18446744073709551616                         | must be a whole number below 2**63
{TRAIN} training.steps=1e3                                  | must be a whole number
{TRAIN} training.steps=true                                 | must be a whole number
{TRAIN} training.batch_size=0                               | training.batch_size is 0: it must be at least 1
{TRAIN} training.batch_size=none                            | must be a whole number
{TRAIN} training.learning_rate=0                            | it must be positive
{TRAIN} training.learning_rate=-1                           | it must be positive
{TRAIN} training.learning_rate=NaN                          | must be a number
{TRAIN} training.learning_rate=Infinity                     | must be a number
{TRAIN} training.learning_rate=fast                         | must be a number
{TRAIN} training.warmup=-1                                  | must not be negative
{TRAIN} training.clip=-1                                    | must not be negative
{TRAIN} training.weight_decay=-1                            | must not be negative
{TRAIN} training.decay=2                                    | it must be in [0, 1]
{TRAIN} training.ema=1.5                                    | it must be in [0, 1]
{TRAIN} training.label_dropout=-0.1                         | it must be in [0, 1]
{TRAIN} training.betas=[0.9]                                | a list of 2
{TRAIN} training.betas=0.9                                  | a list of 2
{TRAIN} training.precision=float16                          | one of 'auto', 'float32', 'tf32', 'bfloat16'
{TRAIN} training.optimizer=lion                             | one of 'adamw', 'muon'
{TRAIN} training.recompute=maybe                            | true or false
{TRAIN} training.keep=0                                     | it must be at least 1
{TRAIN} training.log_every=0                                | it must be at least 1
{TRAIN} training.save_every=0                               | it must be at least 1
{TRAIN} training.eval_every=-1                              | must not be negative
{TRAIN} training.micro_batch=-1                             | must not be negative
{TRAIN} data.length=0                                       | a sequence needs at least 1 token
{TRAIN} data.length=-3                                      | a sequence needs at least 1 token
{TRAIN} data.length=10000000000000                          | less than one sequence of length
{TRAIN} data.validation=0                                   | validation
{TRAIN} data.validation=1                                   | validation
{TRAIN} data.validation=-0.1                                | validation
{TRAIN} data.split=random                                   | one of 'auto', 'document', 'position'
{TRAIN} data.packing=none                                   | one of 'wrap', 'document'
{TRAIN} data.padding=none                                   | one of 'model', 'light', 'ignore'
{TRAIN} data.documents=pages                                | one of 'auto', 'lines'
{TRAIN} data.labels=true                                    | set data.packing=document
{TRAIN} data.labels=true data.packing=document              | has no label
{TRAIN} data.tokenizer=bpf                                  | choose from
{TRAIN} data.tokenizer=bpe data.tokenizer.vocab_size=10     | at least 257
{TRAIN} data.tokenizer=bpe data.tokenizer.vocab_size=1000000000 | at most 1,000,000
{TRAIN} backbone=giant                                      | choose from
{TRAIN} backbone.width=0                                    | every size must be at least 1
{TRAIN} backbone.width=7                                    | must be a whole even number
{TRAIN} backbone.heads=3                                    | must be a whole even number
{TRAIN} backbone.depth=0                                    | every size must be at least 1
{TRAIN} backbone.depth=1000000000                           | the depth at most
{TRAIN} backbone.width=2000000                              | of memory, and there are
{TRAIN} backbone.width=2000000000                           | make the backbone smaller
{TRAIN} training.batch_size=100000000000                    | set training.micro_batch lower
{TRAIN} backbone.conv=2                                     | its width must be odd
{TRAIN} backbone.dropout=1                                  | it must be in [0, 1)
{TRAIN} backbone.activation=swish                           | one of
{TRAIN} backbone.embedding_std=-1                           | it must be positive
{TRAIN} method.curriculum=2                                 | curriculum
{TRAIN} method.curriculum=-1                                | curriculum
{TRAIN} method.tau=-1                                       | tau
{TRAIN} method.alpha_min=2                                  | alpha
{TRAIN} method.gaussian_schedule=nope                       | choose from
{TRAIN} method.training_schedule=nope                       | choose from
{TRAIN} generation.steps=0                                  | a sample takes at least 1 step
{TRAIN} generation.temperature=0                            | it must be positive
{TRAIN} generation.tail=best                                | one of 'ancestral', 'greedy', 'posterior'
{TRAIN} --device tpu                                        | invalid choice
{TRAIN} --device cuda                                       | no GPU
{TRAIN} --device mps                                        | no float64
{TRAIN} --data {{absent}}                                   | no file, folder or named corpus
{TRAIN} --data gutenberg-prosa                              | gutenberg-prose
{TRAIN} --data {{empty}}                                    | is empty
{TRAIN} --data {{short}}                                    | less than one sequence of length 32
{TRAIN} --data {{tiny}}                                     | too short to hold out
{TRAIN} --data {{binary}}                                   | is not text: a NUL byte at byte 4
{TRAIN} --data {{latin}}                                    | no UTF-8 at byte 3; give a UTF-8 text file
{TRAIN} --data {{gz}}                                       | is no whole .gz file
{TRAIN} --data {{pictures}}                                 | has no text files
{TRAIN} --data {{list}}                                     | got a list
{TRAIN} --data {{broken}}                                   | line 2: not JSON
{TRAIN} --data {{surrogate}}                                | half a surrogate pair
{TRAIN} --data {{pipe}}                                     | is a device or a pipe, not a file: give a text file
{TRAIN} --data /dev/zero                                    | is a device or a pipe, not a file
{TRAIN} --data {{loop}}                                     | no file, folder or named corpus
train duo-laptop --out {{piped}} --resume                  | is a device or a pipe, not a file
{TRAIN} --out {{file}}                                      | {{file}}
{TRAIN} --out {{file}}/below                                | Not a directory
{TRAIN} --out /proc/duality                                 | check the path and its permissions
{TRAIN} --out {{pictures}}                                  | holds other files
train duo-laptop --out {{run}}                              | already holds a run: continue it with --resume
train duo-laptop --out {{run}} --resume --seed 5            | training.seed: 1 -> 5
train duo-laptop --out {{run}} --resume --set data.length=16 | data.length: 32 -> 16
train duo-laptop --out {{run}} --resume --data {{short}}    | has another text than
train duo-small --out {{run}} --resume                      | holds a run of duo-laptop, not of duo-small
train duo-laptop --out {{norecipe}} --resume                | holds other files
train --from {{absent}} --data {{text}}                     | is not a run
train --from {{climbs}} --data {{text}}                     | Recipe.name is '../../climbs': it must be a plain name
train --from {{published}} --data {{text}}                  | config.json: Recipe.name is '{{new}}'
sample {{climbs}}                                           | it must be a plain name
train --from {{run}} --out {{new}}                          | nothing to finetune
train --from '' --data {{text}}                             | the value of --from {EMPTY}
train --from {{run}} --out {{new}} --data {{absent}}        | no file, folder or named corpus
train --from {{run}} --out {{new}} --data {{short}}         | less than one sequence of length 32
train --from {{run}} --out {{dcd}} --data {{text}}          | already holds a run
train --from {{run}} --out {{mdlm}} --resume                | holds a run of mdlm-laptop, not of duo-laptop-finetuned
train duo-laptop --from {{mdlm}} --out {{run}} --resume     | does not fit
train duo-laptop --from {{run}} --out {{run}} --resume      | did not begin as a finetuning
train duo-laptop --from {{run}} --out {{new}} --data {{text}} | backbone.width: 32 -> 128
train mdlm-laptop --from {{run}} --out {{new}} {BYTES}      | method: Duo
train --from {{ar}} --out {{new}} --data {{text}} --set data.tokenizer=text8 | data.tokenizer: Bytes() -> Text8()
{TUNE} training.freeze=heads | choose from embedding, conv, time
{TUNE} training.freeze=blocks.0-7 | 'blocks.2', which is no part
{TUNE} parallel.strategy=fsdp                               | and this is one process
{TUNE} training.lora=33 | a rank is at most 32
{TUNE} training.lora=2 training.lora_layers=head              | the layers are qkv, out
{TRAIN} training.freeze=                                    | the value of training.freeze {EMPTY}
{TRAIN} training.lora=-1                                    | must not be negative
{TRAIN} training.lora=4                                     | has nothing to adapt
{TRAIN} training.lora_alpha=2                               | set their rank
{TRAIN} training.phase_steps=-1                             | must not be negative
{TRAIN} --log tensorbord                                    | did you mean tensorboard
{TRAIN} --log wandb:often                                   | choose from offline, online, disabled
{TRAIN} --log absent_module:Tracker                         | absent_module
{TRAIN} --log json:dumps                                    | no tracker: it needs start, metrics
{TRAIN} --log zipfile:ZipFile                               | the tracker 'zipfile:ZipFile' has failed (TypeError
{TRAIN} --log this_is_no:Tracker                            | no tracker 'this_is_no:Tracker'
{TRAIN} --log ''                                            | the value of --log {EMPTY}
distill {{run}} --out {{new}} --log nothing                 | no tracker 'nothing'
distill {{run}} --out {{new}} --set training.lora=2         | in a distillation
plan duo-owt --set training.freeze=heads                    | which is no part of the network
distill                                                     | RUN
distill {{absent}}                                          | is not a run
distill {{pictures}}                                        | is not a run
distill ''                                                  | an argument is empty
distill {{run}} --out ''                                    | the value of --out {EMPTY}
distill {{run}} --out {{new}} --method sdtt                 | sdtt
distill {{run}} --out {{new}} --method magic                | invalid choice
distill {{mdlm}} --out {{new}} --method dcd                 | dcd
distill {{ar}} --out {{new}}                                | AR
distill {{run}} --out {{new}} --rounds 0                    | rounds
distill {{run}} --out {{new}} --round-steps 0               | round_steps
distill {{run}} --out {{new}} --delta 0                     | delta
distill {{run}} --out {{new}} --delta 2                     | delta
distill {{run}} --out {{new}} --growth triple               | invalid choice
distill {{run}} --out {{new}} --divergence l2               | invalid choice
distill {{run}} --out {{new}} --compare score               | invalid choice
distill {{run}} --out {{new}} --for-steps 0                 | for_steps is 0: a sample takes at least 1 step
distill {{run}} --out {{new}} --seed -1                     | training.seed is -1: it {SEED}
distill {{run}} --out {{new}} --set training.stepz=1        | did you mean steps
distill {{run}} --out {{new}} --set training.steps=1        | set the rounds instead
distill {{run}} --out {{dcd}}                               | already holds a run
eval                                                        | RUN
eval ''                                                     | an argument is empty
eval {{absent}}                                             | is not a run: it has no recipe.json
eval {{pictures}}                                           | is not a run
eval {{file}}                                               | is not a run
eval {{run}} --data ''                                      | the value of --data {EMPTY}
eval {{run}} --data {{absent}}                              | no file, folder or named corpus
eval {{run}} --data {{pipe}}                                | is a device or a pipe, not a file
eval {{run}} --data {{empty}}                               | is empty
eval {{run}} --data {{binary}}                              | is not text
eval {{run}} --split test                                   | invalid choice
eval {{run}} --draws 0                                      | each must be at least 1
eval {{run}} --draws 100000000000000000000                  | draws below 2**63
eval {{run}} --limit 0                                      | each must be at least 1
eval {{run}} --batch-size 0                                 | each must be at least 1
eval {{run}} --batch-size -1                                | each must be at least 1
eval {{run}} --seed -1                                      | seed is -1: it {SEED}
eval {{run}} --seed 18446744073709551616                    | {SEED}
eval {{run}} --weights raw                                  | invalid choice
eval {{run}} --round 1                                      | is no distillation: it has no rounds
eval {{dcd}} --round 9                                      | has no round 9: there are 0, 1
eval {{run}} --latents normal                               | invalid choice
eval {{mdlm}} --latents gaussian                            | only uniform noise
eval {{ar}} --latents gaussian                              | only uniform noise
eval {{mdlm}} --suite lm1b --latents gaussian               | only uniform noise
eval {{run}} --device cuda                                  | no GPU
sample                                                      | RUN
sample {{absent}}                                           | is not a run
sample {{run}} --num 0                                      | num is 0
sample {{run}} --num -3                                     | num is -3
sample {{run}} --num x                                      | invalid
sample {{run}} --num 1000000000000000000                    | of memory, and there are
sample {{run}} --steps 0                                    | steps is 0
sample {{run}} --steps -1                                   | steps is -1
sample {{run}} --steps 100000000000                         | at most 100,000,000
sample {{run}} --length 0                                   | length is 0
sample {{run}} --length -4                                  | length is -4
sample {{run}} --length 10000000000000                      | take a smaller length or batch size
sample {{run}} --batch-size 0                               | batch_size 0
sample {{run}} --length 3 --prompt 'too long'               | shorten them or raise the length
sample {{run}} --prompt ''                                  | the value of --prompt {EMPTY}
sample {{ar}} --suffix end                                  | cannot look ahead
sample {{run}} --top-p 0                                    | top-p is 0
sample {{run}} --top-p 2                                    | top-p is 2
sample {{run}} --top-p nan                                  | top-p is nan
sample {{run}} --temperature 0                              | temperature is 0
sample {{run}} --temperature -1                             | temperature is -1
sample {{run}} --temperature nan                            | temperature is nan
sample {{run}} --temperature inf                            | temperature is inf
sample {{run}} --label good                                 | trained without labels
sample {{run}} --guidance 2                                 | trained without labels
sample {{run}} --sampler nope                               | invalid choice
sample {{run}} --eta 0.1                                    | the model's own sampler has none
sample {{run}} --sampler ancestral --eta 0.1                | has no eta
sample {{run}} --sampler psi-cap --eta 5                    | must be in [0, 1]
sample {{run}} --sampler psi-rescale --eta -1               | must be in [0, 1]
sample {{run}} --sampler psi-loop --eta nan                 | must be in [0, 1]
sample {{ar}} --sampler psi-cap                             | leave the sampler out
sample {{run}} --grid nope                                  | invalid choice
sample {{run}} --grid loop                                  | use the two together, or neither
sample {{run}} --tail best                                  | invalid choice
sample {{run}} --seed -1                                    | seed is -1: it {SEED}
sample {{run}} --seed 18446744073709551616                  | {SEED}
sample {{run}} --round 1                                    | it has no rounds
sample {{run}} --keep 3                                     | is no place and token
sample {{run}} --keep 99:1                                  | places are 0 to 31
sample {{run}} --keep 99:1 --keep 0:65                      | places are 0 to 31
sample {{run}} --keep 0:65 1:66 --keep 0:67                 | a place is named twice
sample {{run}} --prompt The --keep 1:65                     | where prompt or suffix have 104
sample {{run}} --trace {{pictures}}                         | is a folder: give the name of a file
sample {{run}} --trace {{pipe}}                             | is a device or a pipe, not a file
sample {{run}} --trace {{loop}}                              | is a link that leads to itself
sample {{run}} --trace /dev/null                            | is a device or a pipe, not a file
sample {{run}} --trace {{absent}}/trace.json                | there is no folder
sample {{run}} --device cuda                                | no GPU
sample {{run}} --device mps                                 | use device cpu
trace                                                       | FILE
trace {{json}}                                              | nothing to make: give --html FILE, --svg FILE
trace {{json}} --svg {{new}}                                | is no trace of a generation
trace {{text}} --html {{new}}                               | is damaged (Expecting value
trace {{pipe}} --html {{new}}                               | is a device or a pipe, not a file
trace {{loop}} --html {{new}}                               | Too many levels of symbolic links: {{loop}}
trace /dev/zero --html {{new}}                              | is a device or a pipe, not a file
trace {{trace}} --svg {{new}}                               | alpha at step 0 of sample 0 is nan
trace {{absent}} --html {{new}}                             | absent
trace {{pictures}} --html {{new}}                           | pictures
trace {{json}} --svg {{file}}                               | exists: give the name of a new file
trace {{json}} --html {{pictures}}                          | is a folder
trace {{json}} --html {{absent}}/out.html                   | there is no folder
trace {{json}} --svg {{new}} --columns 3                    | a line has at least 8 characters
trace {{json}} {{json}} {{json}} {{json}} {{json}} --svg {{new}} | give one, or two to 4 for a race
trace {{json}} --svg {{new}} --html {{new}}                 | are the same file
quality                                                     | nothing to measure: name run folders
quality {{absent}} --judge none                             | is not a run
quality {{run}} {{run}} --judge none                        | a setting stands twice
quality {{run}} --judge none --steps 0                      | steps is 0
quality {{run}} --judge none --steps x                      | write whole numbers, with commas between
quality {{run}} --judge none --steps ,                      | names nothing
quality {{run}} --judge none --steps ''                     | the value of --steps {EMPTY}
quality {{run}} --judge none --sampler nope                 | no sampler 'nope'
quality {{run}} --judge none --tail best                    | choose from ancestral, greedy, posterior
quality {{run}} --judge none --temperature 0                | each above 0
quality {{run}} --judge none --temperature warm             | write numbers, with commas between
quality {{run}} --judge none --temperature nan              | each above 0
quality {{run}} --judge none --rounds some                  | write whole numbers
quality {{dcd}} --judge none --rounds 7                     | has no round 7
quality {{run}} --judge none --num 0                        | steps and num must be at least 1
quality {{run}} --judge none --num 1000000000000000000      | take fewer samples (num)
quality {{run}} --judge none --length 2                     | 4-grams are counted
quality {{run}} --judge none --length 10000000000000        | take a smaller length or batch size
quality {{run}} --judge none --eta 0.1                      | choose a psi sampler
quality {{run}} --judge none --sampler psi-cap --eta 5      | must be in [0, 1]
quality {{run}} --judge none --grid nope                    | nope
quality {{run}} --judge none --top-p 0                      | top-p is 0
quality {{run}} --judge none --seed -1                      | seed is -1: it {SEED}
quality {{run}} --judge none --batch-size 0                 | batch_size is 0
quality {{run}} --judge none --out {{file}}                 | {{file}}
quality {{run}} --judge none --out '~/file'                 | {{file}}
quality {{run}} --judge none --out '~nobody-here/q'         | the home folder is not known
compare duo-laptop --out '~/file' --data {{text}}           | {{file}}
reproduce --out '~/file'                                    | {{file}}
quality {{run}} --judge {{absent}} --out {{new}}            | {{absent}}
quality {{run}} --judge {{run}} --out {{new}}               | autoregressive
quality {{run}} --score nope --out {{new}}                  | nope
quality {{run}} --score absent_module:function --out {{new}} | absent_module
quality {{run}} --score os:nothing --out {{new}}            | nothing
quality {{run}} --score zipfile:ZipFile --out {{new}}       | the scorer 'zipfile:ZipFile' has failed (TypeError
plot                                                        | nothing to draw
plot {{absent}}                                             | {{absent}}
plot {{text}}                                               | is not a quality.json
plot {{pipe}}                                               | is a device or a pipe, not a file
plot {{piped}}                                              | quality.json is a device or a pipe
plot {{pictures}}                                           | quality.json
compare                                                     | nothing to compare
compare duo-labtop                                          | did you mean duo-laptop
compare duo-laptop duo-laptop --out {{new}}                 | stands twice
compare duo-laptop --out {{new}} --data ''                  | the value of --data {EMPTY}
compare duo-laptop --out {{new}} --data {{absent}}          | no file, folder or named corpus
compare duo-laptop --out {{new}} --steps 0                  | training.steps is 0
compare duo-laptop --out {{new}} --seed -1                  | {SEED}
compare duo-laptop --out {{new}} --draws 0                  | draws: 0; it must be at least 1
compare duo-laptop --out {{new}} --draws 100000000000000000000 | it must be at least 1, and below 2**63
compare duo-laptop --out {{new}} --limit 0                  | limit: 0; it must be at least 1
compare duo-laptop --out {{new}} --samples 0                | samples: 0; it must be at least 1
compare duo-laptop --out {{new}} --sample-steps 0           | sample steps: 0; it must be at least 1
compare duo-laptop --out {{new}} --judge {{absent}}         | {{absent}}
compare duo-laptop --out {{new}} --device cuda              | no GPU
compare duo-laptop --out {{file}} --data {{text}}           | {{file}}
doctor --objectives nonsense                                | choose from duo, curriculum; duo, bound
doctor --device mps                                         | GPUs of Apple have no float64
doctor --device cuda                                        | no GPU
plan                                                        | RECIPE
plan duo-labtop                                             | did you mean duo-laptop
plan duo-owt --devices 0                                    | can be divided over 1, 2, 4
plan duo-owt --set data.length=1152921504606846976          | take a smaller data.length
plan duo-owt --devices 3                                    | can be divided over 1, 2, 4
plan duo-owt --memory 80                                    | write a number and a unit: GB or GiB
plan duo-owt --memory manyGB                                | write a number and a unit: GB or GiB
plan duo-owt --memory nanGB                                 | write a number and a unit: GB or GiB
plan duo-owt --memory ''                                    | the value of --memory {EMPTY}
plan duo-owt --gpu XYZ                                      | choose from H200, H100, A100
plan duo-owt --measured 0                                   | it is the time of a step in seconds, above 0
plan duo-owt --measured soon                                | soon
plan duo-owt --kind tpu                                     | tpu
plan duo-owt --set data.tokenizer=hf:a/b                    | tokenizer hf:a/b cannot be fetched
plan duo-owt --devices 4 --set parallel.shard=3             | groups of equal size have 2, 4 ranks
plan duo-owt --devices 4 --set parallel.shard=1             | groups of equal size have 2, 4 ranks
plan duo-owt --distill sdtt                                 | for Duo use --method dcd
plan ar-owt --distill dcd                                   | has no discrete noise
consolidate                                                 | RUN
consolidate {{absent}}                                      | is not a run
consolidate {{run}}                                         | has whole files already
consolidate {{run}} --step 77                               | has no checkpoint of step 77
import                                                      | SOURCE
import {{absent}}                                           | --out
import {{absent}} --out {{new}}                             | there is no file or folder
import {{file}} --out {{new}}                               | is no released model
import {{pictures}} --out {{new}}                           | has no config.json
import {{run}} --out {{new}}                                | has no config.json
import {{text}} --out {{run}}                               | exists already, and nothing is overwritten
import hf:a/b/c --out {{new}}                               | write hf:OWNER/NAME
import {{absent}} --out {{new}} --method gpt                | invalid choice
import {{absent}} --out {{new}} --heads 0                   | heads is 0: it must be at least 1
import {{absent}} --out {{new}} --length many               | invalid
import {{released}} --out {{new}} --tokenizer {{piped}}/tokens/tokenizer.json | there is no tokenizer file
import {{released}} --out {{new}} --tokenizer {{run}}/checkpoints | no tokenizer at {{run}}/checkpoints
import {{absent}} --out {{new}} --step -1                   | step is -1: it must be at least 0
export                                                      | RUN
export {{run}}                                              | --out
export {{absent}} --out {{new}}                             | is not a run
export {{run}} --out {{new}}                                | has a convolution (backbone.conv=3)
export {{mdlm}} --out {{new}} --layout duo-ckpt              | does not end with .ckpt
export {{run}} --out {{new}} --layout gguf                  | invalid choice
export {{run}} --out {{pictures}}                           | exists already, and nothing is overwritten
publish                                                     | RUN
publish {{run}}                                             | say where: OWNER/NAME on the Hugging Face hub, or --folder
publish {{run}} me/mine --folder {{new}}                    | one of the two
publish {{run}} mine                                        | names no model of the Hugging Face hub: write OWNER/NAME
publish {{run}} me/mine/more                                | names no model of the Hugging Face hub
publish {{run}} --folder {{new}} --private                  | --private and --revision belong to the hub
publish {{run}} --folder {{new}} --license 'my own'         | give an identifier of the hub, such as apache-2.0
publish {{run}} --folder {{new}} --dataset a/b/c            | give an identifier of the hub, such as owner/name
publish {{run}} --folder {{pictures}}                       | holds other files (cat.png)
publish {{run}} --folder {{file}}                           | is a file: give a new folder
publish {{absent}} --folder {{new}}                         | is not a run
publish {{run}} --folder {{new}} --step 77                  | has no checkpoint of step 77
publish {{run}} --folder {{new}} --round 1                  | it has no rounds
sample hf:mine                                              | names no model of the Hugging Face hub
{TRAIN} parallel.strategy=zero                              | it must be one of 'auto', 'ddp', 'fsdp'
{TRAIN} parallel.strategy=fsdp                              | and this is one process
{TRAIN} parallel.shard=-1                                   | it must not be negative
{TRAIN} training.checkpoint=both                            | it must be one of 'whole', 'sharded'
variance                                                    | nothing to measure
variance {{absent}}                                         | is not a run
variance {{run}} --objectives nope                          | nope
variance {{run}} --objectives ''                            | the value of --objectives {EMPTY}
variance {{run}} --draws 0                                  | draws
variance {{run}} --draws 100000000000000000000              | draws is 100000000000000000000
variance {{run}} --draws 30                                 | multiple
variance {{run}} --batch 0                                  | at least 1 sequence
variance {{run}} --micro-batch -1                           | at least 1 sequence
variance {{run}} --groups 1                                 | groups
variance {{run}} --step x                                   | write last, all, or steps
variance {{run}} --step 999                                 | 999
variance {{run}} --weights raw                              | invalid choice
variance {{run}} --window x                                 | write two levels of alpha
variance {{run}} --window 0.9,0.1                           | 0.9
variance {{run}} --seed -1                                  | seed is -1: it {SEED}
variance {{run}} --limit-seconds 0                          | it must be positive
variance {{run}} --out {{file}}                             | {{file}}
reproduce nothing                                           | nothing
reproduce --budget huge                                     | invalid choice
reproduce --domains text                                    | invalid choice
reproduce --domains prose                                   | full has prose too
reproduce --seeds 0                                         | it must be at least 1
reproduce --base-seeds 0                                    | it must be at least 1
reproduce --workers 0 --out {{new}}                         | each must be at least 1
reproduce --threads 0 --out {{new}}                         | each must be at least 1
recipes all                                                 | all
runs {{absent}}                                             | {{absent}}
runs {{file}}                                               | {{file}}
runs ''                                                     | an argument is empty
eval {{run}} --step 999                                     | 999
sample {{run}} --step -1                                    | -1
quality {{run}} --judge none --step 999                     | 999
eval {{run}} --column abstract                              | belongs to other data
eval {{run}} --data {{text}} --corpus {{text}}              | give one of
eval {{run}} --corpus {{short}}                             | {{short}}
train duo-laptop --out {{run}} --resume --steps 1           | the run has taken 2 steps
{TRAIN} --data {{table}}                                    | abstract
{TRAIN} --data {{table}} --column nope                      | abstract
{TRAIN} --data {{json}}                                     | .jsonl
data show {{absent}}                                        | {{absent}}
data show {{pipe}}                                          | is a device or a pipe, not a file
data show {{binary}}                                        | is not text
data clean nothing                                          | nothing
data list --yes                                             | data clean
studio {{absent}}                                           | is not a folder
studio {{text}}                                             | is not a folder
studio                                                      | runs is not a folder
studio {{run}} --port 99999                                 | choose another --port
studio {{run}} --port nine                                  | invalid
studio {{run}} --host '[::1'                                | brackets stand around an IPv6 address
studio {{run}} --host 0.0.0.0                               | give a --token
studio {{run}} --host '::'                                  | give a --token
studio {{run}} --host example.org                           | give a --token
studio {{run}} --token short                                | --token needs 12 to 200 letters
studio {{run}} --host 192.0.2.1 --token a-good-long-token   | cannot listen at 192.0.2.1
studio {{run}} --judge {{mdlm}}                             | and no judge
studio {{run}} --device tpu                                 | invalid choice
data                                                        | required
data fetch                                                  | invalid choice
data get gutenberg-prosa                                    | gutenberg-prose
data get ''                                                 | an argument is empty
"""


def lines() -> list[tuple[str, str]]:
    """Command and words of each line."""
    found = [line.rpartition("|") for line in CATALOGUE.strip("\n").splitlines()]
    return [(command.strip(), words.strip()) for command, _, words in found]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, english: Path, golden: Path) -> dict[str, Path]:
    """Runs, and files of every kind that a user may give by mistake."""
    home = tmp_path_factory.mktemp("world")
    names = (
        "run",
        "mdlm",
        "ar",
        "dcd",
        "norecipe",
        "climbs",
        "published",
        "pictures",
        "absent",
        "new",
        "released",
        "piped",
        "loop",
    )
    files = ("text.txt", "empty.txt", "short.txt", "tiny.txt", "binary.txt", "latin.txt", "gz.gz", "file", "pipe")
    places = {name: home / name for name in names} | {Path(name).stem: home / name for name in files}
    places |= {name: home / f"{name}.jsonl" for name in ("list", "broken", "surrogate")}
    places |= {"table": home / "table.csv", "json": home / "file.json", "trace": home / "trace.json"}
    for name in ("run", "mdlm", "ar"):
        method = "duo" if name == "run" else name
        session.train(small_recipe(english, "training.steps=2", name=f"{method}-laptop"), places[name])
    rounds = RoundChanges(rounds=1, round_steps=2)
    plan_distillation(DistillRequest(places["run"], changes=rounds, out=places["dcd"])).run(device="cpu")
    shutil.copytree(places["run"], places["norecipe"])
    (places["norecipe"] / "recipe.json").unlink()
    shutil.copytree(places["run"], places["climbs"])
    load(places["run"]).save_pretrained(places["published"])
    for foreign, title in (("climbs/recipe.json", "../../climbs"), ("published/config.json", str(places["new"]))):
        text = (home / foreign).read_text()
        (home / foreign).write_text(text.replace('"duo-laptop"', json.dumps(title)))
    write_folder(places["released"], prefixed(reference_tensors(golden)))
    places["pictures"].mkdir()
    (places["pictures"] / "cat.png").write_bytes(b"\x89PNG")
    shutil.copy(english, places["text"])
    places["empty"].touch()
    places["short"].write_text("Too short.\nBy far.")
    places["tiny"].write_text("Too short.")
    places["binary"].write_bytes(b"text\x00\x01\x02" * 100)
    places["latin"].write_bytes("caf\xe9 ".encode("latin-1") * 100)
    places["gz"].write_bytes(gzip.compress(b"some text " * 100)[:-20])
    places["file"].write_text("something that somebody needs")
    places["list"].write_text("[1, 2]\n")
    places["broken"].write_text('{"text": "fine"}\n{"text": \n')
    places["surrogate"].write_text('{"text": "\\ud800"}\n')
    places["table"].write_text("title,abstract\nA,B\n")
    places["json"].write_text('{"text": "something"}')
    frame = {"step": 0, "alpha": float("nan"), "tokens": [65]}
    sample = {"index": 0, "frames": [frame], "text": "A"}
    trace = {"format": 1, "about": {}, "mask": None, "vocabulary": {"65": "A"}, "samples": [sample]}
    places["trace"].write_text(json.dumps(trace))
    os.mkfifo(places["pipe"])
    places["loop"].symlink_to(places["loop"])
    shutil.copytree(places["run"], places["piped"])
    (places["piped"] / "metrics.jsonl").unlink()
    (places["piped"] / "tokens").mkdir()
    for name in ("metrics.jsonl", "quality.json", "tokens/tokenizer.json"):
        (places["piped"] / name).symlink_to(places["pipe"])
    return places


def state(home: Path) -> Iterator[tuple[str, bytes | None, int]]:
    """Everything below a folder: path, content and time of change."""
    for path in sorted(home.rglob("*")):
        if path.is_symlink() or not path.is_file():
            yield str(path), None, 0
        else:
            yield str(path), path.read_bytes(), path.stat().st_mtime_ns


def test_every_command_is_in_the_catalogue() -> None:
    assert {command.split(" ")[0] for command, _ in lines()} >= COMMANDS.keys()
    assert len(lines()) >= 150
    assert len({command for command, _ in lines()}) == len(lines())


@pytest.mark.parametrize(("command", "words"), lines(), ids=[command or "nothing" for command, _ in lines()])
def test_refused(
    command: str,
    words: str,
    world: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = world["run"].parent
    monkeypatch.chdir(home)  # where defaults such as runs/quality would be made
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    names = {name: str(path) for name, path in world.items()}
    before = list(state(home))
    capsys.readouterr()
    try:
        code: object = main(shlex.split(command.format(**names)))
    except SystemExit as exit:  # the parser's own errors
        code = exit.code
    output = capsys.readouterr()
    shown = re.sub(r"[\s│╭╮╰╯─]+", " ", output.err)
    assert code == 2, shown
    assert words.format(**names) in shown
    assert output.out == ""
    assert len([line for line in output.err.splitlines() if line.startswith("duality: error: ")]) <= 1
    after = list(state(home))
    assert after == before, {path for path, *_ in set(after) ^ set(before)}
