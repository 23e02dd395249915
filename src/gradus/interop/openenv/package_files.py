"""The texts of an OpenEnv package, each from what the environment says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradus.core import EnvironmentSpec
from gradus.version import __version__

__all__ = [
    "app",
    "bare_lock",
    "client",
    "dockerfile",
    "init",
    "manifest",
    "models",
    "project",
    "project_name",
    "readme",
]

_PYTHON = ">=3.11"
_ANNOTATIONS = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def project_name(name: str) -> str:
    """The distribution's name."""
    return f"openenv-{name.replace('_', '-')}"


def _module(name: str) -> str:
    return f"{name}_env"


def manifest(name: str, rewards: tuple[float, float]) -> str:
    """``openenv.yaml``."""
    low, high = rewards
    return f"""\
spec_version: 1
name: {_module(name)}
version: {__version__}
type: space
runtime: fastapi
app: server.app:app
port: 8000
validation:
  reward:
    # per step; measured with random answers, then widened by its own width on both sides
    range: [{low}, {high}]
    oracle_tolerance: 0.0
    floor_margin: 0.1
  resources:
    cpu: 1.0
    memory_mb: 1024
    disk_mb: 2048
    episode_timeout_s: 60.0
  capabilities:
    verifier:
      kind: reward_channel
  types:
    tags: [agent]
"""


def project(name: str, summary: str, requirements: Sequence[str], packages: Sequence[str]) -> str:
    """``pyproject.toml``; the needed parts of Gradus are packages of this distribution."""
    module = _module(name)
    listed = [module, f"{module}.server", *packages]
    requirement_lines = "".join(f"    {json.dumps(each)},\n" for each in requirements)
    package_lines = "".join(f"    {json.dumps(each)},\n" for each in listed)
    return f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{project_name(name)}"
version = "{__version__}"
description = {json.dumps(summary)}
requires-python = "{_PYTHON}"
license = "Apache-2.0"
dependencies = [
{requirement_lines}]

[project.scripts]
server = "{module}.server.app:main"

[tool.setuptools]
packages = [
{package_lines}]
package-dir = {{ "{module}" = ".", "{module}.server" = "server", "gradus" = "gradus" }}

[tool.setuptools.package-data]
"*" = ["*.json", "*.jsonl", "*.csv", "*.txt", "*.toml", "*.yaml"]
"{module}" = ["data/*"]
"""


def bare_lock(project: str) -> str:
    """A lock file that holds the project and no dependency yet."""
    return f"""\
# Written without uv. `uv lock` completes it; so do `uv sync` and `uv run`.
version = 1
requires-python = "{_PYTHON}"

[[package]]
name = "{project}"
version = "{__version__}"
source = {{ editable = "." }}
"""


def init(name: str) -> str:
    """``__init__.py``; the server is imported without it, where only the server is installed."""
    title = _class(name)
    return f'''\
"""{title}: client and models for OpenEnv."""

from .client import {title}Env
from .models import {title}Action, {title}Observation

__all__ = ["{title}Action", "{title}Env", "{title}Observation"]
'''


def _annotation(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    return _ANNOTATIONS.get(kind, "Any") if isinstance(kind, str) else "Any"


def _field(name: str, schema: Mapping[str, Any]) -> str:
    return (
        f"    {name}: {_annotation(schema)} | None = Field(default=None, description={schema.get('description', '')!r})"
    )


def models(name: str, summary: str, described: Mapping[str, Any]) -> str:
    """``models.py``: the action (text or typed fields) and the observation."""
    title = _class(name)
    choices = described["action"].get("anyOf", [described["action"]])
    action = {key: schema for choice in choices for key, schema in choice["properties"].items()}
    observation = {
        key: schema
        for key, schema in described["observation"]["properties"].items()
        if key not in ("reward", "done")  # OpenEnv's own fields
    }
    action_lines = "\n".join(_field(key, schema) for key, schema in action.items())
    observation_lines = "\n".join(_field(key, schema) for key, schema in observation.items())
    return f'''\
"""{summary}"""

from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class {title}Action(Action):
    """Either ``text``, as a language model answers, or the other fields."""

{action_lines}


class {title}Observation(Observation):
    """What is seen after a reset or a step."""

{observation_lines}
'''


def client(name: str) -> str:
    """``client.py``: a typed client."""
    title = _class(name)
    return f'''\
"""Typed client of the {title} environment."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import {title}Action, {title}Observation


class {title}Env(EnvClient[{title}Action, {title}Observation, State]):
    """Runs {title} over a WebSocket: ``with {title}Env(base_url="http://localhost:8000").sync() as env: ...``"""

    def _step_payload(self, action: {title}Action) -> dict[str, Any]:
        return action.model_dump(exclude_none=True, exclude={{"metadata"}})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[{title}Observation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        fields = {{**payload.get("observation", {{}}), "reward": reward, "done": done}}
        return StepResult(observation={title}Observation(**fields), reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)
'''


def app(name: str, argument: str, sessions: int) -> str:
    """``server/app.py``: the ASGI application and a way to start it."""
    inside = argument.startswith("data/")
    located = f'str(ROOT / "{argument}")' if inside else repr(argument)
    loaded = f'"{name}:" + {located}' if argument else f'"{name}"'
    return f'''\
"""The server: ``uvicorn server.app:app`` in the package's folder, or the command ``server``."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if (ROOT / "gradus").is_dir():
    sys.path.insert(0, str(ROOT))  # the parts of Gradus that came with this package

import uvicorn  # noqa: E402

from gradus import environments  # noqa: E402
from gradus.interop.openenv.server import create_app, server_config  # noqa: E402

app = create_app(environments.load({loaded}), sessions={sessions})


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.Server(server_config(app, host=options.host, port=options.port)).run()


if __name__ == "__main__":
    main()
'''


def dockerfile() -> str:
    """A small image: the server and what it imports; no OpenEnv, no torch."""
    return """\
FROM python:3.11-slim
WORKDIR /app/env
COPY . /app/env
RUN python -c "import tomllib; print('\\n'.join(r for r in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] \\
    if not r.startswith('openenv')))" > /tmp/requirements.txt && pip install --no-cache-dir -r /tmp/requirements.txt
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=5s --retries=3 \\
    CMD python -c "import urllib.request as r; r.urlopen('http://localhost:8000/health')"
CMD ["python", "server/app.py"]
"""


def readme(name: str, spec: EnvironmentSpec, described: Mapping[str, Any]) -> str:
    """``README.md`` with the header that Hugging Face Spaces read."""
    title = _class(name)
    choices = described["action"].get("anyOf", [described["action"]])
    fields = "\n".join(
        f"- `{key}`: {schema.get('description', '')}"
        for choice in choices
        for key, schema in choice["properties"].items()
    )
    return f"""\
---
title: {title}
sdk: docker
app_port: 8000
pinned: false
tags:
  - openenv
---

# {title}

{spec.summary}

An action is a text or typed fields:

{fields}

Served by Gradus {__version__}: `python server/app.py` here, `docker build .`, or `gradus serve-env {spec.name}`.
Episodes have at most {spec.max_turns} turns. The reward of a step is the environment's own; `terminated` and `truncated`
say how an episode ended.
"""
