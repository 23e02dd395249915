"""What a run has written, read back as a stranger reads it, against what it holds in memory: checkpoints, model folders, episodes, metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor

from gradus.core import Episode, Group
from gradus.core.metrics import SftRecord, StepRecord
from gradus.core.values import plain
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.settings import read_settings
from gradus.rollouts import read_episodes
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair
from gradus.training.run.checkpoints import LocalState

_EPISODES = 4  # of a file, that are compared field by field
_LARGEST = 2**30  # bytes that are read back
_OPEN: Any = safe_open  # it has no types
Record = Mapping[str, Any]


def check_checkpoint(
    laws: LawRunner, folder: Path, training: LocalState, step: int, state: Record, every: int = 0
) -> None:
    """Holds the newest checkpoint of a run's folder, if it has one, to what is in memory. Raises LawBroken.

    Of checkpoints that are written ``every`` so many steps the tensors of the first, second, fourth and so on are read.
    """
    number, beyond = divmod(step, every) if every else (0, 0)
    compared = training if beyond or number & (number - 1) == 0 else None
    path = max((folder / "checkpoints").glob("step-*"), default=None)
    if path is not None:
        laws.step = step
        laws.check("checkpoint", checkpoint_again, path, folder / "metrics.jsonl", compared, step, state)


def checkpoint_again(
    path: Path, metrics_path: Path, training: LocalState | None, step: int, state: Record
) -> Iterator[Pair]:
    """A checkpoint has the state in memory, and the weights and the optimizer of ``training``."""
    document = json.loads((path / "state.json").read_text(encoding="utf-8"))
    yield Pair(step, document["step"], 0.0, f"the step in {path.name}/state.json")
    yield Pair(step, int(path.name.removeprefix("step-")), 0.0, f"the step in the name {path.name}")
    for name, value in state.items():
        same = json.loads(json.dumps(value)) == document["state"].get(name)
        yield Pair(same, True, 0.0, f"{name} in {path.name}/state.json, whether it is that of the run")
    metrics = metrics_path.read_bytes()
    yield Pair(document["offset"], len(metrics), 0.0, f"the bytes of metrics.jsonl, against the offset of {path.name}")
    kinds = (b'{"kind": "step"', b'{"kind": "sft"', b'{"kind": "distill"')
    steps = [line for line in metrics.splitlines() if line.startswith(kinds)]
    yield Pair(step, len(steps), 0.0, "the steps in metrics.jsonl, each once")
    if training is None:
        return
    trained = {name: weight.data for name, weight in training.model.named_parameters() if weight.requires_grad}
    size = sum(weight.nbytes for weight in trained.values())
    if size > _LARGEST:
        raise NotMeasured("trained weights of at most 1 GiB")
    yield from _same_tensors(trained, path / "weights.safetensors", exact=True)
    stored = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
    place = f"{path.name}/optimizer.pt: numbers that differ from the optimizer's"
    yield Pair(_differing(training.optimizer.state_dict(), stored), 0.0, 0.0, place)


def _same_tensors(tensors: Mapping[str, Tensor], path: Path, *, exact: bool) -> Iterator[Pair]:
    """Numbers of a safetensors file that differ from those of ``tensors``; ``exact``: it has all of these and no others."""
    with _OPEN(path, "pt") as file:
        names = set(cast(list[str], file.keys()))
        if exact:
            yield Pair(len(names ^ tensors.keys()), 0.0, 0.0, f"{path.name}: tensors that only one side has")
        for name in sorted(names & tensors.keys()):
            differing = _differing(tensors[name], file.get_tensor(name))
            yield Pair(differing, 0.0, 0.0, f"{path.parent.name}/{path.name}: numbers of {name} that differ")


def _differing(first: Any, second: Any) -> int:
    """How many numbers of two nested documents of tensors differ; what only one has counts as one."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
        one, other = first.detach().cpu(), second.detach().cpu()
        if one.dtype == other.dtype and one.equal(other):
            return 0
        return int((one != other).logical_and(~(one.isnan() & other.isnan())).sum()) + (one.dtype != other.dtype)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        one, other = cast(Mapping[Any, Any], first), cast(Mapping[Any, Any], second)
        shared = one.keys() & other.keys()
        return len(one.keys() ^ other.keys()) + sum(_differing(one[key], other[key]) for key in shared)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        pairs = zip(cast(Sequence[Any], first), cast(Sequence[Any], second), strict=False)
        return abs(len(cast(Any, first)) - len(cast(Any, second))) + sum(_differing(*pair) for pair in pairs)
    return int(not isinstance(first, type(second)) or bool(first != second))


