"""Settings to begin with: for data and environments without a recipe and for a model's size; writes a first recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import tomli_w

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import write_text
from gradus.environments.verifiable.from_files import quoted
from gradus.environments.verifiable.items import Item, TableTasks
from gradus.environments.verifiable.policies import in_format
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.policies.local.folders import find_model
from gradus.rewards import gold_answer, parse_reward

# A nano model learns from nothing: thousands of taught episodes at a high rate, then GRPO.
_NANO: dict[str, Any] = {
    "model": {"nano": {"hidden_size": 128, "layers": 2, "heads": 4, "intermediate_size": 384, "context": 512}},
    "audit": {"episodes": 40},
    "teach": {"episodes": 1500},
    "sft": {"lr": 3e-3, "epochs": 4, "batch_size": 32, "token_budget": 16384},
    "grpo": {
        "lr": 3e-4, "warmup": 0.1, "max_steps": 60, "groups": 16, "group_size": 8, "token_budget": 16384, "validation_every": 20,
        "validation_tasks": 32, "sampling": {"max_new_tokens": 32},
    },
    "eval": {"policies": ["sft", "sft-greedy", "grpo", "grpo-greedy"], "pairs": ["grpo-sft"], "episodes": 200},
}  # fmt: skip

# A model that follows instructions needs no teacher; its rates and adapters follow from its size.
_LANGUAGE_MODEL: dict[str, Any] = {
    "teach": {"enabled": False},
    "grpo": {"max_steps": 200, "validation_every": 25, "validation_tasks": 32, "sampling": {"max_new_tokens": 256}},
    "eval": {
        "policies": ["base", "base-greedy", "grpo", "grpo-greedy"],
        "pairs": ["grpo-base", "grpo-greedy-base-greedy"],
        "episodes": 100,
    },
}

# Labels: a small base names none of them alone, so gold answers teach it first; answers are as long as labels.
_LABELLED: dict[str, Any] = {
    "teach": {"enabled": True},
    "sft": {"epochs": 2, "batch_size": 16},
    "grpo": {"max_steps": 60, "validation_every": 10, "validation_tasks": 32},
    "eval": {
        "policies": ["base", "base-greedy", "sft", "sft-greedy", "grpo", "grpo-greedy"],
        "pairs": ["grpo-sft", "grpo-greedy-sft-greedy"],
        "episodes": 100,
    },
}
LABEL_PROMPT = "Reply with one of these labels and nothing else: {labels}.\n"
_FEW_LABELS = 20
_TAUGHT_ROWS = 512

_QUICK: dict[str, Any] = {
    "audit.enabled": False,
    "teach.episodes": 64,
    "sft.epochs": 1,
    "grpo.max_steps": 2,
    "grpo.groups": 4,
    "grpo.group_size": 4,
    "grpo.validation_every": 2,
    "grpo.validation_tasks": 4,
    "eval.episodes": 4,
}

ADAPTED_FROM = 300_000_000  # parameters from which adapters are trained, not all weights
_SMALL = 50_000_000

_LOOKED_AT = 64  # of the longest rows
_SAMPLED = 2000  # rows whose words stand for those of all
_FRAME = 8  # tokens of the chat template
_ROUND = 16

_DATA_SETS = ("gsm8k", "jsonl", "csv")  # behind these names stands a path, whatever it looks like


def labels_of(spec: EnvironmentSpec) -> list[str]:
    """Returns the labels of an environment's rows, sorted; an empty list for other answers, such as numbers or letters of choices."""
    rows = spec.data_set.splits["train"] if isinstance(spec.data_set, TableTasks) else []
    answers = {gold_answer(item.answer) for item in rows if item.answer}
    words = all(len(each) > 1 and not each[-1].isdigit() for each in answers)
    few = len(answers) <= _FEW_LABELS and len(rows) > 2 * len(answers)  # classes
    return sorted(answers) if answers and words and few else []


