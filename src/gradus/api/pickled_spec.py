"""Results that can be pickled: their environment goes along but for functions that no other session could find."""

from __future__ import annotations

import io
import pickle
from copy import deepcopy
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Self

from gradus.api.shown import Shown
from gradus.core import ConfigError, EnvironmentSpec

_PROTOCOL = 4


@dataclass(frozen=True)
class NotPickled:
    """Stands in a pickled result where a function or an object was that its session alone has."""

    name: str

    def __call__(self, *_: object, **__: object) -> Any:
        raise ConfigError(
            f"{self.name} was not pickled with this result, because only the session that made it has it; make the environment again"
        )


class _SpecPickler(pickle.Pickler):
    """Writes :class:`NotPickled` for what is defined in a script, a notebook or a function, and for what cannot be pickled."""

    def reducer_override(self, obj: Any) -> Any:
        code = obj if isinstance(obj, FunctionType | BuiltinFunctionType | MethodType | type) else type(obj)
        name = getattr(code, "__qualname__", repr(code))
        if code.__module__ == "__main__" or "<" in name:
            return NotPickled, (name,)
        if code is not obj:
            try:
                obj.__reduce_ex__(_PROTOCOL)
            except (TypeError, AttributeError, pickle.PicklingError):
                return NotPickled, (name,)
        return NotImplemented


@dataclass(frozen=True, repr=False)
class OfSpec(Shown):
    """A result and its environment. Pickled, it shows, saves and reports the same as before."""

    spec: EnvironmentSpec
    result: Any

    def __getstate__(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        pickler = _SpecPickler(buffer, protocol=_PROTOCOL)
        pickler.dump(self.spec)
        return {**vars(self), "spec": buffer.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, spec=pickle.loads(state["spec"]))

    def __copy__(self) -> Self:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return replace(self, result=deepcopy(self.result, memo))
