"""Asks lm-eval's client for log-likelihoods of a small task at `gradus serve`, and prints by how much they miss the model's own."""

import json
import tempfile
import threading
from pathlib import Path

import torch
import uvicorn
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.models.openai_completions import LocalCompletionsAPI  # pyright: ignore[reportMissingImports]
from tiny_qwen2 import make_tiny_qwen2

from gradus.interop.servers import listen, server_config
from gradus.interop.serving.app import make_app
from gradus.policies.local.loading import load_model

PAIRS = [("The sky is", " blue"), ("two and two", " make four"), ("a", " b c d"), ("1 + 1 =", " 2"), ("x", " y")]


def main() -> None:
    folder = make_tiny_qwen2(Path(tempfile.mkdtemp()) / "tiny", context=1024)
    loaded = load_model(folder)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(server_config(make_app(loaded, name="tiny"), ws="none"))
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    client = LocalCompletionsAPI(
        base_url=address,
        model="tiny",
        tokenizer_backend="huggingface",
        tokenizer=str(folder),
        max_length=512,
        batch_size=4,
    )
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=place) for place, pair in enumerate(PAIRS)
    ]
    worst = 0.0
    for (context, continuation), (value, greedy) in zip(PAIRS, client.loglikelihood(asked), strict=True):
        before, after = client._encode_pair(context, continuation)
        ids = torch.tensor([[*before, *after]])
        with torch.no_grad():
            logprobs = loaded.model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)[len(before) - 1 :]
        own = logprobs.gather(-1, torch.tensor(after)[:, None]).sum()
        worst = max(worst, abs(float(own) - value))
        assert greedy == (logprobs.argmax(-1).tolist() == after)
    print(json.dumps({"worst": worst}))


if __name__ == "__main__":
    main()
