"""Runs tinker-cookbook's own loop files, unchanged, in an environment that holds them: python cookbook_loops.py base|sl|rl FOLDER [URL].

The rows of the hub are sums here, and the model is a tiny Llama, which `base` teaches to answer any sum with a random number in a box.
"""

import random
import sys
from pathlib import Path

import datasets
import torch
from tinker_cookbook import model_info, renderers, tokenizer_utils
from tinker_cookbook.recipes import rl_loop, sl_loop
from tiny_qwen2 import make_tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME, RENDERER, STEPS = "tiny-llama", "qwen3_instruct", 20
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
WORDS = [
    f"How many r's are in strawberry?{SUFFIX} What is 0 1 2 3 4 5 6 7 8 9 plus user assistant \\boxed{{3}} Let's spell letters"
]


def sums(count: int) -> list[tuple[str, int]]:
    draw = random.Random(0)
    pairs = [(draw.randrange(2), draw.randrange(1, 2)) for _ in range(count)]
    return [(f"What is {a} plus {b}?", a + b) for a, b in pairs]


def conversation(question: str, number: int) -> list[dict[str, str]]:
    answer = {"role": "assistant", "content": f"\\boxed{{{number}}}"}
    return [{"role": "user", "content": question}, answer]


def write_base(folder: Path) -> None:
    make_tiny_llama(folder, context=1024, text=WORDS)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    renderer = renderers.get_renderer(RENDERER, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = random.Random(1)
    torch.manual_seed(1)
    example = conversation("How many r's are in strawberry?" + SUFFIX, 3)
    for step in range(200):
        question, _ = sums(256)[step % 256]
        messages = [*example, *conversation(question + SUFFIX, draw.randrange(10))]
        model_input, weights = renderer.build_supervised_example(messages)
        ids = torch.tensor(model_input.to_ints())[None]
        logits = model(ids).logits[0, :-1]
        (torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none") * weights[1:]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def run(loop: str, folder: Path, url: str) -> None:
    tokenizer_utils.register_tokenizer(NAME, lambda: AutoTokenizer.from_pretrained(folder / NAME))
    model_info.get_recommended_renderer_name = lambda name: RENDERER
    rows = sums(8 * STEPS)
    if loop == "sl":
        table = {"messages": [conversation(question, number) for question, number in rows]}
    else:
        table = {"question": [question for question, _ in rows], "answer": [f"#### {number}" for _, number in rows]}
    found = datasets.DatasetDict(train=datasets.Dataset.from_dict(table))
    datasets.load_dataset = lambda *names: found
    common = {
        "base_url": url,
        "log_path": str(folder / loop),
        "model_name": NAME,
        "batch_size": 8,
        "lora_rank": 8,
        "save_every": 8,
    }
    if loop == "sl":
        sl_loop.main(sl_loop.Config(**common, learning_rate=1e-2, max_length=512))
    else:
        config = rl_loop.Config(
            **common, learning_rate=1e-2, group_size=8, max_tokens=32, loss_fn="importance_sampling", ttl_seconds=None
        )
        rl_loop.main(config)


if __name__ == "__main__":
    if sys.argv[1] == "base":
        write_base(Path(sys.argv[2]) / NAME)
    else:
        run(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
