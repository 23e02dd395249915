"""Updates from one adapter, on a Tinker server and here: python tinker_update.py MODEL URL CHECKPOINTS.

Prints the largest difference between log-probs after each, and how far they moved them. CHECKPOINTS: the folder in which the server keeps
its adapters, as folders of peft or archives of them.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from gradus.policies.local.loading import LoadedModel, load_model, load_tokenizer
from gradus.policies.tinker.policy import TokenCounts
from gradus.policies.tinker.served import WeightsAddress
from gradus.training.config import GrpoConfig
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.optimizers import make_optimizer
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.update import policy_update
from gradus.training.tinker.update import remote_update
from gradus.training.tinker.weights import ServedTraining, ServedWeights
from gradus.training.trainer_config import LoraConfig

RANK, UPDATES = 4, 5
CONFIG = GrpoConfig(lora=LoraConfig(rank=RANK, alpha=32), algorithm="dr_grpo", grad_clip=0, lr=1e-3, max_logp_diff=1.0)


def samples() -> list[TrainingSample]:
    """Sequences of unequal length, with advantages of both signs."""
    draw = torch.Generator().manual_seed(0)
    batch: list[TrainingSample] = []
    for number, (length, prompt) in enumerate([(24, 6), (9, 4), (40, 10), (12, 8)]):
        positions = torch.arange(prompt, length)
        zeros = torch.zeros(len(positions), dtype=torch.int64)
        batch.append(
            TrainingSample(
                key=(number, 0),
                episode=number,
                ids=torch.randint(4, 250, (length,), generator=draw),
                positions=positions,
                logprobs=zeros.double(),
                turns=zeros,
                offsets=torch.arange(len(positions)),
                advantages=torch.full((len(positions),), (-1.0) ** number * (1 + number), dtype=torch.float64),
            )
        )
    return batch


def scores_here(loaded: LoadedModel, batch: list[TrainingSample]) -> list[torch.Tensor]:
    """Log-probs (T - 1,) of all tokens behind the first."""
    with torch.no_grad():
        rows = [loaded.model(sample.ids[None]).logits[0, :-1].log_softmax(-1) for sample in batch]
    return [row.gather(1, sample.ids[1:, None])[:, 0] for row, sample in zip(rows, batch, strict=True)]


def adapter_folder(checkpoints: Path) -> Path:
    """The newest adapter that the server has written."""
    written = [*checkpoints.rglob("adapter_model.safetensors"), *checkpoints.rglob("*.tar.gz")]
    files = [file for file in written if file.is_file()]
    newest = max(files, key=lambda file: file.stat().st_mtime)
    if newest.suffix != ".gz":
        return newest.parent
    folder = Path(tempfile.mkdtemp())
    with tarfile.open(newest) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.rglob("adapter_model.safetensors")).parent


def with_logprobs(batch: list[TrainingSample], scored: list[torch.Tensor]) -> list[TrainingSample]:
    for sample, logprobs in zip(batch, scored, strict=True):
        sample.logprobs.copy_(logprobs[sample.positions - 1])
    return batch


def main(model: str, url: str, checkpoints: str) -> None:
    words = load_tokenizer(model)
    source = ServedTraining(model=WeightsAddress(url=url, words=model), words=words, counts=TokenCounts())
    weights = ServedWeights(source, CONFIG)
    request = weights.requests.client.save_weights_for_sampler("begun")
    weights.requests.service.result(request, "save")
    folder = adapter_folder(Path(checkpoints))
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = model
    if settings["target_modules"] is None:  # SkyRL names no layers, for which peft takes some of them
        tensors = load_file(folder / "adapter_model.safetensors")
        settings["target_modules"] = sorted({name.split(".")[-3] for name in tensors})
    begun = Path(tempfile.mkdtemp())
    (begun / "adapter_config.json").write_text(json.dumps(settings))
    (begun / "adapter_model.safetensors").write_bytes((folder / "adapter_model.safetensors").read_bytes())
    words.tokenizer.save_pretrained(begun)
    loaded = prepare_model(load_model(begun, device="cpu", dtype="float32"), CONFIG)
    batch = samples()
    before = weights.remote.forward(batch)
    same_start = max(float((a - b).abs().max()) for a, b in zip(before, scores_here(loaded, batch), strict=True))
    optimizer = make_optimizer(loaded.model, CONFIG)
    scored, differences = before, []
    for _ in range(UPDATES):
        batch = with_logprobs(batch, scored)
        remote_update(weights.remote, batch, CONFIG, CONFIG.lr)
        policy_update(loaded, optimizer, batch, CONFIG, CONFIG.lr)
        scored, here = weights.remote.forward(batch), scores_here(loaded, batch)
        differences.append(max(float((a - b).abs().max()) for a, b in zip(scored, here, strict=True)))
    figures = {
        "reduction": weights.remote.reduction.name,
        "same_start": same_start,
        "moved": max(float((a - b).abs().max()) for a, b in zip(before, scored, strict=True)),
        "differences": differences,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
