"""Settings to begin with: for data and environments without a recipe and for a model's size; writes a first recipe.

The settings themselves stand in ``starter.toml``.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote_plus

import tomli_w

from gradus import environments
from gradus.core import ConfigError, EnvironmentSpec
from gradus.core.files import write_text
from gradus.core.values import Json, JsonDict, as_mapping, is_table
from gradus.environments.verifiable.from_files import quoted
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item, TableTasks
from gradus.environments.verifiable.policies import in_format
from gradus.environments.verifiable.spec import text_vocabulary
from gradus.policies.local.folders import find_model
from gradus.rewards import RewardChoice, find_reward, gold_answer, parse_reward, reads_tags

ADAPTED_FROM = 300_000_000  # parameters from which adapters are trained, not all weights
_SMALL = 50_000_000
_FEW_LABELS = 20
_GUESSED = 0.1  # share of the rows from which the commonest answer is a baseline
_SHORT = 40  # letters of a reference answer that a model can write without reasoning before it
_TAUGHT_ROWS = 512

_LONGEST = 64  # rows that are measured
_SAMPLED = 2000  # rows whose words stand for those of all
_FRAME = 8  # tokens of the chat template
_ROUND = 16

_DATA_SETS = ("gsm8k", "jsonl", "csv", "parquet")  # behind these names stands a path, whatever it looks like


def packaged_table(file: str) -> JsonDict:
    """A TOML file beside this module."""
    return tomllib.loads(resources.files("gradus.runs.recipe").joinpath(file).read_text(encoding="utf-8"))


def _settings(name: str) -> JsonDict:
    """A table of ``starter.toml``."""
    return packaged_table("starter.toml")[name]


# What a reward reads: the reference answer beside a plain one, tags, or any text.
Reads = Literal["answer", "tags", "text"]


def reads_of(rewards: RewardChoice, grader: str | None) -> Reads:
    """Says what the rewards of a run read; the default reward of rows reads the answer."""
    if grader is not None:
        return "tags"
    functions = [
        rewards.functions.get(one.function) or find_reward(one.function, one.settings) for one in rewards.entries
    ]
    if any(map(reads_tags, functions)):
        return "tags"
    if functions and not any("answer" in inspect.signature(function).parameters for function in functions):
        return "text"
    return "answer"


def starter(environment: str, spec: EnvironmentSpec, reads: Reads = "answer") -> JsonDict:
    """A recipe for an environment that has none: for a nano model, with the changes for a given one in ``lm``."""
    rewards = default_rewards(spec) if reads == "answer" else []
    table: JsonDict = {"environment": environment}
    if rewards:
        table["rewards"] = rewards
    table |= _settings("nano")
    if spec.max_turns > 1:
        table["teach"]["episodes"] = 600
    # GRPO should explore what SFT has not already settled: it begins with tasks that SFT has not seen.
    table["grpo"]["first_task"] = table["teach"]["episodes"]
    table["lm"] = _for_language_model(spec) if rewards else _settings("language_model")
    table["quick"] = _settings("quick")
    if isinstance(spec.data_set, TableTasks):
        del table["quick"]["audit.enabled"]  # an audit of rows takes seconds
        if "constant" in spec.policies and _is_worth_guessing(spec.data_set.splits["train"]):
            # A gain over a base that says nothing usable may be no more than always giving the commonest answer.
            for evaluation in (table["eval"], table["lm"]["eval"]):
                evaluation["policies"].append("constant")
                evaluation["pairs"].append("grpo-constant")
    return fitted_to_data(table, spec)


def fitted_to_data(table: JsonDict, spec: EnvironmentSpec) -> JsonDict:
    """The recipe with no more episodes to evaluate on than there are, and with room for the longest rows."""
    return _with_room_for_rows(_within_conditions(table, spec), spec)


def _is_worth_guessing(rows: Sequence[Item]) -> bool:
    """True if the commonest answer is right in a tenth of the rows."""
    answer, times = Counter(item.answer for item in rows).most_common(1)[0]
    return bool(answer) and times >= _GUESSED * len(rows)


def default_rewards(spec: EnvironmentSpec) -> list[str]:
    """The reward of rows for which nobody named one: answers of a few words need no tags. Empty for all else, which has its own grader.

    Long answers and rows with worked solutions are reasoned out, so they keep the tags; system prompts of the rows' own ask for none.
    """
    tasks = spec.data_set
    if not isinstance(tasks, TableTasks) or tasks.system_prompt != SYSTEM_PROMPT:
        return []
    rows = tasks.splits["train"]
    reasoned = any(item.worked for item in rows)
    return [] if reasoned or not 0 < _longest_answer(rows) <= _SHORT else ["final_answer"]


def _longest_answer(rows: Sequence[Item]) -> int:
    """Letters of the longest reference answer."""
    return max((len(gold_answer(item.answer)) for item in rows), default=0)


def _for_language_model(spec: EnvironmentSpec) -> JsonDict:
    """Settings of a language model for short answers: the prompt asks for what the reward reads, and the limit is the longest answer's.

    Rows that bring system prompts keep them, and the room to answer as those ask.
    """
    table = _settings("language_model")
    assert isinstance(spec.data_set, TableTasks)
    rows = spec.data_set.splits["train"]
    if any(item.system for item in rows):
        return table
    labels = _labels({gold_answer(item.answer) for item in rows}, len(rows))
    if labels:
        table = _settings("labels")
        table["teach"]["episodes"], table["grpo"]["first_task"] = taught_rows(len(rows))
        table["model"]["system_prompt"] = table["model"]["system_prompt"].format(labels=", ".join(labels))
    else:
        table |= _settings("short")
    # Two letters a token is few, so no reference answer is cut.
    limit = _longest_answer(rows) // 2 + 2
    table["grpo"]["sampling"] = {"max_new_tokens": _rounded(limit)}
    return table


def taught_rows(number: int) -> tuple[int, int]:
    """How many of a file's training rows SFT learns, and the first row of GRPO: one that SFT has not settled, if there is any."""
    taught = min(_TAUGHT_ROWS, number)
    return taught, taught if taught < number else 0


