"""Brings a model to the Hugging Face Hub, with a card that says what it is and how it was measured.

First a plan, which touches no network, then its upload; ``gradus export --push --dry-run`` shows the plan and stops there.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import TypeVar

from huggingface_hub import DatasetCardData

from gradus.core import ConfigError, GradusError
from gradus.core.documents import AuditRecord, Costs, Results, read_document
from gradus.core.errors import first_line
from gradus.core.files import read_text
from gradus.core.frozen_record import frozen_record
from gradus.interop.secret_scan import refuse_secrets
from gradus.policies.local.folders import adapter_base, find_model, run_of
from gradus.policies.local.model_card import CardContents, Question, model_card, plain_prompt, renamed_card
from gradus.policies.local.settings import ModelSettings, read_settings
from gradus.rollouts import read_episodes
from gradus.version import __version__

_CARD = "README.md"
DATA_SET = "dataset"  # the folder of what goes to a data set, OWNER/NAME-episodes
# What else a run stored that its claim rests on.
_CLAIM = ("results.json", "audit.json", "audit.html", "costs.json", "doctor.json", "recipe.toml", "report.html")
_LEFT_OUT = (".part", ".pyc", ".lock")


@frozen_record
class PushPlan:
    """Exactly what would be uploaded."""

    # OWNER/NAME
    repository: str
    private: bool
    # Path in the repository -> a file on disk, or a text that is written for it (the card).
    files: Mapping[str, Path | str]

    def size(self, path: str) -> int:
        """Bytes of a file."""
        file = self.files[path]
        return file.stat().st_size if isinstance(file, Path) else len(file.encode())


def plan_push(source: Path | str, repository: str, *, private: bool = True) -> PushPlan:
    """Plan the upload of a model folder, or of a run folder's best model.

    Raises ConfigError for any other source, if the repository is not ``owner/name``, or if a file holds a key or a token.
    """
    source = Path(source)
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(f"repository must be owner/name, got {repository!r}")
    model = find_model(source)
    if model is None:
        raise ConfigError(
            f"expected a model folder (config.json with a model_type, or adapter_config.json) or a run folder with a model in it, "
            f"got {source}; `hf upload` of huggingface_hub takes any other file"
        )
    plan = _model_plan(source, model, repository, private)
    contents: list[tuple[str, bytes | Path]] = []
    for path, file in plan.files.items():
        contents.append((str(file), file) if isinstance(file, Path) else (path, file.encode()))
    refuse_secrets(contents, doing="uploaded")
    return plan


def _model_plan(source: Path, model: Path, repository: str, private: bool) -> PushPlan:
    base = adapter_base(model)
    # Adapters name their base by its path, which nobody else has.
    if base is not None and Path(base).exists():
        raise ConfigError(
            f"{model} holds adapters of {base}, a folder of this machine, so nobody else could load them; merge them, as in "
            f"gradus export {shlex.quote(str(source))} --out merged, and push the folder that it writes"
        )
    files: dict[str, Path | str] = {}
    for path in sorted(model.rglob("*")):
        place = path.relative_to(model)
        if path.is_file() and not _left_out(place):
            files[place.as_posix()] = path
    run = run_of(source, model)
    written: str | None = None
    if (model / _CARD).is_file():
        written = renamed_card(read_text(model / _CARD), repository)
    if written is not None and not (run / "results.json").is_file():
        # The card of an export says how the model was measured, which the folder itself does not know.
        files[_CARD] = written
        return PushPlan(repository=repository, private=private, files=files)
    # Figures and results lie beside the stages, above the model.
    figures = sorted((run / "figures").glob("*.png"))
    recipe = run / "recipe.toml"
    settings = read_settings(model) or ModelSettings()
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    card = CardContents(
        title=repository,
        facts=[f"weights: {weights / 1e6:,.1f} MB"],
        results=_document(run / "results.json", Results),
        adapters_of=base,
        question=_question(model, settings),
        template_options=settings.template_options,
        figures=[figure.name for figure in figures],
        recipe=read_text(recipe) if recipe.is_file() else None,
        audit=_document(run / "audit.json", AuditRecord),
        costs=_document(run / "costs.json", Costs),
        repeat="gradus run recipe.toml" if recipe.is_file() else None,
    )
    files[_CARD] = model_card(card)
    files |= {f"figures/{figure.name}": figure for figure in figures}
    files |= {name: run / name for name in _CLAIM if (run / name).is_file()}
    lessons = run / "teach" / "episodes.jsonl.gz"
    if lessons.is_file():
        files[f"{DATA_SET}/train.jsonl.gz"] = lessons
        files[f"{DATA_SET}/{_CARD}"] = _data_card(repository, lessons)
    return PushPlan(repository=repository, private=private, files=files)


D = TypeVar("D")


def _document(path: Path, kind: type[D]) -> D | None:
    """A document of the run; None if the run has none."""
    return read_document(path, kind) if path.is_file() else None


def _data_card(repository: str, lessons: Path) -> str:
    """The card of the teacher's episodes, which says who answered what and how well."""
    stored = read_episodes(lessons)
    values = [episode.reward_value for episode in stored.episodes]
    rewards = [value for value in values if value is not None]
    mean = f"{fsum(rewards) / len(rewards):.3f}" if rewards else "unknown"
    turns = sum(len(episode.turns) for episode in stored.episodes)
    head = DatasetCardData(tags=["gradus", "reinforcement-learning"], task_categories=["text-generation"])
    return f"""---
{head}
---

# Episodes that {repository} was taught

{len(stored.episodes):,} episodes of `{stored.environment}` with {turns:,} turns, by {stored.note}. Mean reward: {mean}.

One JSON object a line behind a header line: `turns` has `observation` and `action`, `reward` the grader's value and components.
`gradus show train.jsonl.gz` opens it, and `gradus sft {stored.environment} --data train.jsonl.gz` trains on it.
"""


