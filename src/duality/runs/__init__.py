"""Runs: a recipe that has been trained into a folder, and the model that comes out of it.

folder       the files of a run folder, and which recipe may be trained into it
base         what a distillation or a finetuning began from
beginnings   the weights that a run begins from: of a run, or of a model alone
lock         one training at a time in a run folder
provenance   which tokens, versions and commit a run comes from; checks that they are still the same
longer       which recipe a run goes on with when it is trained longer
metrics      metrics.jsonl
corpora      the corpus of a run; data from memory, written into the run folder
devices      the device to compute on, by name
trackers     the log of a training in other programs: ``tensorboard_tracker``, ``wandb_tracker``
steps        the steps of a training, with checkpoints, validation and samples between them
starting     what a training begins from: a new network, a run to distill, a model to finetune
session      training into a run folder
api          ``train`` and ``distill``, as the library and the commands call them
shaping      prompts, blanks, labels, guidance and filters as wrappers of a denoiser
writing      a request for samples, and the samples
scoring      the likelihood of given texts, whole and per token
pieces       how token ids read as text
traces       a file with every step of every sample
inside       the network's vectors
model        ``load`` and ``Model``: sample, fill, measure, look inside, keep
hub_files    models of the Hugging Face hub, as folders of this machine
model_sources  what a user names as a model: a run, a folder, a model of the hub; where weights came from
pretrained_folder  a model alone in a folder: its files and its config.json
loading      the parts of a model, read and checked before its network is made
model_card   README.md of a published model
publishing   writing a model alone, and uploading it to the hub
shapes       the shapes of a recipe's weights, without the weights
consolidation  a checkpoint in parts made into one of whole files
released     the released network: names, order and shapes of its tensors; ``released_config`` what a model says about
             itself, ``released_files`` reading its files as data
importing    a released model becomes a run; ``exporting`` a run in a released layout
describe     a recipe before it runs: its size and the memory it needs
scaling      what a training needs on many devices
overview     the run folders below a directory
listing      the list of recipes, kept in a file
sampling     the samples of the cases of an evaluation
sweep_runs   the cases of a sweep over runs
comparison   several recipes, trained and measured alike
suites       the test sets of the paper's tables, measured on a model
variance     the variance of a run's gradients; ``variance_objectives`` are its objectives by name

folder/  recipe.json  env.json  tokenizer.json  corpus.json  metrics.jsonl  loss.png
         checkpoints/step-00001000/  samples/step-00001000.jsonl
         rounds/step-00000500/       (a distillation)   data/   (data that was given from memory)
         base.json                   (a distillation, a finetuning)
         trackers.json  tensorboard/  wandb/   (a training with trackers)
         training.lock               (while it is trained)
         evaluations.json            (results of suites)
         released.json               (an imported model: the tensors and the configuration of its file)
"""
