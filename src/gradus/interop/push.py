"""Brings a model to the Hugging Face Hub, with a card that says what it is and how it was measured.

First a plan, which touches no network, then its upload; ``gradus export --push --dry-run`` shows the plan and stops there.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradus.core import ConfigError, GradusError
from gradus.core.documents import Results, read_document
from gradus.core.errors import first_line
from gradus.core.files import read_text
from gradus.interop.secret_scan import refuse_secrets
from gradus.policies.local.folders import adapter_base, find_model, run_of
from gradus.policies.local.model_card import CardContents, Question, model_card, plain_prompt, renamed_card
from gradus.policies.local.settings import ModelSettings, read_settings
from gradus.version import __version__

_CARD = "README.md"
_LEFT_OUT = (".part", ".pyc", ".lock")


@dataclass(frozen=True, kw_only=True)
class PushPlan:
    """Exactly what would be uploaded: path -> a file on disk, or the text that was written for the occasion (the card)."""

    repository: str
    private: bool
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
    contents = (
        (f"{file}", file) if isinstance(file, Path) else (path, file.encode()) for path, file in plan.files.items()
    )
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
    files: dict[str, Path | str] = {
        path.relative_to(model).as_posix(): path
        for path in sorted(model.rglob("*"))
        if path.is_file() and not _left_out(path.relative_to(model))
    }
    run = run_of(source, model)
    written = renamed_card(read_text(model / _CARD), repository) if (model / _CARD).is_file() else None
    if written is not None and not (run / "results.json").is_file():
        # The card of an export says how the model was measured, which the folder itself does not know.
        files[_CARD] = written
        return PushPlan(repository=repository, private=private, files=files)
    # Figures and results lie beside the stages, one folder above the model.
    stored = run / "results.json"
    results = read_document(stored, Results) if stored.is_file() else None
    figures = sorted((run / "figures").glob("*.png"))
    recipe = run / "recipe.toml"
    settings = read_settings(model) or ModelSettings()
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    card = CardContents(
        title=repository,
        facts=[f"weights: {weights / 1e6:,.1f} MB"],
        results=results,
        adapters_of=base,
        question=_question(model, settings),
        template_options=settings.template_options,
        figures=[figure.name for figure in figures],
        recipe=read_text(recipe) if recipe.is_file() else None,
    )
    files[_CARD] = model_card(card)
    files |= {f"figures/{figure.name}": figure for figure in figures}
    if results is not None:
        files["results.json"] = stored
    return PushPlan(repository=repository, private=private, files=files)


def _question(model: Path, settings: ModelSettings) -> Question:
    """Returns what the card's example asks the model: messages, or a text if it has no chat template."""
    tokenizer = model / "tokenizer_config.json"
    chats = "chat_template" in read_text(tokenizer) if tokenizer.is_file() else False
    if not chats and not (model / "chat_template.jinja").is_file():
        return plain_prompt(settings.system_prompt)
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return [*system, {"role": "user", "content": "..."}]


def _left_out(path: Path) -> bool:
    """Hidden files and what a writer left half done."""
    return any(part.startswith(".") for part in path.parts) or path.name.endswith(_LEFT_OUT)


def upload(plan: PushPlan, *, endpoint: str | None = None, token: str | None = None) -> str:
    """Carry a plan out in one commit; returns the repository's address.

    The token is the argument's, or what ``hf auth login`` or HF_TOKEN left. Raises GradusError with the Hub's own reason.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=endpoint, token=token)
    operations = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=file if isinstance(file, Path) else file.encode())
        for path, file in plan.files.items()
    ]
    try:
        address = api.create_repo(plan.repository, private=plan.private, exist_ok=True)
        api.create_commit(plan.repository, operations, commit_message=f"Upload with Gradus {__version__}")
    except Exception as error:  # the library under huggingface_hub changes, and with it the names of transport errors
        raise GradusError(
            f"the Hub refused or could not be reached: {first_line(error) or type(error).__name__}; "
            "log in with `hf auth login`, check the name, and look at the plan with --dry-run"
        ) from error
    return str(address)
