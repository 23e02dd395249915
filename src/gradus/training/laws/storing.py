"""What a run has written, read back as a stranger reads it, against what it holds in memory: checkpoints, model folders, episodes, metrics."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from safetensors import torch as safetensors
from torch import Tensor
from torch.testing import assert_close

from gradus.core import StopReason, Turn
from gradus.core.metrics import SftRecord, StepRecord
from gradus.core.values import Json, plain
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import episodes_of, read_episodes
from gradus.stats import mean_of
from gradus.training.data.sequences import Groups
from gradus.training.distributed.processes import world
from gradus.training.engine.optimizers import trainable
from gradus.training.laws.runner import LawRunner, NotMeasured, Pair, Pairs, alone, close, holds, same_or_missing
from gradus.training.run.checkpoints import LocalState, TrainingState

_EPISODES = 4  # of a file, that are compared field by field
_GROUPS = 2  # of a step, whose episodes are stored
_ROOM = 256  # tokens of an answer outside of an environment, at least
_LARGEST = 2**30  # bytes that are read back
_FILES: Any = safetensors  # it has no types
_STOPS = {
    "failed_episodes": ("failed",),
    "broken_episodes": ("broken",),
    "turn_limit_episodes": ("turn_limit",),
    "truncated_episodes": ("truncated", "turn_limit", "token_limit"),
}
_ROLES = (("validation", "conditions"), ("teach", "train"))  # of tasks that judge, and of those that are learned


def check_checkpoint(
    laws: LawRunner, folder: Path, training: TrainingState, step: int, state: Json, every: int = 0
) -> None:
    """Holds the newest checkpoint of a run's folder, if it has one, to what is in this process alone. Raises LawBroken.

    Of checkpoints that are written ``every`` so many steps the tensors of the first, second, fourth and so on are read.
    """
    path = max((folder / "checkpoints").glob("step-*"), default=None)
    if path is None or not isinstance(training, LocalState) or world().size > 1:
        return
    laws.step = step
    compared = training if is_looked_at(step, every) else None
    laws.check("checkpoint", checkpoint_again, path, folder / "metrics.jsonl", compared, step, state)


def is_looked_at(step: int, every: int) -> bool:
    """Says whether a checkpoint is read as a whole: the first, second, fourth and so on, and one between two planned ones."""
    number, beyond = divmod(step, every) if every else (0, 0)
    return beyond > 0 or number & (number - 1) == 0


def same_fields(memory: Json, stored: Json, place: str) -> Pair:
    """Compares what is in memory with what a document says, field by field."""
    as_stored: Json = json.loads(json.dumps({name: plain(value) for name, value in memory.items()}))
    parted = sorted(name for name, value in as_stored.items() if value != stored.get(name))
    return Pair(len(parted), 0, f"{place}: fields that differ from those of the run ({', '.join(parted)})")


def checkpoint_again(path: Path, metrics_path: Path, training: LocalState | None, step: int, state: Json) -> Pairs:
    """A checkpoint has the state in memory, and the weights and the optimizer of ``training``."""
    document = _read(path / "state.json")
    metrics = metrics_path.read_bytes()
    memory = {"step": step, "offset": len(metrics), "name": f"step-{step:06d}", **state}
    yield same_fields(memory, {**document, "name": path.name, **document["state"]}, f"{path.name}/state.json")
    # By their first bytes: a long run has many records that need not be parsed.
    kinds = (b'{"kind": "step"', b'{"kind": "sft"', b'{"kind": "distill"')
    steps = sum(line.startswith(kinds) for line in metrics.splitlines())
    yield Pair(step, steps, "the steps in metrics.jsonl, each once")
    if training is None:
        return
    trained = trainable(training.model)
    if sum(weight.nbytes for weight in trained.values()) > _LARGEST:
        raise NotMeasured("trained weights of at most 1 GiB")
    weights, optimizer = path / "weights.safetensors", path / "optimizer.pt"
    yield _same_tensors(trained, _FILES.load_file(weights), weights)
    stored = torch.load(optimizer, map_location="cpu", weights_only=True, mmap=True)
    yield _same_tensors(training.optimizer.state_dict(), stored, optimizer)


def _same_tensors(memory: Mapping[str, Any], stored: Mapping[str, Any], path: Path) -> Pair:
    """Compares nested tables of tensors with those of a file, bit for bit."""
    place = f"{path.parent.name}/{path.name} holds the numbers in memory"
    try:
        assert_close(stored, memory, rtol=0, atol=0, equal_nan=True, check_device=False)
    except AssertionError as error:
        return holds(False, f"{place} ({' '.join(str(error).split())})")
    return holds(True, place)


def folder_again(folder: Path, loaded: LoadedModel, drawn: SamplingConfig | None = None) -> Pairs:
    """A model folder has the settings in memory, how tokens were ``drawn``, the same for transformers, and tensors that are equal by name."""
    settings = loaded.settings.model_dump(mode="json")
    if drawn is not None:
        settings["sampling"] = drawn.model_dump(mode="json")
    place = f"the settings (sampling, prompt) in {folder.name}/gradus.json"
    yield same_fields(settings, _read(folder / "gradus.json"), place)
    sampling = drawn or loaded.settings.sampling or SamplingConfig()
    yield _generation_again(folder / "generation_config.json", sampling, loaded.renderer.stop_ids)
    # peft leaves the name of the adapter out of the names in its file.
    tensors = {name.replace(".default.", "."): value for name, value in loaded.model.state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        stored = _FILES.load_file(path)
        names = [name for name in stored if name in tensors and not _equal(stored[name], tensors[name])]
        yield _same_tensors({name: tensors[name] for name in names}, {name: stored[name] for name in names}, path)


def _equal(first: Tensor, second: Tensor) -> bool:
    """A quick look, for models that are large."""
    return first.dtype == second.dtype and first.equal(second.cpu())


def _generation_again(path: Path, sampling: SamplingConfig, stop_ids: Collection[int]) -> Pair:
    """transformers generates by this file as Gradus samples."""
    values: dict[str, Any] = {
        "do_sample": not sampling.greedy,
        "eos_token_id": sorted(stop_ids),
        "max_new_tokens": max(sampling.max_new_tokens, _ROOM),
    }
    if not sampling.greedy:
        values |= sampling.model_dump(include={"temperature", "top_p", "top_k"})
    # What is the default of transformers is not written; a single token may stand without a list.
    written = {**values, **_read(path)}
    ends = written["eos_token_id"]
    written["eos_token_id"] = [ends] if isinstance(ends, int) else sorted(ends)
    return same_fields(values, written, f"{path.parent.name}/{path.name} (sampling, limit, stop tokens)")


def episodes_again(folder: Path, step: int, groups: Groups) -> Pairs:
    """The file of a step's episodes, read back, has every member of its first two groups with all that is known of it."""
    path = folder / "episodes" / f"step-{step:06d}.jsonl.gz"
    yield holds(path.is_file(), f"the episodes of step {step} are stored in {path.name}")
    stored, episodes = read_episodes(path).episodes, episodes_of(groups[:_GROUPS])
    yield Pair(len(stored), len(episodes), f"the episodes in {path.name}")
    for number in range(0, len(stored), max(1, len(stored) // _EPISODES)):
        written = json.loads(json.dumps(plain(asdict(stored[number]))))
        yield same_fields(asdict(episodes[number]), written, f"{path.name}, episode {number}")


def line_again(metrics: Path, record: StepRecord | SftRecord) -> Pairs:
    """The last line of this kind in the metrics is the record in memory."""
    kind = json.dumps({"kind": record["kind"]}).removesuffix("}").encode()
    lines = [line for line in _last_lines(metrics) if line.startswith(kind)]
    yield same_fields({**record}, json.loads(lines[-1]) if lines else {}, f"the line of a step in {metrics.name}")


def figures_again(record: Mapping[str, Any], groups: Groups, further: Mapping[str, float]) -> Pairs:
    """The means, shares and counts of a record, of a step or a validation, are those of its episodes; ``further``: what it has besides."""
    episodes = episodes_of(groups)
    completed = [episode for episode in episodes if episode.stop is not StopReason.FAILED]
    turns = [turn for episode in episodes for turn in episode.turns]
    said = [(episode.task.seed, turn.action) for episode in completed for turn in episode.turns]
    rewards = [_present(group.values()) for group in groups]
    earned = list(chain.from_iterable(rewards))
    values: dict[str, Sequence[float | None]] = {
        "reward_mean": earned,
        "reward_std": [pstdev(group) for group in rewards if len(group) > 1],
        "true_reward_mean": [episode.metrics.get("true_reward") for episode in completed],
        "zero_variance_groups": [max(group) - min(group) <= 1e-9 for group in rewards if group],
        "ungraded_episodes": [each.reward_value is None and each.stop.value != "failed" for each in episodes],
        "invalid_actions": [not turn.valid for turn in turns],
        "turns_mean": [len(episode.turns) for episode in completed],
        "action_tokens_mean": [_tokens(episode.turns, "action_ids") for episode in completed],
    }
    for name, stops in _STOPS.items():
        values[name] = [episode.stop.value in stops for episode in episodes]
    figures: dict[str, Any] = {**record}
    columns: dict[str, list[Mapping[str, float | None]]] = {
        "components": [episode.reward.components if episode.reward else {} for episode in completed],
        "metrics": [episode.metrics for episode in completed],
    }
    for kind, rows in columns.items():
        for name in set(chain.from_iterable(rows)) - {"true_reward"}:
            figures[f"{kind} {name}"] = record[kind].get(name)
            values[f"{kind} {name}"] = [row.get(name) for row in rows]
    again = {name: mean_of(column) for name, column in values.items()}
    information = math.fsum(_entropy(column) for column in zip(*said, strict=True)) - _entropy(said)
    action_tokens = _tokens(turns, "action_ids")
    again |= {
        "reward_total_std": pstdev(earned) if len(earned) > 1 else None,
        "distinct_actions": len({turn.action for turn in turns}) / len(turns) if turns else None,
        "answer_information": information if said else None,
        "groups": len(groups),
        "action_tokens": action_tokens,
        "tokens": action_tokens + _tokens(turns, "context_ids"),
        **further,
    }
    for name in again.keys() & figures.keys():
        place = f"{name} of the record of a {record['kind']} (metrics)"
        yield from same_or_missing(figures[name], again[name], 1e-6, place)
    shares: Mapping[str, float] = record.get("component_variance", {})
    parted = [abs(math.fsum(each.reward.turn_rewards) - (each.reward_value or 0.0)) for each in episodes if each.reward]
    # Of rewards that differ by their rounding alone shares are noise, and what broke may have a reward without terms.
    if (record.get("reward_std") or 0.0) > 1e-6 > max(parted, default=0.0):
        yield close(math.fsum(shares.values()), 1.0, 1e-4, "the shares of the reward's variance (component_variance)")


def validated_again(record: Mapping[str, Any], groups: Groups) -> Pairs:
    """A validation's record has the reward and the true reward of each task, one after another."""
    episodes = episodes_of(groups)
    columns = {
        "rewards": [episode.reward_value for episode in episodes],
        "true_rewards": [episode.metrics.get("true_reward") for episode in episodes],
    }
    for name, column in columns.items():
        rounded = [None if value is None else round(value, 4) for value in column]
        yield holds(record[name] == rounded, f"{name} of the validation's record are those of its episodes, in order")


def _tokens(turns: Sequence[Turn], name: str) -> int:
    return sum(len(getattr(turn.tokens, name)) for turn in turns if turn.tokens)


def _entropy(values: Sequence[Hashable]) -> float:
    """Of how often each value comes, nats."""
    shares = np.array(list(Counter(values).values())) / max(len(values), 1)
    return -float(shares @ np.log(shares))


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def splits_again(folder: Path, roles: Mapping[str, Collection[str]]) -> Pairs:
    """splits.json names the tasks of some ``roles``, and none that judges is taught or trained on."""
    splits = _read(folder / "splits.json")
    for role, ids in roles.items():
        yield alone(splits.get(role, ()), ids, f"tasks that splits.json lists under {role}, or that have this role,")
    judging, learned = ({*splits.get(first, ()), *splits.get(second, ())} for first, second in _ROLES)
    yield Pair(len(judging & learned), 0, "tasks of splits.json that judge (validation), and are taught or trained on")


def taught_before(start: Path) -> Collection[str]:
    """The tasks that the model folder ``start`` was taught."""
    return _read(start.parent / "splits.json").get("teach", ())


def stored_again(folder: Path, step: int, span: int, every: int) -> Pairs:
    """Of the last ``span`` steps the episodes of each ``every``th are stored, and no others."""
    for number in range(max(1, step - span + 1), step + 1):
        is_stored = (folder / "episodes" / f"step-{number:06d}.jsonl.gz").is_file()
        yield holds(
            is_stored, f"the episodes of step {number} (store_every) are stored", bool(every) and number % every == 0
        )


def _read(path: Path) -> Json:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _last_lines(path: Path) -> list[bytes]:
    """The lines in the last 64 KiB of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        return file.read().splitlines()


def best_again(metrics: Path, best_by: str, step: int | None, reward: float | None) -> Pairs:
    """The best step is the first one whose validations have the highest mean reward of all so far, as their records say."""
    validations: dict[int, list[Json]] = {}
    for line in metrics.read_bytes().splitlines():
        record: Json = json.loads(line) if line.startswith(b'{"kind": "validation"') else {}
        if record:
            validations.setdefault(record["step"], []).append(record)
    best, highest = None, -math.inf
    for number, records in validations.items():
        means = [record["reward_mean"] for record in records if best_by in ("both", record["decoding"])]
        mean = math.nan if None in means else fmean(means)
        is_best = mean > highest
        if is_best:
            best, highest = number, mean
        yield Pair(
            sum(record["best"] for record in records),
            is_best * len(records),
            f"validations at step {number} marked as best",
        )
    if best is None or step is None or reward is None:
        raise NotMeasured("a validation")
    yield Pair(step, best, "the best step, the first of the highest reward of the validations")
    yield close(reward, highest, 1e-9, "the reward of the best validation")
