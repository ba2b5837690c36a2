"""The lab: train any mechanism on any text, on a laptop or a cluster, without ever losing a run.

A run goes from top to bottom through these files:

    config.py      what a run is: dataclasses, YAML, command line, content hash      recipes.py   complete configs by name
    corpora.py     where documents come from: built in, files, hub                    tokenizer.py BPE trained here, or any other
    data.py        split, tokenise once, memory-map, batch
    model.py       config -> SoftmaxRnnForCausalLM                                    sharding.py  fully_shard, and full state dicts
    train.py       the command: folder, lock, resume, stop                            trainer.py   Trainer with atomic checkpoints
    recorder.py    metrics.jsonl: losses, spikes, non-finite steps                    checkpoint.py  temp folder, fsync, rename
    watch.py       progress bar, signals                                              environment.py what it ran on
    sweep.py       grids of runs, on this machine or SLURM                            store.py     finished runs as tables
    speed.py       tokens per second against a bare loop
"""
