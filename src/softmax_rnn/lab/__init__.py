"""The lab: train any mechanism on any text, on a laptop or a cluster, without ever losing a run.

In the order in which a run passes through them:

    config.py       what a run is: dataclasses, YAML, command line, content hash
    recipes.py      complete configurations by name: laptop, tiny, paper
    corpora.py      where documents come from: built in, files, hub
    tokenizer.py    a BPE trained on the corpus, or any other
    tokens.py       tokenised text on disk, written once, memory-mapped
    cache.py        where tokenizers and tokens are kept
    data.py         the split, the rows, their order, batches
    model.py        the configuration's model
    train.py        the command: check, open the folder, train, say how it ended
    folder.py       a run's folder: whose it is, where to go on
    trainer.py      Hugging Face's Trainer with atomic checkpoints
    sharding.py     fully_shard, and whole state dicts in and out of it
    checkpoint.py   temporary folder, manifest, fsync, rename
    recorder.py     metrics.jsonl: losses, spikes, steps without a finite loss
    watch.py        progress bars and Ctrl-C
    environment.py  what a run ran on
    sweep.py        grids of runs, on this machine or SLURM
    store.py        runs as tables
    speed.py        tokens per second against a bare loop
"""
