"""Models looked at by the log-probs of drawn ids: the reference is still, what was saved is what was trained (laws 6 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradus.policies.local.loading import LoadedModel, load_model
from gradus.training.config import GrpoConfig
from gradus.training.laws.movement import BetweenUpdates, fingerprint, some_sum, unmoved
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, apart, holds, norm_of
from gradus.training.trainer_config import TrainerConfig

_LENGTH = 32  # drawn ids
_LARGEST = 2**31  # bytes of a model that is held a second time


@torch.no_grad()
def probe(model: nn.Module) -> Tensor:
    """(31,) log-probs of drawn ids, by the model's own forward pass."""
    call: Any = model
    words, device = call.config.get_text_config().vocab_size, next(model.parameters()).device
    ids = torch.randint(words, (_LENGTH,), generator=torch.Generator().manual_seed(0)).to(device)
    logprobs = call(input_ids=ids[None], use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(1, ids[1:, None])[:, 0].cpu()


def frozen_sums(model: nn.Module) -> dict[str, float]:
    """The sum of some numbers of each frozen tensor, spread over it."""
    sums: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.requires_grad:
            sums[f"frozen tensor {name}"] = some_sum(parameter)
    return sums


class StillModels:
    """Holds what must not change from the start of a run: the reference, the frozen tensors, and where training began."""

    def __init__(
        self, loaded: LoadedModel, config: GrpoConfig, reference: Callable[[], AbstractContextManager[nn.Module]] | None
    ) -> None:
        self._loaded, self._config, self._reference = loaded, config, reference
        self._frozen = frozen_sums(loaded.model)
        self._start = probe(loaded.model)
        self._moved = 0.0  # nats, when it was last checked
        self.between = BetweenUpdates(loaded)

    def ends(
        self, laws: LawRunner, optimizer: torch.optim.Optimizer, moved_by: torch.optim.Optimizer, kl: float | None
    ) -> None:
        """Behind an update that is watched: what moved the weights is the run's optimizer."""
        end = self.between.ends(optimizer)
        laws.check("optimizer", unmoved, fingerprint(self._loaded, moved_by), end)
        laws.check("optimizer", unmoved, self._frozen, frozen_sums(self._loaded.model))
        laws.check("reference", self.reference_again, kl)
        laws.check("optimizer", adapters_again, self._loaded, self._config, laws.step)

    def reference_again(self, kl: float | None) -> Pairs:
        """The reference is where the run began; once weights have moved the divergence from it, ``kl``, is not 0."""
        if self._reference is None:
            raise NotMeasured("kl_coef above 0")
        with self._reference() as model:
            distance = (probe(model) - self._start).abs().max()
        place = "its log-probs of drawn ids, against the first step's"
        yield Pair(float(distance), 0.0, place, _rounding(self._loaded, 0.0))
        # The divergence is that of the weights before this step: it follows the movement that the check before this one saw.
        if kl is not None and self._moved > 0.05:
            yield holds(kl != 0.0, "the divergence from it after weights moved")
        self._moved = float((probe(self._loaded.model) - self._start).abs().mean())


@torch.no_grad()
def adapters_again(loaded: LoadedModel, config: TrainerConfig, step: int) -> Pairs:
    """What an adapter adds to its layer is alpha / rank times B A x, on drawn x."""
    modules: Iterable[tuple[str, Any]] = loaded.model.named_modules()
    named = {name: each for name, each in modules if getattr(each, "lora_A", None) and hasattr(each, "base_layer")}
    layers = list(named.values())
    if config.lora is None or config.quantize or not layers:
        raise NotMeasured("adapters (LoRA) that are not on quantized weights")
    targets = config.lora.targets
    if not isinstance(targets, str):
        ends = tuple(f".{target}" for target in targets)
        odd = [name for name in named if not f".{name}".endswith(ends)]
        yield Pair(
            len(odd), 0, f"layers that wear adapters (LoRA), which lora.targets do not name ({', '.join(odd[:2])})"
        )
    layer = layers[step % len(layers)]
    (first,), (second,) = layer.lora_A.values(), layer.lora_B.values()
    x = torch.randn(4, first.in_features, generator=torch.Generator().manual_seed(step)).to(first.weight)
    inputs = x.to(layer.base_layer.weight)
    base = layer.base_layer(inputs)
    added = (layer(inputs) - base).float()
    scale = config.lora.alpha / config.lora.rank
    again = scale * (x @ first.weight.mT @ second.weight.mT).float()
    rounding, noise = 0.1, 0.02
    if base.dtype == torch.float32:
        rounding, noise = 1e-3, 1e-5
    place = f"what an adapter (LoRA) adds to its layer, by alpha / rank = {scale:g}"
    # What is added is a difference of sums with the base in them, whose rounding stays.
    yield apart(added, again, rounding, place, noise * norm_of(base))


def loaded_again(folder: Path, loaded: LoadedModel, quantized: bool) -> Pairs:
    """A model folder, loaded again, has the log-probs of the model in memory."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in loaded.model.parameters())
    if size > _LARGEST or quantized:
        raise NotMeasured("a second model of this size in memory")
    again = load_model(folder, device=str(loaded.device), dtype=loaded.dtype)
    first, second = (model.renderer.first("Be brief.", "What is 2 + 2?") for model in (again, loaded))
    yield holds(first == second, f"{folder} reads a prompt as the same tokens")
    distance = (probe(again.model) - probe(loaded.model)).abs().max()
    yield Pair(float(distance), 0.0, f"log-probs of drawn ids under {folder}, loaded again", _rounding(loaded, 1e-4))


def _rounding(loaded: LoadedModel, exact: float) -> float:
    """What kernels of another shape may change, nats."""
    return exact if loaded.device.type == "cpu" and loaded.dtype == torch.float32 else 0.1