def _labels(answers: Collection[str], rows: int) -> list[str]:
    """The labels of rows, sorted; an empty list for other answers, such as numbers or letters of choices."""
    are_words = all(len(answer) > 1 and not answer[-1].isdigit() for answer in answers)
    are_classes = len(answers) <= _FEW_LABELS and rows > 2 * len(answers)
    return sorted(answers) if are_words and are_classes else []


def _within_conditions(table: JsonDict, spec: EnvironmentSpec) -> JsonDict:
    """The recipe with no more episodes to evaluate on than the largest of its conditions has: data may have few rows."""
    evaluation = table.get("eval", {})
    names = evaluation.get("conditions") or spec.conditions
    most = max((len(spec.conditions[name].seeds) for name in names if name in spec.conditions), default=1)
    for_language_models = table.get("lm", {}).get("eval", {})
    quick = table.get("quick", {})
    for section, key in ((evaluation, "episodes"), (for_language_models, "episodes"), (quick, "eval.episodes")):
        if key in section:
            section[key] = min(section[key], most)
    return table


def beside(table: JsonDict, folder: Path) -> JsonDict:
    """A recipe whose paths are relative to its own folder, with paths that can be used from here.

    A path that is not there stays as it is: it may be relative to where the command was typed, or a name on the hub.
    """

    def from_here(text: str) -> str:
        """A path of the recipe's folder as one from the current folder."""
        is_relative = bool(text) and not Path(text).is_absolute()
        return str(folder / text) if is_relative and (folder / text).exists() else text

    moved: JsonDict = {}
    if isinstance(table.get("environment"), str):
        moved["environment"] = with_paths(table["environment"], from_here)
    model = as_mapping(table.get("model"))
    if isinstance(model.get("path"), str):
        moved["model"] = {**model, "path": from_here(model["path"])}
    rewards = table.get("rewards")
    if isinstance(rewards, list):
        moved["rewards"] = [_reward_beside(entry, from_here) for entry in cast(list[Any], rewards)]
    return {**table, **moved}


def _reward_beside(entry: Any, change: Callable[[str], str]) -> JsonDict:
    """A reward of a recipe, in any of its forms, with the paths of its function and its schema changed."""
    reward = parse_reward(entry).model_dump()
    schema = reward["settings"].get("schema")
    if isinstance(schema, str):
        reward["settings"]["schema"] = change(schema)
    return {**reward, "function": with_paths(reward["function"], change)}


def with_paths(name: str, change: Callable[[str], str]) -> str:
    """``jsonl:rows.jsonl?test=more.jsonl``, ``mine.py:spec`` or another name, with each path in it changed."""
    name, mark, query = name.partition("?")
    kind, colon, place = name.partition(":")
    if kind in _DATA_SETS and colon:
        parts = [kind, change(place)]
    else:
        parts = [change(part) if "." in part or "/" in part else part for part in name.split(":")]
    changed = ":".join(parts)
    if not mark:
        return changed
    options = [_option(option, change) for option in query.split("&")]
    return f"{changed}?{'&'.join(options)}"


def _option(option: str, change: Callable[[str], str]) -> str:
    """An option of a data set, with its path changed."""
    key, _, value = option.partition("=")
    return f"{key}={quoted(change(unquote_plus(value)))}" if key in ("test", "system", "tasks") else option


