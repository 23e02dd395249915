"""A Tinker program for the tests, run in an environment that holds the SDK: python tinker_program.py train|score|numbers URL [PATH ...]."""

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tinker
from tinker import types

warnings.simplefilter("ignore")
LONG, SHORT = [5, 6, 7, 8, 9, 10, 11], [20, 21, 22]


def datum(ids: Sequence[int], advantage: float, logprob: float = -5.5) -> types.Datum:
    count = len(ids) - 1
    inputs: Any = {"target_tokens": list(ids[1:]), "logprobs": [logprob] * count, "advantages": [advantage] * count}
    return types.Datum(model_input=types.ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs=inputs)


BATCH = [datum(LONG, 0.5), datum(SHORT, -1.0)]


def client_of(future: Any) -> Any:
    """Before 0.38 the SDK gives clients, later futures of them."""
    return future.result() if hasattr(future, "result") else future


def scores(training: Any) -> list[list[float]]:
    outputs = training.forward(BATCH, "importance_sampling").result().loss_fn_outputs
    return [[float(value) for value in output["logprobs"].data] for output in outputs]


def update(training: Any, loss: str = "importance_sampling") -> Any:
    done = training.forward_backward(BATCH, loss)
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return done.result()


def train(service: tinker.ServiceClient, path: str) -> None:
    """Trains and saves until it is killed; says what was saved, and how it scores."""
    if path == "new":
        training = client_of(service.create_lora_training_client(base_model="llama", rank=4))
    else:
        training = client_of(service.create_training_client_from_state_with_optimizer(path))
    for step in range(1000):
        update(training)
        saved = training.save_state(f"step{step}").result().path
        print(json.dumps({"path": saved, "scores": scores(training)}), flush=True)


def score(service: tinker.ServiceClient, path: str) -> None:
    """Says how a checkpoint scores, and how after one more update."""
    training = client_of(service.create_training_client_from_state_with_optimizer(path))
    before = scores(training)
    update(training)
    print(json.dumps({"path": path, "scores": before, "next": scores(training)}), flush=True)


def numbers(service: tinker.ServiceClient) -> None:
    """Says what the server gives for one program, whatever the wire."""
    training = client_of(service.create_lora_training_client(base_model="llama", rank=4, seed=3))
    losses = ("importance_sampling", "ppo", "cispo")
    figures: list[Any] = [scores(training), *(update(training, loss).metrics["loss:sum"] for loss in losses)]
    sampler = client_of(training.save_weights_and_get_sampling_client())
    prompt = types.ModelInput.from_ints(LONG)
    params = types.SamplingParams(max_tokens=8, temperature=0.7, top_k=50, stop=["z"])
    sampled = sampler.sample(
        prompt=prompt, num_samples=3, sampling_params=params, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    figures += [[list(one.tokens), list(one.logprobs)] for one in sampled.sequences]
    figures += [sampled.prompt_logprobs, sampled.topk_prompt_logprobs, scores(training)]
    figures.append(client_of(service.create_sampling_client(base_model="llama")).compute_logprobs(prompt).result())
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    client = tinker.ServiceClient(base_url=sys.argv[2])
    if sys.argv[1] == "train":
        train(client, sys.argv[3])
    elif sys.argv[1] == "numbers":
        numbers(client)
    else:
        for name in sys.argv[3:]:
            score(client, name)