def folder_again(folder: Path, loaded: LoadedModel) -> Iterator[Pair]:
    """A model folder has the settings of the model in memory, what transformers draws by is how it was sampled, and tensors are equal by name."""
    settings = read_settings(folder)
    yield Pair(
        settings == loaded.settings, True, 0.0, f"{folder.name}: whether its gradus.json has the settings in memory"
    )
    path, sampling = folder / "generation_config.json", loaded.settings.sampling
    if sampling is not None and not sampling.greedy and path.is_file():
        written = json.loads(path.read_text(encoding="utf-8"))
        for name in ("temperature", "top_p", "top_k"):
            value = getattr(sampling, name)
            yield Pair(written.get(name, value), value, 1e-9, f"{name} in {folder.name}/generation_config.json")
    tensors = {name.replace(".default.", "."): value for name, value in loaded.model.state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        yield from _same_tensors(tensors, path, exact=False)


def episodes_again(folder: Path, step: int, groups: Sequence[Group]) -> Iterator[Pair]:
    """The file of a step's episodes, read back, has every member of ``groups`` with all that is known of it."""
    path = folder / "episodes" / f"step-{step:06d}.jsonl.gz"
    yield Pair(path.is_file(), True, 0.0, f"whether the episodes of step {step} are stored in {path.name}")
    stored = read_episodes(path).episodes
    episodes = [episode for group in groups for episode in group.episodes]
    yield Pair(len(stored), len(episodes), 0.0, f"the episodes in {path.name}")
    some = list(enumerate(zip(stored, episodes, strict=True)))[:: max(1, len(stored) // _EPISODES)]
    for number, (first, second) in some:
        stored_fields, memory_fields = _plain(first), _plain(second)
        parted = sorted(name for name in memory_fields if stored_fields[name] != memory_fields[name])
        yield Pair(len(parted), 0.0, 0.0, f"{path.name}, episode {number}: fields that differ ({', '.join(parted)})")


def _plain(episode: Episode) -> dict[str, Any]:
    return json.loads(json.dumps(plain(asdict(episode))))


def line_again(metrics: Path, record: StepRecord | SftRecord) -> Iterator[Pair]:
    """The last line of this kind in the metrics is the record in memory."""
    kind = json.dumps({"kind": record["kind"]}).removesuffix("}").encode()
    lines = [line for line in _last_lines(metrics) if line.startswith(kind)]
    yield Pair(bool(lines), True, 0.0, f"{metrics.name}: whether it has the line of a step")
    stored = json.loads(lines[-1])
    parted = [name for name, value in record.items() if isinstance(value, int | str) and stored.get(name) != value]
    yield Pair(len(parted), 0.0, 0.0, f"{metrics.name}: figures that differ from those in memory ({', '.join(parted)})")


def figures_again(record: StepRecord, groups: Sequence[Group], lr: float) -> Iterator[Pair]:
    """The means and counts of a step's record are those of its episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [each.reward.value for each in episodes if each.reward and each.reward.value is not None]
    truths = [each.metrics.get("true_reward") for each in episodes]
    true_rewards = [value for value in truths if value is not None]
    tokens = [len(turn.tokens.action_ids) for each in episodes for turn in each.turns if turn.tokens]
    again = {
        "reward_mean": fmean(rewards) if rewards else None,
        "true_reward_mean": fmean(true_rewards) if true_rewards else None,
        "groups": len(groups),
        "episodes": len(episodes),
        "action_tokens": sum(tokens),
        "lr": lr,
    }
    for name, value in again.items():
        actual = record.get(name)
        yield Pair((actual is None) == (value is None), True, 0.0, f"{name} of the step's record, whether there is one")
        if actual is not None and value is not None:
            yield Pair(cast(float, actual), value, 1e-9 * max(1.0, abs(value)), f"{name} of the step's record")


def _last_lines(path: Path) -> list[bytes]:
    """The lines in the last 64 KiB of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        return file.read().splitlines()


def best_again(metrics: Path, best_by: str, step: int | None, reward: float | None) -> Iterator[Pair]:
    """The best step is the one whose validations have the highest mean reward, of all in the metrics."""
    rewards: dict[int, list[float]] = {}
    for line in metrics.read_bytes().splitlines():
        record: Record = json.loads(line) if line.startswith(b'{"kind": "validation"') else {}
        if record and best_by in ("both", record["decoding"]):
            values = [value for value in record["rewards"] if value is not None]
            rewards.setdefault(record["step"], []).append(fmean(values) if values else math.nan)
    means = {number: fmean(values) for number, values in rewards.items()}
    means = {number: mean for number, mean in means.items() if not math.isnan(mean)}
    if not means or step is None or reward is None:
        raise NotMeasured("a validation")
    highest = max(means.values())
    rounding = 1e-4 * max(1.0, abs(highest))
    yield Pair(reward, highest, rounding, "the reward of the best validation")
    yield Pair(
        means.get(step, -math.inf), highest, rounding, f"the reward of the validation at step {step}, the best one"
    )
