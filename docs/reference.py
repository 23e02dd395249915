"""Write docs/reference/ from the code: every recipe key, every command, every name of the Python front door.

``python docs/reference.py`` writes the pages; ``--check`` says which are out of date and exits with 1.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from cyclopts import App
from cyclopts.argument import Argument
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import gradus
from gradus.commands.app import ANYWHERE, CODES, app
from gradus.runs.recipe.load import trl_names
from gradus.runs.recipe.record import Recipe

NO_COUNTERPART = (
    "use_bias_correction_kl",
    "sync_ref_model",
    "mask_truncated_completions",
    "disable_dropout",
    "delta",
    "min_p",
    "repetition_penalty",
    "generation_kwargs",
    "cache_implementation",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "use_adaptive_entropy",
    "router_aux_loss_coef",
)
TRL_METRICS = {
    "reward": "reward_mean",
    "frac_reward_zero_std": "zero_variance_groups",
    "clip_ratio/region_mean": "clip_fraction",
    "sampling/sampling_logp_difference/max": "logp_diff_max",
}
FOLDER = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/reference.py; change the code, not this page. -->\n\n"


def main() -> int:
    pages = {
        "recipe.md": recipe_page(),
        "commands.md": commands_page(),
        "python.md": python_page(),
        "trl.md": trl_page(),
    }
    stale = [name for name, text in pages.items() if _stored(name) != text]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is out of date; run python docs/reference.py")
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    print(f"{len(pages)} pages, {len(stale)} written")
    return 0


def _stored(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


def recipe_page() -> str:
    """One list a section of a recipe."""
    lines = [
        NOTE + "# Recipe keys",
        "",
        "A recipe is a TOML file. Unknown keys are refused, and so is a key without effect in the chosen mode. Change a key from",
        "the command line with `--set section.key=value`. The default stands in brackets.",
        "",
    ]
    homes: dict[str, str] = {}  # a key's line -> the section that has it first
    for section, model in _sections(Recipe, ""):
        lines += [f"## {section}" if section else "## Top level", ""]
        summary = inspect.getdoc(model) or ""
        if section and summary:
            lines += [_code(summary.split("\n\n")[0].replace("\n", " ")), ""]
        again: dict[str, list[str]] = {}
        for name, field in model.model_fields.items():
            if _model_of(field.annotation) is not None or (name == "seed" and section in ("sft", "grpo")):
                continue  # a run has one seed
            line = _key_line(name, field)
            if line in homes:
                again.setdefault(homes[line], []).append(f"`{name}`")
            else:
                homes[line] = section
                lines.append(line)
        lines += [f"- as in `{home}`: {', '.join(names)}" for home, names in again.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _key_line(name: str, field: Any) -> str:
    about = " ".join((_choices(field.annotation) + (field.description or "")).split())
    return f"- `{name}` [{_default(field)}]: {_code(about)}"


def _sections(model: type[BaseModel], way: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield way, model
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is not None:
            yield from _sections(inner, f"{way}.{name}".strip("."))


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, alone, optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for each in get_args(annotation) if (inner := _model_of(each)) is not None), None)


def _code(text: str) -> str:
    """Literals of a docstring as Markdown has them; fences of three backticks stay."""
    return re.sub(r"(?<!`)``(?!`)", "`", text)


def _choices(annotation: Any) -> str:
    """The values of a key that takes one of several words."""
    texts = [
        value for each in (annotation, *get_args(annotation)) for value in get_args(each) if isinstance(value, str)
    ]
    return f"{', '.join(texts)}. " if len(texts) > 1 else ""


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    return "unset" if value is None else f"`{value!r}`"


def commands_page() -> str:
    """One section a command, with its options; those of several commands stand once, at the end."""
    lines = [
        NOTE + "# Commands",
        "",
        "`gradus COMMAND --help` says the same in a terminal.",
        "",
        ANYWHERE,
        "",
        CODES,
        "",
    ]
    commands = list(leaves(app, "gradus"))
    counts = Counter(_parameter(each) for _, command in commands for each in shown(command))
    shared = sorted(line for line, count in counts.items() if count > 1)
    for name, command in commands:
        lines += [f"## `{name}`", "", _line(command.help), ""]
        rows = {_parameter(each): _spelled(each) for each in shown(command)}
        lines += [row for row in rows if row not in shared]
        also = [spelled for row, spelled in rows.items() if row in shared]
        lines += [f"- as below: {', '.join(also)}"] if also else []
        lines += [""] if rows else []
    lines += ["## Options of several commands", "", *shared]
    return "\n".join(lines).rstrip() + "\n"


def inner(command: App) -> list[str]:
    """The names of the commands in a group."""
    return [word for word in command if not word.startswith("-")]


def leaves(command: App, name: str) -> Iterator[tuple[str, App]]:
    """Every command that is no group, by the words that call it."""
    if not inner(command):
        yield name, command
    for word in inner(command):
        yield from leaves(command[word], f"{name} {word}")


def shown(command: App) -> list[Argument]:
    """The arguments and options of a command."""
    return [each for each in command.assemble_argument_collection() if each.parameter.name]


def _line(text: str) -> str:
    return _code(" ".join(text.split()))


def _spelled(argument: Argument) -> str:
    if argument.index is not None and not argument.field_info.is_keyword_only:
        return f"`{argument.name.lstrip('-').upper()}`"
    return f"`{' '.join([*(argument.parameter.name or ()), *(argument.parameter.negative or ())])}`"


def _parameter(argument: Argument) -> str:
    default = argument.field_info.default
    plain = argument.field_info.required or default in (None, False, "", [], ())
    text = "" if plain or default is argument.field_info.empty or argument.keys else f" [`{default}`]"
    if argument.required:
        text = " [required]"
    return f"- {_spelled(argument)}{text}: {_line(argument.parameter.help or '')}"


def python_page() -> str:
    """The names of ``import gradus``, and the calls of the other commands."""
    lines = [
        NOTE + "# Python",
        "",
        "`import gradus` gives these names. Every command is a function here or in `gradus.commands`.",
        "",
    ]
    for name in sorted(gradus.__all__):
        lines += _described(
            name, getattr(gradus.commands, name, getattr(gradus, name))
        )  # gradus.audit is a package, too
    lines += [
        "# gradus.commands",
        "",
        "Every other command is a function of `gradus.commands`; `help()` says what it takes.",
        "",
    ]
    for name in sorted(set(gradus.commands.__all__) - set(gradus.__all__)):
        doc = inspect.getdoc(getattr(gradus.commands, name)) or ""
        lines.append(f"- `{name}`: {' '.join(doc.split(chr(10) * 2)[0].split())}")
    return _code("\n".join(lines)).rstrip() + "\n"


def trl_page() -> str:
    """TRL's settings, and the keys that have their effect."""
    lines = [
        NOTE + "# TRL's names and ours",
        "",
        "Settings of TRL's `GRPOConfig` and `GRPOTrainer` (1.16), and the recipe key that has their effect.",
        "[Coming from TRL](../coming_from_trl.md) says where defaults or meanings differ.",
        "",
        "| TRL | Gradus |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | `{key}` |" for name, key in trl_names().items()]
    without = ", ".join(f"`{name}`" for name in NO_COUNTERPART)
    lines += ["", f"No counterpart: {without}."]
    metrics = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in TRL_METRICS.items())
    return "\n".join([*lines, "", f"Metrics: {metrics}."]) + "\n"