def write_plan(plan: PushPlan, folder: Path) -> Path:
    """Writes what would be uploaded into ``folder``, which must be empty or not there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty; choose another folder with --out")
    for path, file in plan.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file, Path):
            shutil.copyfile(file, target)
        else:
            target.write_text(file, encoding="utf-8")
    return folder


def _question(model: Path, settings: ModelSettings) -> Question:
    """Returns what the card's example asks the model: messages, or a text if it has no chat template."""
    tokenizer = model / "tokenizer_config.json"
    # The template is a file of its own, or a field of the tokenizer's.
    has_template = (model / "chat_template.jinja").is_file()
    if not has_template and tokenizer.is_file():
        has_template = "chat_template" in read_text(tokenizer)
    if not has_template:
        return plain_prompt(settings.system_prompt)
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return [*system, {"role": "user", "content": "..."}]


def _left_out(path: Path) -> bool:
    """Hidden files and what a writer left half done."""
    is_hidden = any(part.startswith(".") for part in path.parts)
    return is_hidden or path.name.endswith(_LEFT_OUT)


def upload(plan: PushPlan, *, endpoint: str | None = None, token: str | None = None) -> str:
    """Carry a plan out, the teacher's episodes as a data set beside the model; returns the model's address.

    The token is the argument's, or what ``hf auth login`` or HF_TOKEN left. Raises GradusError with the Hub's own reason.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=endpoint, token=token)
    parts: dict[str, list[CommitOperationAdd]] = {"model": [], "dataset": []}
    for path, file in plan.files.items():
        kind = "dataset" if path.startswith(f"{DATA_SET}/") else "model"
        content = file if isinstance(file, Path) else file.encode()
        place = path.removeprefix(f"{DATA_SET}/")
        parts[kind].append(CommitOperationAdd(path_in_repo=place, path_or_fileobj=content))
    address = ""
    try:
        for kind, operations in parts.items():
            if not operations:
                continue
            name = plan.repository if kind == "model" else f"{plan.repository}-episodes"
            created = api.create_repo(name, private=plan.private, exist_ok=True, repo_type=kind)
            message = f"Upload with Gradus {__version__}"
            api.create_commit(name, operations, commit_message=message, repo_type=kind)
            address = address or str(created)
    except Exception as error:  # the library under huggingface_hub changes, and with it the names of transport errors
        raise GradusError(
            f"the Hub refused or could not be reached: {first_line(error) or type(error).__name__}; "
            "log in with `hf auth login`, check the name, and look at the plan with --dry-run"
        ) from error
    return address
