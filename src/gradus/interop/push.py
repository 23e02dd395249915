"""Bringing a model or trajectories to the Hugging Face Hub, each with a card that says what it is and how it was measured.

First a plan, which touches no network, then its upload; ``gradus push --dry-run`` shows the plan and stops there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradus.core import ConfigError, GradusError
from gradus.core.documents import Results, read_document
from gradus.core.errors import first_line
from gradus.core.files import read_text
from gradus.interop.secret_scan import refuse_secrets
from gradus.policies.local.folders import adapter_base, find_model, run_of
from gradus.policies.local.model_card import front_matter, model_card, what_to_ask
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.settings import ModelSettings, read_settings
from gradus.rollouts import read_episodes
from gradus.version import __version__

_CARD = "README.md"
_LEFT_OUT = (".part", ".pyc", ".lock")


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One file of the upload. ``source`` is a file on disk; ``text`` is what was written for the occasion (the card)."""

    path: str
    source: Path | None = None
    text: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.source.stat().st_size if self.source else len((self.text or "").encode())


@dataclass(frozen=True, kw_only=True)
class PushPlan:
    """Exactly what would be uploaded."""

    repository: str
    kind: Literal["model", "dataset"]
    private: bool
    files: Sequence[PlannedFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def plan_push(source: Path | str, repository: str, *, private: bool = True) -> PushPlan:
    """What ``source`` would upload: a model folder, a run folder (its best model), or a JSONL file of episodes (a data set).

    Raises ConfigError if it is none of these, if the repository is not ``owner/name``, or if a file holds a key or a token.
    """
    source = Path(source)
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(f"repository must be owner/name, got {repository!r}")
    if source.is_file() and source.name.endswith((".jsonl", ".jsonl.gz")):
        plan = _episodes_plan(source, repository, private)
    elif (model := find_model(source)) is not None:
        plan = _model_plan(source, model, repository, private)
    else:
        raise ConfigError(
            f"{source} is no model folder (config.json with a model_type, or adapter_config.json), no run folder with a model "
            "in it, and no .jsonl file of episodes"
        )
    contents = ((str(file.source or file.path), file.source or (file.text or "").encode()) for file in plan.files)
    refuse_secrets(contents, doing="uploaded")
    return plan


def _model_plan(source: Path, model: Path, repository: str, private: bool) -> PushPlan:
    base = adapter_base(model)
    if base is not None and Path(base).exists():
        raise ConfigError(
            f"{model} holds adapters of {base}, a folder of this machine, so nobody else could load them; merge them, as in "
            f"gradus export {shlex.quote(str(source))} merged, and push the folder that it writes"
        )
    model_files = [
        PlannedFile(path=path.relative_to(model).as_posix(), source=path)
        for path in sorted(model.rglob("*"))
        if path.is_file() and path.name != _CARD and not _left_out(path.relative_to(model))
    ]
    run = run_of(source, model)
    results = _results(run)
    figures = sorted((run / "figures").glob("*.png"))
    recipe = run / "recipe.toml"
    settings = read_settings(model) or ModelSettings()
    weights = sum(each.stat().st_size for each in model.glob("*.safetensors"))
    card = model_card(
        title=repository,
        facts=[f"weights: {weights / 1e6:,.1f} MB"],
        results=results,
        adapters_of=base,
        asked=_asked(model, settings),
        template_options=settings.template_options,
        figures=[each.name for each in figures],
        recipe=read_text(recipe) if recipe.is_file() else None,
    )
    files = [PlannedFile(path=_CARD, text=card), *model_files]
    files += [PlannedFile(path=f"figures/{each.name}", source=each) for each in figures]
    if results is not None:
        files.append(PlannedFile(path="results.json", source=run / "results.json"))
    files = list({each.path: each for each in files}.values())  # a model that was pushed before has both in its folder
    return PushPlan(repository=repository, kind="model", private=private, files=files)


def _asked(model: Path, settings: ModelSettings) -> str | Sequence[Mapping[str, Any]]:
    """What the card's example asks the model."""
    from transformers import AutoTokenizer

    if (model / "tokenizer_config.json").is_file():
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
            renderer = ChatRenderer(tokenizer, keep_history=True, template_options=settings.template_options)
            return what_to_ask(renderer, settings.system_prompt)
        except Exception:  # whatever a tokenizer's own code says: an example is no reason to refuse an upload
            pass
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return [*system, {"role": "user", "content": "..."}]


def _left_out(path: Path) -> bool:
    """Hidden files and what a writer left half done."""
    return any(part.startswith(".") for part in path.parts) or path.name.endswith(_LEFT_OUT)


def _results(source: Path) -> Results | None:
    path = source / "results.json"
    if not path.is_file():
        return None
    return read_document(path, Results)


def _episodes_plan(source: Path, repository: str, private: bool) -> PushPlan:
    read = read_episodes(source)
    if not read.episodes:
        raise ConfigError(f"{source} holds no episode; there is nothing to upload")
    head = {"tags": ["gradus", "trajectories"], "configs": [{"config_name": "default", "data_files": source.name}]}
    policies = sorted({episode.policy for episode in read.episodes})
    conditions = sorted({episode.task.condition for episode in read.episodes})
    turns = sum(len(episode.turns) for episode in read.episodes)
    body = [
        f"# {repository.partition('/')[2]}",
        "",
        f"{len(read.episodes)} episodes ({turns} turns) of the environment `{read.environment}`, written by Gradus {__version__}.",
        "",
        f"- policies: {', '.join(policies)}",
        f"- conditions: {', '.join(conditions)}",
        f"- lines that could not be read: {len(read.problems)}",
        "",
        f"The first line of `{source.name}` is a header, every further line one episode. Read it with",
        "`gradus.rollouts.read_episodes`, look at it with `gradus show`, grade it again with `gradus regrade`.",
        "",
    ]
    card = PlannedFile(path=_CARD, text=front_matter(head) + "\n".join(body))
    files = [card, PlannedFile(path=source.name, source=source)]
    return PushPlan(repository=repository, kind="dataset", private=private, files=files)


def upload(plan: PushPlan, *, endpoint: str | None = None, token: str | None = None) -> str:
    """Carry a plan out in one commit; returns the repository's address.

    The token is the argument's, or what ``hf auth login`` or HF_TOKEN left. Raises GradusError with the Hub's own reason.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=endpoint, token=token)
    operations = [
        CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=file.source or (file.text or "").encode())
        for file in plan.files
    ]
    try:
        address = api.create_repo(plan.repository, repo_type=plan.kind, private=plan.private, exist_ok=True)
        api.create_commit(
            plan.repository, operations, commit_message=f"Upload with Gradus {__version__}", repo_type=plan.kind
        )
    except Exception as error:  # the library under huggingface_hub changes, and with it the names of transport errors
        raise GradusError(
            f"the Hub refused or could not be reached: {first_line(error) or type(error).__name__}; "
            "log in with `hf auth login`, check the name, and look at the plan with --dry-run"
        ) from error
    return str(address)