def _described(name: str, value: Any) -> list[str]:
    if is_dataclass(value):
        signature = _record(name, value)
    else:
        signature = name if inspect.isclass(value) else f"{name}{inspect.signature(value)}"
    signature = re.sub(r"(: |-> )([\"'])(.*?)\2(?=[,)]| =|$)", r"\1\3", signature)  # annotations are stored as texts
    signature = re.sub(r"<(?:built-in )?function ([\w.]+)(?: at 0x[0-9a-f]+)?>", r"\1", signature)
    signature = re.sub(r"\b(?:gradus|pathlib|collections\.abc|typing)(?:\.\w+)*\.", "", signature)
    doc = inspect.getdoc(value) or ""
    if name != "train":  # the page of commands says what arguments are, and help() the rest
        doc = doc.split("\n\n")[0]
    doc = re.sub(r"^    (\w+): ", r"- `\1`: ", doc, flags=re.MULTILINE).replace("\nArgs:\n", "\n")
    return [f"## `{name}`", "", "```python", signature, "```", "", doc, ""]


def _record(name: str, value: Any) -> str:
    """A dataclass with a field a line."""
    lines = []
    for each in fields(value):
        shown = each.default is not MISSING and isinstance(each.default, str | int | float | tuple | None)
        default = f" = {each.default!r}" if shown else "" if each.default is each.default_factory else " = ..."
        lines += [f"    {each.name}: {each.type}{default},"] if each.init else []
    return "\n".join([f"{name}(", *lines, ")"])


if __name__ == "__main__":
    sys.exit(main())