def _for_labels(spec: EnvironmentSpec, labels: Sequence[str]) -> dict[str, Any]:
    """Settings of a language model that sorts rows into ``labels``."""
    table = deepcopy(_LABELLED)
    table["teach"]["episodes"] = min(_TAUGHT_ROWS, len(spec.data_set.splits["train"]))
    table["grpo"]["sampling"] = {"max_new_tokens": _rounded(max(map(len, labels)) // 2 + 2)}
    return table


def starter(environment: str, spec: EnvironmentSpec, labels: Sequence[str] = ()) -> dict[str, Any]:
    """A recipe for an environment that has none: for a nano model, with the changes for a given one in ``lm``.

    ``labels``: the answers of rows that a language model sorts; it answers with a label alone, without tags.
    """
    table = deepcopy(_NANO)
    if spec.max_turns > 1:
        table["teach"]["episodes"] = 600
    table["grpo"]["first_task"] = table["teach"]["episodes"]  # tasks that SFT has not seen
    lm = _for_labels(spec, labels) if labels else deepcopy(_LANGUAGE_MODEL)
    rewards = {"rewards": ["final_answer"]} if labels else {}
    whole = {"environment": environment, **rewards, **table, "lm": lm, "quick": dict(_QUICK)}
    return within_conditions(whole, spec)


def within_conditions(table: dict[str, Any], spec: EnvironmentSpec) -> dict[str, Any]:
    """The recipe with no more episodes to evaluate on than the largest of its conditions has: data may have few rows."""
    named = table.get("eval", {}).get("conditions") or spec.conditions
    most = max((len(spec.conditions[name].seeds) for name in named if name in spec.conditions), default=1)
    small = table.get("quick", {})
    for section, key in (
        (table.get("eval", {}), "episodes"),
        (table.get("lm", {}).get("eval", {}), "episodes"),
        (small, "eval.episodes"),
    ):
        if key in section:
            section[key] = min(section[key], most)
    return table


def beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe whose paths are relative to its own folder, with paths that can be used from here.

    A path that is not there stays as it is: it may be relative to where the command was typed, or a name on the hub.
    """

    def here(text: str) -> str:
        path = Path(text)
        return str(folder / path) if text and not path.is_absolute() and (folder / path).exists() else text

    moved = deepcopy(table)
    if isinstance(moved.get("environment"), str):
        moved["environment"] = with_paths(moved["environment"], here)
    model = moved.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        model["path"] = here(model["path"])
    if isinstance(moved.get("rewards"), list):
        moved["rewards"] = [_beside(each, here) for each in moved["rewards"]]
    return moved


def _beside(given: Any, change: Callable[[str], str]) -> dict[str, Any]:
    """A reward of a recipe, in any of its forms, with the paths of its function and settings changed."""
    reward = parse_reward(given).model_dump()
    settings = {
        key: change(each) if key == "schema" and isinstance(each, str) else each
        for key, each in reward["settings"].items()
    }
    return {**reward, "function": with_paths(reward["function"], change), "settings": settings}


def with_paths(name: str, change: Callable[[str], str]) -> str:
    """``jsonl:rows.jsonl?test=more.jsonl``, ``mine.py:spec`` or another name, with each path in it changed."""
    name, mark, query = name.partition("?")
    kind, colon, place = name.partition(":")
    if kind in _DATA_SETS and colon:
        name = f"{kind}:{change(place)}"
    else:
        name = ":".join(change(part) if "." in part or "/" in part else part for part in name.split(":"))
    return name + (mark + "&".join(_option(each, change) for each in query.split("&")) if mark else "")


def _option(option: str, change: Callable[[str], str]) -> str:
    key, _, value = option.partition("=")
    return f"{key}={quoted(change(unquote_plus(value)))}" if key in ("test", "system", "tasks") else option


def by_size(parameters: int | None) -> dict[str, Mapping[str, Any]]:
    """Settings of ``sft`` and ``grpo`` for a pretrained model of so many parameters; None for a size that is not known.

    Rates of adapters are those that published recipes use: about 1e-4 and 1e-5. All weights of SmolLM2 (135 million) learned small
    sums at 1e-5 by GRPO in 22 steps, 0.39 to 0.94. A model below 50
    million parameters bears fifty times that: 216 steps of SFT at 2e-4 left one of 13 million at 0.28 nats, at 1e-3 at 0.10.
    It also needs more than one pass over a few hundred taught episodes: after 25 steps it stood at about 1 nat.
    """
    if parameters is None or parameters >= ADAPTED_FROM:
        shared: dict[str, Any] = {
            "lora": {"rank": 16, "alpha": 32},
            "gradient_checkpointing": True,
            "token_budget": 2048,
        }
        return {"sft": {**shared, "lr": 1e-4}, "grpo": {**shared, "lr": 1e-5}}
    if parameters >= _SMALL:
        return {"sft": {"lr": 2e-5, "token_budget": 4096}, "grpo": {"lr": 1e-5, "token_budget": 4096}}
    return {"sft": {"lr": 1e-3, "epochs": 6, "token_budget": 4096}, "grpo": {"lr": 5e-5, "token_budget": 4096}}


def with_room_for_rows(table: dict[str, Any], spec: EnvironmentSpec) -> dict[str, Any]:
    """The recipe with room for the longest answers and prompts. Where an answer is cut, GRPO has nothing to reward.

    Lengths are estimated from above: a word that the vocabulary may not have counts as its letters.
    """
    tasks = spec.data_set
    if not isinstance(tasks, TableTasks) or "nano" not in table.get("model", {}):
        return table
    items = list({id(item): item for rows in tasks.splits.values() for item in rows}.values())
    words = {*text_vocabulary(items[:_SAMPLED], [tasks.system_prompt, in_format("known", "")]).words}
    sampling, nano = table["grpo"].setdefault("sampling", {}), table["model"]["nano"]
    answer = _longest(items, _answer, words) + 1  # and the token that ends it
    sampling["max_new_tokens"] = max(sampling.get("max_new_tokens", 0), _rounded(answer))
    prompt = _longest(items, lambda item: f"{item.system or tasks.system_prompt} {item.question}", words)
    nano["context"] = max(nano.get("context", 0), _rounded(prompt + sampling["max_new_tokens"] + _FRAME))
    return table


def _answer(item: Item) -> str:
    """The answer of a teacher."""
    return in_format(item.worked or "known", gold_answer(item.answer)) if item.answer else ""


def _longest(items: Sequence[Item], text_of: Callable[[Item], str], words: Collection[str]) -> int:
    texts = sorted(map(text_of, items), key=len)[-_LOOKED_AT:]
    return max(sum(1 if word in words else len(word) + 1 for word in text.split()) for text in texts)


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND


_COMMENTS = {
    "environment": "What to train on. Paths are relative to this file.",
    "model": "The model: a nano model made from the words of the data, or path = a folder or a name on the hub.",
    "audit": "Is the reward worth training on? Answers that are right, wrong or made to cheat, and a search for a hack.",
    "teach": "Whose answers SFT learns before GRPO; gold answers if there are no worked solutions.",
    "sft": "Supervised training on the teacher's answers.",
    "grpo": "Training on the reward. A step is groups x group_size answers.",
    "eval": "Who is compared at the end, on the same questions.",
    "lm": "What takes the place of this for a language model: rates and adapters follow from its size.",
    "quick": "What gradus run --quick changes.",
}


def write_first_recipe(source: str, path: Path, *, model: str | None, overwrite: bool) -> list[str]:
    """Write a recipe for the environment ``source`` and return what a person should know. Raises ConfigError if ``path`` is there already."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give --overwrite, or another file with --out")
    spec, name = environments.load(source), source
    said: list[str] = []
    labels = labels_of(spec) if model is not None and "system=" not in source else []
    if labels:
        prompt = path.with_suffix(".prompt.txt")
        write_text(prompt, LABEL_PROMPT.format(labels=", ".join(labels)))
        name += f"{'&' if '?' in name else '?'}system={quoted(str(prompt))}"
        said.append(f"the labels stand in the system prompt: {prompt}")
    table = with_room_for_rows(starter(with_paths(name, lambda text: _from(path.parent, text)), spec, labels), spec)
    if model is not None:
        table["model"] = {"path": model if find_model(model) is None else _from(path.parent, model)}
    write_text(path, _commented(table))
    return said + _missing(spec, model)


def _missing(spec: EnvironmentSpec, model: str | None) -> list[str]:
    wanted = {
        "a vocabulary (language=Language(vocabulary=...)), or a model: give --model": model is None
        and spec.language.vocabulary is None,
        "a teacher for the nano model. Name one in the environment, or set teach.policy = 'remote:MODEL'": model is None
        and spec.teacher is None,
        "a panel (audit=AuditHints(panel=...)). The audit tries random and constant answers instead": spec.audit.panel
        is None,
        "a view (presentation=Presentation(view=...)). The report shows transcripts only": spec.presentation.view
        is None,
    }
    return [f"missing: {text}" for text, lacking in wanted.items() if lacking]


def _commented(table: Mapping[str, Any]) -> str:
    """TOML with a line of comment before each section."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    parts = [f"# {_COMMENTS['environment']}\n{tomli_w.dumps(plain)}"]
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append(f"# {_COMMENTS.get(key, '')}\n{tomli_w.dumps({key: dict(value)})}")
    return "\n".join(parts)


def _from(folder: Path, place: str) -> str:
    """A path from here as one from ``folder``; other texts stay as they are."""
    path = Path(place)
    return place if not place or path.is_absolute() or not path.exists() else os.path.relpath(path, folder)
