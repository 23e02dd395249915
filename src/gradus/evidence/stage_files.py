"""Checksums of the files that a run's stages wrote, kept in its manifest.json: a later change is noticed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gradus.core.documents import MANIFEST, ManifestDocument, read_document
from gradus.core.errors import StorageError
from gradus.core.files import check_checksums, digest

# What a stage writes besides its model.
_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "audit": ("audit.json",),
    "teach": ("teach/*.jsonl*",),
    "sft": ("sft/*.json*",),
    "distill": ("distill/*.json*",),
    "grpo": ("grpo/*.json*", "grpo/episodes/*"),
    "eval": ("results.json", "eval/*.jsonl*", "report/*.json*"),
    "doctor": ("doctor.json",),
}
# What each stage hands on and the evaluation looks at.
_MODELS: Mapping[str, str] = {"model": "model", "sft": "sft/best", "distill": "distill/best", "grpo": "grpo/best"}
# What is made of several stages when a run ends.
_SUMMARIES = ("report.html", "figures/*.png", "costs.json", "recipe.toml")


def stage_files(run: Path, stage: str) -> dict[str, str]:
    """The checksums of the files that a stage has written. Models and checkpoints keep their own beside them."""
    files = _files(run, _WRITTEN.get(stage, ()))
    if stage in _MODELS and (sums := run / _MODELS[stage] / "SHA256SUMS").is_file():
        files.append(sums)
    return {file.relative_to(run).as_posix(): digest(file) for file in files}


def _files(run: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a run that fit the patterns, in order."""
    paths = {path for pattern in patterns for path in run.glob(pattern)}
    return sorted(path for path in paths if path.is_file())


def remove_stages(run: Path, stages: Sequence[str]) -> None:
    """Remove what these stages wrote, and what was made of it.

    The last one goes first: if the process is killed meanwhile, no evaluation is left of weights that are gone.
    """
    _remove(run, _SUMMARIES)
    # What builds on other stages goes before them.
    for stage in reversed(stages):
        _remove(run, _WRITTEN.get(stage, ()))
        shutil.rmtree(run / stage, ignore_errors=True)


def keep_evaluated(run: Path) -> None:
    """Keeps of a finished run's weights those that were evaluated, as one file if two are equal; checkpoints and optimizers go.

    A stage that is done is never gone on with: a longer run begins with these weights and an optimizer of its own.
    """
    kept: dict[str, Path] = {}
    for stage, best in _MODELS.items():
        final = run / stage / "final"
        shutil.rmtree(run / stage / "checkpoints", ignore_errors=True)
        if _weights(final) != _weights(run / best):
            shutil.rmtree(final, ignore_errors=True)
        for folder in (run / best, final):
            for name, checksum in _weights(folder).items():
                # A stage that improved nothing hands on the file of the stage before it.
                _link(kept.setdefault(checksum, folder / name), folder / name)


def _weights(model: Path) -> dict[str, str]:
    """The checksums of a model's weights by the names of their files."""
    return {file.name: digest(file) for file in model.glob("*.safetensors")}


def _link(file: Path, place: Path) -> None:
    """Puts a second name of a file in a place. A disk that has no such names keeps the copy that lies there."""
    if file.samefile(place):  # renaming one name of a file to another does nothing and leaves both
        return
    aside = place.with_name(f".{place.name}.part")
    with suppress(OSError):
        os.link(file, aside)
        os.replace(aside, place)


def remove_evaluation(run: Path) -> None:
    """Remove the evaluation over several seeds, which belongs to no stage, and what was made of it. The recipe is what it will be made by."""
    _remove(run, [name for name in (*_SUMMARIES, "results.json") if name != "recipe.toml"])


def _remove(run: Path, patterns: Sequence[str]) -> None:
    for file in _files(run, patterns):
        file.unlink(missing_ok=True)


def changed_files(run: Path, stored: Mapping[str, str]) -> list[str]:
    """The files of :func:`stage_files` that are gone or hold something else now, and models that do not fit their checksums."""
    changed: list[str] = []
    for name, checksum in stored.items():
        file = run / name
        try:
            if file.name == "SHA256SUMS":
                check_checksums(file.parent)
            if digest(file) == checksum:
                continue
        except (OSError, StorageError):  # it is gone, or a model does not fit its checksums
            pass
        changed.append(name.removesuffix("/SHA256SUMS"))
    return changed


def changed_since(place: Path) -> list[str]:
    """A sentence for each file that is not what its stage wrote: of a run folder, of a folder in it, or the one file that is named."""
    place = place.resolve()
    for run in (place, *place.parents[:3]):
        if (run / MANIFEST).is_file():
            break
    else:
        return []
    try:
        manifest = read_document(run / MANIFEST, ManifestDocument)
    except StorageError as error:
        return [str(error)]
    outputs = dict(manifest["summaries"])
    for stage in manifest["stages"].values():
        outputs |= stage["outputs"]
    below = {name: checksum for name, checksum in outputs.items() if (run / name).is_relative_to(place)}
    return [
        f"{run / name} is not what the run wrote there (its checksum differs, or it is gone)"
        for name in changed_files(run, below)
    ]