def by_size(parameters: int | None) -> dict[str, Json]:
    """Settings of ``sft`` and ``grpo`` for a pretrained model of so many parameters; None for a size that is not known."""
    sizes = _settings("size")
    if parameters is None or parameters >= ADAPTED_FROM:
        return sizes["large"]
    return sizes["middle" if parameters >= _SMALL else "small"]


def adapters_of(rank: int | bool | None) -> JsonDict:
    """Returns the changes that train adapters (LoRA) of a rank, or of the default one (True), with the rates that they learn at."""
    if not rank:
        return {}
    adapters = {} if rank is True else {"rank": rank, "alpha": 2 * rank}
    changes: JsonDict = {}
    for stage, settings in _settings("size")["large"].items():
        changes |= {f"{stage}.lora": {**settings["lora"], **adapters}, f"{stage}.lr": settings["lr"]}
    return changes


def _with_room_for_rows(table: JsonDict, spec: EnvironmentSpec) -> JsonDict:
    """The recipe with room for the longest answers and prompts. If an answer is cut, GRPO has nothing to reward.

    Lengths are estimated from above: a word that the vocabulary may not have counts as its letters.
    """
    tasks = spec.data_set
    if not isinstance(tasks, TableTasks) or "nano" not in table.get("model", {}):
        return table
    items = tasks.items
    words = {*text_vocabulary(items[:_SAMPLED], [tasks.system_prompt, in_format("known", "")]).words}
    # What a teacher says and what a model reads, of each row.
    answers = [_answer(item) for item in items]
    prompts = [f"{item.system or tasks.system_prompt} {item.question}" for item in items]
    # The larger of the recipe's own limit and what the rows need: a person may have left room on purpose.
    sampling, nano = table["grpo"].setdefault("sampling", {}), table["model"]["nano"]
    answer = _most_tokens(answers, words) + 1  # and the token that ends it
    sampling["max_new_tokens"] = max(sampling.get("max_new_tokens", 0), _rounded(answer))
    context = _most_tokens(prompts, words) + sampling["max_new_tokens"] + _FRAME
    nano["context"] = max(nano.get("context", 0), _rounded(context))
    return table


def _answer(item: Item) -> str:
    """The answer of a teacher."""
    return in_format(item.worked or "known", gold_answer(item.answer)) if item.answer else ""


def _most_tokens(texts: Sequence[str], words: Collection[str]) -> int:
    """Tokens of the longest text; a word that is not known counts as its letters."""
    most = 0
    for text in sorted(texts, key=len)[-_LONGEST:]:
        tokens = [1 if word in words else len(word) + 1 for word in text.split()]
        most = max(most, sum(tokens))
    return most


def _rounded(tokens: int) -> int:
    """The next multiple of 16."""
    return -(-tokens // _ROUND) * _ROUND


def write_first_recipe(source: str, path: Path, *, model: str | None, overwrite: bool) -> list[str]:
    """Write a recipe for the environment ``source`` and return what a person should know. Raises ConfigError if ``path`` is there already."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give --overwrite, or another file with --out")
    spec = environments.load(source)
    name = with_paths(source, lambda text: _from(path.parent, text))
    table = starter(name, spec)
    if model is not None:
        table["model"] = {"path": model if find_model(model) is None else _from(path.parent, model)}
    write_text(path, _commented(table))
    prompt = table["lm"].get("model", {}).get("system_prompt")
    if model is not None and prompt:
        return [f"a language model is asked: {prompt!r}", *_missing(spec, model)]
    return _missing(spec, model)


def _missing(spec: EnvironmentSpec, model: str | None) -> list[str]:
    """A line for each thing that an environment could bring and does not."""
    parts = [
        (
            model or spec.language.vocabulary,
            "a vocabulary (language=Language(vocabulary=...)), or a model: give --model",
        ),
        (
            model or spec.teacher,
            "a teacher for the nano model. Name one in the environment, or set teach.policy = 'remote:MODEL'",
        ),
        (
            spec.audit.panel,
            "a panel (audit=AuditHints(panel=...)). The audit tries random and constant answers instead",
        ),
        (spec.presentation.view, "a view (presentation=Presentation(view=...)). The report shows transcripts only"),
    ]
    return [f"missing: {text}" for part, text in parts if part is None]


def _commented(table: Json) -> str:
    """TOML with a line of comment before each section."""
    comments = _settings("comments")
    # Keys without a section stand in front: behind one, TOML takes them for keys of it.
    values = {key: value for key, value in table.items() if not is_table(value)}
    sections = {"environment": values} | {key: {key: table[key]} for key in table if key not in values}
    return "\n".join(f"# {comments.get(key, '')}\n{tomli_w.dumps(section)}" for key, section in sections.items())


def _from(folder: Path, place: str) -> str:
    """A path from here as one from ``folder``; other texts stay as they are."""
    is_relative = bool(place) and not Path(place).is_absolute()
    return os.path.relpath(place, folder) if is_relative and Path(place).exists() else place
