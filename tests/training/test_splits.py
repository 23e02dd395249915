"""What judges is never trained on: splits are by what a task is, for data that comes back epoch after epoch."""

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from fakes import lamps

from gradus.core import ConfigError, EnvironmentSpec, Task
from gradus.environments import load
from gradus.policies.local.sampling import SamplingConfig
from gradus.rollouts import read_episodes, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.tasks import (
    HeldOut,
    distillation_tasks,
    reserved_ids,
    taught_indices,
    training_tasks,
    validation_tasks,
)
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import DistillConfig, SftConfig
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.run.splits import check_splits
from gradus.training.sft import train_sft


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentSpec:
    """444 rows, a tenth of them twice under other white space and columns."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"question": f"What is {n} plus {n + 1}?", "answer": str(2 * n + 1)} for n in range(404)]
    rows += [{**row, "note": "again"} for row in rows[:40]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load(f"jsonl:{path}")


def question(spec: EnvironmentSpec, seed: int, options: dict) -> str:
    return spec.make().reset(seed=seed, **options).text


def test_what_a_teacher_holds_out_is_what_grpo_holds_out() -> None:
    """A scripted teacher reads no settings of GRPO: they would import torch."""
    defaults = {name: field.default for name, field in GrpoConfig.model_fields.items()}
    assert all(each.default == defaults[each.name] for each in fields(HeldOut))


def test_no_validation_question_is_trained_on_or_taught(data: EnvironmentSpec) -> None:
    config = GrpoConfig(groups=16, validation_tasks=32)
    reserved = reserved_ids(data, config)
    held_out = {question(data, task.seed, dict(task.options)) for task in validation_tasks(data, config)}
    assert len(held_out) == 32
    place, trained = 0, []
    for _ in range(40):
        tasks, place = training_tasks(data, config, place, config.groups, reserved)
        trained += [question(data, task.seed, dict(task.options)) for task in tasks]
    assert len(trained) == 640
    assert len(set(trained)) > 200  # more than one epoch, and all that is left is used
    assert not held_out & set(trained)
    judged = {question(data, task.seed, dict(task.options)) for name in data.conditions for task in data.tasks(name)}
    assert not judged & set(trained)
    assert not judged & held_out
    taught = {question(data, data.train_task(i).seed, {"split": "train"}) for i in taught_indices(data, 500, reserved)}
    assert not (held_out | judged) & taught


@pytest.fixture(scope="module")
def twice_worked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each question twice, with two solutions, as published sets of worked problems have it."""
    path = tmp_path_factory.mktemp("data") / "two.jsonl"
    rows = [
        {"question": f"{what} is {n} plus {n}?", "answer": f"{work}: #### {2 * n}"}
        for n in range(100)
        for what, work in (("What", "Add"), (" what", "Double it"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"gsm8k:{path}"


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic:digits=1", "twice worked"])
def test_what_judges_is_kept_apart_by_what_it_asks(name: str, twice_worked: str) -> None:
    """Four sums in five of a condition were trained on under other seeds, and questions whose twin has another solution."""
    spec = load(twice_worked if name == "twice worked" else name)
    config = GrpoConfig(validation_tasks=16)
    reserved = reserved_ids(spec, config)

    def asks(task: Task) -> str:
        return " ".join(question(spec, task.seed, dict(task.options)).lower().split())

    trained = {asks(task) for task in training_tasks(spec, config, 0, 600, reserved)[0]}
    trained |= {asks(spec.train_task(i)) for i in taught_indices(spec, 500, reserved)}
    judged = {asks(task) for condition in spec.conditions for task in spec.tasks(condition)}
    validated = {asks(task) for task in validation_tasks(spec, config)}
    assert not trained & (judged | validated)
    assert not judged & validated
    assert len(trained) > 20
    assert len(validated) > 5


def test_the_order_of_rows_follows_the_seed_of_the_run(data: EnvironmentSpec) -> None:
    """Each epoch has each row once, in an order of its own; a file's order, the same in every run, left its variance out."""
    distill = DistillConfig(first_task=64, batch_size=8)
    reserved = reserved_ids(data, GrpoConfig())
    orders: list[list[str]] = []
    for seed in (0, 0, 1):
        tasks, _ = training_tasks(data, GrpoConfig(seed=seed), 0, 600, reserved)
        orders.append([task.id for task in tasks])
        taught = distillation_tasks(data, distill.model_copy(update={"seed": seed}), 40, reserved)
        assert not reserved & {task.id for task in taught}
        orders[-1] += [task.id for task in taught]
    again, first, other = orders
    assert first == again
    for part in (slice(0, 40), slice(300, 340), slice(600, 640)):
        assert first[part] != other[part]
    rows = sum(data.identify(data.train_task(i)).id not in reserved for i in range(data.data_set.size("train")))
    later = [Counter(order[600 - rows : 600]) for order in (first, other)]
    assert max(max(counts.values()) for counts in later) <= 4  # a row that stands there twice, in two epochs
    assert len(set(first[:600])) == len(set(other[:600]))


def test_endless_environments_keep_their_seeds() -> None:
    for name in ("rhythm", "memory"):
        spec = load(name)
        config = GrpoConfig(first_task=1000, validation_tasks=8)
        reserved = reserved_ids(spec, config)
        tasks, place = training_tasks(spec, config, 5, 10, reserved)
        assert [task.seed for task in tasks] == [spec.train_task(1008 + 5 + i).seed for i in range(10)]
        assert place == 15
        assert [task.seed for task in validation_tasks(spec, config)] == [
            spec.train_task(1000 + i).seed for i in range(8)
        ]
        assert taught_indices(spec, 20, reserved) == list(range(20))


def test_at_most_half_of_a_small_set_is_held_out(data: EnvironmentSpec, tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    rows = [{"question": f"What is {n} plus {n + 1}?", "answer": str(2 * n + 1)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few, config = load(f"jsonl:{path}"), GrpoConfig(validation_tasks=32)
    reserved = reserved_ids(few, config)
    held_out = {task.id for task in validation_tasks(few, config)}
    taught = {few.identify(few.train_task(index)).id for index in taught_indices(few, 10, reserved)}
    judging = {few.identify(task).id for name in few.conditions for task in few.tasks(name)}
    trained, _ = training_tasks(few, config, 0, 200, reserved)
    learned = {task.id for task in trained}
    assert len(held_out) + len(learned) + len(judging) == 40
    assert len(held_out) == (40 - len(judging)) // 2
    assert len(taught) == 10
    assert not held_out & (learned | taught)
    assert 120 < len(validation_tasks(data, GrpoConfig(validation_tasks=400))) < 180


def test_a_run_stores_its_splits(lamps_model: Path, tmp_path: Path) -> None:
    config = GrpoConfig(
        max_steps=3, groups=2, group_size=2, validation_tasks=4, validation_every=3, store_every=1, threads=1,
        device="cpu", sampling=SamplingConfig(max_new_tokens=3, grammar=True), checkpoint_every=1,
    )  # fmt: skip
    train_grpo(lamps_model, lamps(), config, tmp_path / "run", options=GrpoOptions(live=False))
    splits = json.loads((tmp_path / "run" / "splits.json").read_text())
    assert {role: len(ids) for role, ids in splits.items()} == {
        "teach": 0,
        "train": 6,
        "validation": 4,
        "conditions": 0,
    }
    stored = read_episodes(tmp_path / "run" / "episodes" / "step-000001.jsonl.gz").episodes
    assert {episode.task.id for episode in stored} <= set(splits["train"])


def test_an_overlap_is_refused() -> None:
    check_splits({"train": ["a", "b"], "teach": ["a"], "validation": ["c"]})
    with pytest.raises(ConfigError, match="1 tasks are both in teach and in validation, the first is a"):
        check_splits({"train": ["b"], "teach": ["a"], "validation": ["a", "c"]})


def test_a_model_is_not_validated_on_what_it_was_taught(lamps_model: Path, tmp_path: Path) -> None:
    """The file beside a model says what it was warm-started on; others are held out, though the first tasks would be."""
    spec = lamps()
    episodes = roll_out(spec, spec.policy("gold"), [spec.train_task(index) for index in range(12)]).episodes
    sft = SftConfig(max_steps=1, batch_size=4, threads=1, device="cpu", validation_share=0.0)
    train_sft(lamps_model, episodes, sft, tmp_path / "sft", options=RunOptions(live=False))
    config = GrpoConfig(
        max_steps=1, groups=2, group_size=2, validation_tasks=4, threads=1, device="cpu",
        sampling=SamplingConfig(max_new_tokens=3, grammar=True),
    )  # fmt: skip
    train_grpo(tmp_path / "sft" / "best", spec, config, tmp_path / "grpo", options=GrpoOptions(live=False))
    splits = json.loads((tmp_path / "grpo" / "splits.json").read_text())
    assert len(splits["teach"]) == 12
    assert splits["validation"] == sorted(spec.identify(spec.train_task(index)).id for index in range(12, 16))


def test_sft_holds_out_tasks_and_not_episodes(lamps_model: Path, tmp_path: Path) -> None:
    """Three episodes of each task: all of them are learned from, or all are held out."""
    spec = lamps()
    episodes = roll_out(
        spec, spec.policy("gold"), [spec.train_task(index) for index in range(10)], group_size=3
    ).episodes
    config = SftConfig(max_steps=1, batch_size=4, threads=1, device="cpu", validation_share=0.3)
    train_sft(lamps_model, episodes, config, tmp_path / "sft", options=RunOptions(live=False))
    splits = json.loads((tmp_path / "sft" / "splits.json").read_text())
    assert {role: len(ids) for role, ids in splits.items()} == {"teach": 7, "validation": 3}
    assert not set(splits["teach"]) & set(splits["validation"])
