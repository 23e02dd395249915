"""One server of the Tinker training API (https://tinker-docs.thinkingmachines.ai): its address, its models, and what its refusals mean.

The package ``tinker`` is the client. It is imported when a server is asked for the first time, so that nothing else needs it.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import httpx

from gradus.core import ConfigError, GradusError
from gradus.core.errors import first_line
from gradus.core.servers import is_loopback

PREFIX = "tinker:"
_KEY = "TINKER_API_KEY"
_ANYBODY = "tml-anybody"  # the client refuses to start without a key, and wants it to begin like this
_ASKED_AGAIN = 20.0  # seconds without a result after which the server is asked if it is still there
_LOST = 60.0  # seconds of silence after which it is not
_WORDS = 300  # characters of a server's own words


class ServerLost(GradusError):
    """The server cannot be reached any more, or has forgotten the model that is trained."""


def server_of(trainer: str) -> str | None:
    """The address in ``tinker:URL``; None for ``local``. Raises ConfigError for anything else.

    >>> server_of("tinker:http://localhost:8000/"), server_of("local")
    ('http://localhost:8000', None)
    """
    if trainer == "local":
        return None
    url = trainer.removeprefix(PREFIX).rstrip("/")
    if not trainer.startswith(PREFIX) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"trainer is local or tinker:URL, as in tinker:http://localhost:8000, got {trainer!r}")
    return url


class TinkerService:
    """A server of the Tinker API. Connections are opened when they are first needed.

    The key comes from ``TINKER_API_KEY``; a server on this machine is asked without one too.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.measured: dict[str, Any] = {}  # what was found out about each of its models, once for all that use them
        self.samplers: dict[str, Any] = {}  # clients of saved weights, by their path on the server
        self._session: Any = None

    @cached_property
    def sdk(self) -> Any:
        """The package ``tinker``. Raises ConfigError if it is not installed."""
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        try:
            package = importlib.import_module("tinker")
        except ImportError as error:
            raise ConfigError(
                "trainer = 'tinker:URL' needs the package tinker; pip install 'gradus-rl[tinker]'"
            ) from error
        logging.getLogger("tinker").setLevel(logging.CRITICAL)  # what it would log is in the error that it raises
        return package

    @property
    def client(self) -> Any:
        """The session with the server. Raises ConfigError if it refuses the key or this version of the client."""
        if self._session is None:
            self.model_names()  # the client itself would try for minutes to reach a server that is not there
            with self.explained("begin a session"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of 0.38, which does not know the argument
                # Every request is sent once: a second one for a training step might add its gradient twice.
                session = self.sdk.ServiceClient(base_url=self.url, api_key=self._key(), max_retries=0)
                session.holder.execute_with_retries = _once
            self._session = session
        return self._session

    def forget_session(self) -> None:
        """Begins a new session with the next request."""
        self._session = None
        self.samplers.clear()

    def made(self, request: str, create: Callable[..., Any], **options: Any) -> Any:
        """Returns a client of weights. Before 0.38 the package gives clients, later futures of them."""
        with self.explained(request):
            client = create(**options)
            return client.result() if hasattr(client, "result") else client

    def can_sample(self, client: Any) -> bool:
        """Says whether the server samples a token from the weights of a sampling client."""
        types = self.sdk.types
        params = types.SamplingParams(max_tokens=1)
        try:
            future = client.sample(prompt=types.ModelInput.from_ints([0]), num_samples=1, sampling_params=params)
            self.result(future, "sample")
        except (ConfigError, ServerLost):
            return False
        return True

    def model_names(self) -> list[str]:
        """The base models that the server has. Raises ConfigError if it cannot be asked."""
        try:
            answer = self._get("get_server_capabilities")
        except httpx.HTTPError as error:
            raise ConfigError(
                f"no Tinker server answers at {self.url} ({type(error).__name__}); start one, as in `gradus serve MODEL --train`, "
                "or correct the address in trainer"
            ) from error
        if answer.status_code in (401, 403):
            raise ConfigError(f"{self.url} refuses the key ({answer.status_code}); set {_KEY} to a key of that server")
        try:
            answer.raise_for_status()
            models = cast(Sequence[Any], answer.json()["supported_models"])
            return [str(model["model_name"]) for model in models]
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.url} does not list models as a Tinker server does ({answer.status_code}: {answer.text[:80]!r}); "
                "correct the address in trainer"
            ) from error

    def find_model(self, name: str) -> str:
        """The server's name of a base model: ``name``, its full path, or the name of its folder. Raises ConfigError if it has none of these."""
        names = self.model_names()
        for candidate in (name, os.path.abspath(name), Path(name).name):
            if candidate in names:
                return candidate
        raise ConfigError(f"{self.url} does not have the model {name}; it has {', '.join(names) or 'none'}")

    def result(self, future: Any, request: str) -> Any:
        """Waits for what the server computes. Raises ServerLost if it goes away meanwhile, ConfigError if it refuses."""
        with self.explained(request):
            while True:
                try:
                    return future.result(timeout=_ASKED_AGAIN)
                except (NotYet, TimeoutError):
                    self._require_alive(request)

    @contextmanager
    def explained(self, request: str) -> Generator[None]:
        """Turns the client's errors into one sentence: what was asked for, and the server's own words."""
        sdk = self.sdk
        try:
            yield
        except GradusError:  # of a request within this one, as of the session that it begins
            raise
        except (sdk.APIConnectionError, sdk.NotFoundError, sdk.InternalServerError) as error:
            raise ServerLost(f"{self.url} was lost when asked to {request}: {first_line(error)[:_WORDS]}") from error
        except sdk.APIStatusError as error:
            raise ConfigError(f"{self.url} refuses to {request} ({error.status_code}): {_words(error)}") from error
        except sdk.TinkerError as error:
            raise ConfigError(f"{self.url} could not {request}: {first_line(error)[:_WORDS]}") from error
        except ValueError as error:  # the client's own word for a result that is gone
            raise ServerLost(
                f"{self.url} gave no result when asked to {request}: {first_line(error)[:_WORDS]}"
            ) from error

    def _require_alive(self, request: str) -> None:
        started = time.monotonic()
        while True:
            try:
                if self._get("healthz").is_success:
                    return
                reason = "it answers that it is not well"
            except httpx.HTTPError as error:
                reason = type(error).__name__
            if time.monotonic() - started > _LOST:
                raise ServerLost(f"{self.url} was lost when asked to {request}: {reason}")
            time.sleep(1.0)

    def _get(self, route: str) -> httpx.Response:
        # A proxy of the environment would be in the way of a server on this machine.
        headers = {"X-API-Key": self._key()}
        with httpx.Client(timeout=20.0, trust_env=not is_loopback(self.url), headers=headers) as client:
            return client.get(f"{self.url}/api/v1/{route}")

    def _key(self) -> str:
        key = os.environ.get(_KEY)
        if key is None and not is_loopback(self.url):
            raise ConfigError(f"{self.url} needs a key; set {_KEY}")
        return key or _ANYBODY


async def _once(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Sends a request and does not send it again."""
    return await function(*args, **options)


def _words(error: Any) -> str:
    """The server's own words of a refusal."""
    body: object = error.body
    fields = cast(dict[str, Any], body) if isinstance(body, dict) else {}
    if isinstance(fields.get("error"), dict):  # as OpenAI's servers have it
        fields = fields["error"]
    words = str(fields.get("detail") or fields.get("message") or error.message)
    return words.partition("\n")[0][:_WORDS]
