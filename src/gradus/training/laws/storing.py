"""What a run has written, read back as a stranger reads it, against what it holds in memory: checkpoints, model folders, episodes, metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor

from gradus.core import StopReason
from gradus.core.metrics import SftRecord, StepRecord
from gradus.core.values import plain
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import read_episodes
from gradus.training.laws.runner import Groups, LawRunner, NotMeasured, Pair, Pairs, holds
from gradus.training.run.checkpoints import LocalState

_EPISODES = 4  # of a file, that are compared field by field
_ROOM = 256  # tokens of an answer outside of an environment, at least
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


def same_fields(memory: Record, stored: Record, place: str) -> Pair:
    """Compares what is in memory with what a document says, field by field."""
    parted = sorted(name for name, value in memory.items() if json.loads(json.dumps(plain(value))) != stored.get(name))
    return Pair(len(parted), 0, f"{place}: fields that differ from those of the run ({', '.join(parted)})")


def checkpoint_again(path: Path, metrics_path: Path, training: LocalState | None, step: int, state: Record) -> Pairs:
    """A checkpoint has the state in memory, and the weights and the optimizer of ``training``."""
    document = _read(path / "state.json")
    metrics = metrics_path.read_bytes()
    memory = {"step": step, "offset": len(metrics), "name": f"step-{step:06d}", **state}
    yield same_fields(memory, {**document, "name": path.name, **document["state"]}, f"{path.name}/state.json")
    kinds = (b'{"kind": "step"', b'{"kind": "sft"', b'{"kind": "distill"')
    steps = [line for line in metrics.splitlines() if line.startswith(kinds)]
    yield Pair(step, len(steps), "the steps in metrics.jsonl, each once")
    if training is None:
        return
    trained = {name: weight.data for name, weight in training.model.named_parameters() if weight.requires_grad}
    if sum(weight.nbytes for weight in trained.values()) > _LARGEST:
        raise NotMeasured("trained weights of at most 1 GiB")
    yield from _same_tensors(trained, path / "weights.safetensors", exact=True)
    stored = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
    place = f"{path.name}/optimizer.pt: numbers that differ from the optimizer's"
    yield Pair(_differing(training.optimizer.state_dict(), stored), 0, place)


def _same_tensors(tensors: Mapping[str, Tensor], path: Path, *, exact: bool) -> Pairs:
    """Numbers of a safetensors file that differ from those of ``tensors``; ``exact``: it has all of these and no others."""
    with _OPEN(path, "pt") as file:
        names = set(cast(list[str], file.keys()))
        if exact:
            yield Pair(len(names ^ tensors.keys()), 0, f"{path.name}: tensors that only one side has")
        for name in sorted(names & tensors.keys()):
            differing = _differing(tensors[name], file.get_tensor(name))
            yield Pair(differing, 0, f"{path.parent.name}/{path.name}: numbers of {name} that differ")


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


def folder_again(folder: Path, loaded: LoadedModel, drawn: SamplingConfig | None = None) -> Pairs:
    """A model folder has the settings in memory, how tokens were ``drawn``, the same for transformers, and tensors that are equal by name."""
    settings, sampling = loaded.settings.model_dump(mode="json"), drawn or loaded.settings.sampling
    if drawn is not None:
        settings["sampling"] = drawn.model_dump(mode="json")
    yield same_fields(
        settings, _read(folder / "gradus.json"), f"the settings (sampling, prompt) in {folder.name}/gradus.json"
    )
    sampling = sampling or SamplingConfig()
    stops = sorted(loaded.renderer.stop_ids)
    values: dict[str, Any] = {"do_sample": not sampling.greedy, "eos_token_id": stops}
    values |= {} if sampling.greedy else sampling.model_dump(include={"temperature", "top_p", "top_k"})
    values["max_new_tokens"] = max(sampling.max_new_tokens, _ROOM)
    path = folder / "generation_config.json"
    # What is the default of transformers is not written; a single token may stand without a list.
    written = {**values, **_read(path)}
    ends = written["eos_token_id"]
    written["eos_token_id"] = [ends] if isinstance(ends, int) else sorted(ends)
    yield same_fields(values, written, f"{folder.name}/{path.name} (sampling, limit, stop tokens)")
    tensors = {name.replace(".default.", "."): value for name, value in loaded.model.state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        yield from _same_tensors(tensors, path, exact=False)


def episodes_again(folder: Path, step: int, groups: Groups) -> Pairs:
    """The file of a step's episodes, read back, has every member of ``groups`` with all that is known of it."""
    path = folder / "episodes" / f"step-{step:06d}.jsonl.gz"
    yield holds(path.is_file(), f"the episodes of step {step} are stored in {path.name}")
    stored = read_episodes(path).episodes
    episodes = [episode for group in groups for episode in group.episodes]
    yield Pair(len(stored), len(episodes), f"the episodes in {path.name}")
    for number in range(0, len(stored), max(1, len(stored) // _EPISODES)):
        written = json.loads(json.dumps(plain(asdict(stored[number]))))
        yield same_fields(asdict(episodes[number]), written, f"{path.name}, episode {number}")


def line_again(metrics: Path, record: StepRecord | SftRecord) -> Pairs:
    """The last line of this kind in the metrics is the record in memory."""
    kind = json.dumps({"kind": record["kind"]}).removesuffix("}").encode()
    lines = [line for line in _last_lines(metrics) if line.startswith(kind)]
    memory = {name: value for name, value in record.items() if isinstance(value, int | str)}
    yield same_fields(memory, json.loads(lines[-1]) if lines else {}, f"the line of a step in {metrics.name}")


def figures_again(record: StepRecord, groups: Groups, lr: float) -> Pairs:
    """The means, shares and counts of a step's record are those of its episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    completed = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    turns = [turn for episode in episodes for turn in episode.turns]
    lengths = [[len(turn.tokens.action_ids) for turn in each.turns if turn.tokens] for each in episodes]
    rewards = [[value for value in group.values() if value is not None] for group in groups]
    values: dict[str, Sequence[float | None]] = {
        "reward_mean": list(chain(*rewards)),
        "reward_std": [pstdev(group) for group in rewards if len(group) > 1],
        "true_reward_mean": [each.metrics.get("true_reward") for each in completed],
        "failed_episodes": [each.stop is StopReason.FAILED for each in episodes],
        "turn_limit_episodes": [each.stop is StopReason.TURN_LIMIT for each in episodes],
        "invalid_actions": [not turn.valid for turn in turns],
        "turns_mean": [len(each.turns) for each in completed],
    }
    again = {name: _mean(each) for name, each in values.items()}
    again |= {"groups": len(groups), "episodes": len(episodes), "action_tokens": sum(chain(*lengths)), "lr": lr}
    figures: dict[str, Any] = {**record}
    for name, mean in record["components"].items():
        figures[f"component {name}"] = mean
        again[f"component {name}"] = _mean([each.reward.components.get(name) for each in completed if each.reward])
    for name, value in again.items():
        actual = figures.get(name)
        yield holds(actual is None, f"{name} of the step's record is missing", value is None)
        yield Pair(
            actual or 0.0, value or 0.0, f"{name} of the step's record (metrics)", 1e-6 * max(1.0, abs(value or 0.0))
        )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def splits_again(folder: Path, start: Path, every: int, step: int) -> Pairs:
    """splits.json names what the model at ``start`` was taught, and no task that judges is taught or trained; episodes are stored at their steps."""
    splits, before = (_read(path / "splits.json") for path in (folder, start.parent))
    roles = {role: set(splits.get(role, ())) for role in ("teach", "train", "validation", "conditions")}
    forgotten = set(before.get("teach", ())) - roles["teach"]
    yield Pair(len(forgotten), 0, "tasks that the model was taught, which splits.json does not list under teach")
    both = (roles["validation"] | roles["conditions"]) & (roles["teach"] | roles["train"])
    yield Pair(len(both), 0, "tasks of splits.json that judge, and are taught or trained on")
    last = step - step % every if every else 0
    path = folder / "episodes" / f"step-{last:06d}.jsonl.gz"
    yield holds(
        not last or path.is_file(), f"the episodes of step {last} (store_every) are stored in episodes/{path.name}"
    )


def _read(path: Path) -> Record:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _last_lines(path: Path) -> list[bytes]:
    """The lines in the last 64 KiB of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        return file.read().splitlines()


def best_again(metrics: Path, best_by: str, step: int | None, reward: float | None) -> Pairs:
    """The best step is the one whose validations have the highest mean reward, of all in the metrics."""
    rewards: dict[int, list[float]] = {}
    for line in metrics.read_bytes().splitlines():
        record: Record = json.loads(line) if line.startswith(b'{"kind": "validation"') else {}
        if record and best_by in ("both", record["decoding"]):
            mean = _mean(record["rewards"])
            rewards.setdefault(record["step"], []).append(math.nan if mean is None else mean)
            if mean is not None:
                place = f"the mean reward of the validation at step {record['step']}, in the metrics"
                yield Pair(record["reward_mean"], mean, place, 1e-4 * max(1.0, abs(mean)))
    means = {number: fmean(values) for number, values in rewards.items()}
    highest = max((mean for mean in means.values() if not math.isnan(mean)), default=None)
    if highest is None or step is None or reward is None:
        raise NotMeasured("a validation")
    rounding = 1e-4 * max(1.0, abs(highest))
    yield Pair(reward, highest, "the reward of the best validation", rounding)
    place = f"the reward of the validation at step {step}, the best one"
    yield Pair(means.get(step, -math.inf), highest, place, rounding)
