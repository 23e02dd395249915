"""Float32 masters of weights that are kept in bfloat16.

A weight in bfloat16 has 8 bits: a step of 1e-6 rounds to nothing for nearly all of them. So the optimizer moves a float32 copy, and
the model's weight is that copy rounded. Gradients are added up in float32 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from gradus.core.values import JsonDict
from gradus.training.distributed.processes import gather_if_sharded, shard_like

Parameters = Mapping[str, nn.Parameter]


def master_of(parameter: nn.Parameter) -> nn.Parameter:
    """Returns what the optimizer moves for ``parameter``: its float32 master, or the parameter itself."""
    return getattr(parameter, "master", parameter)


class MasterWeights(torch.optim.Optimizer):
    """An optimizer over float32 masters of ``parameters``, which are brought up to date after each step.

    ``make`` builds the optimizer that moves the masters.
    """

    def __init__(
        self,
        parameters: Parameters,
        make: Callable[[Parameters], torch.optim.Optimizer],
    ) -> None:
        self._parameters = dict(parameters)
        self._masters = {name: nn.Parameter(_in_float32(value)) for name, value in parameters.items()}
        self._inner = make(self._masters)
        super().__init__(list(self._masters.values()), {})
        self.param_groups = self._inner.param_groups
        for name, parameter in self._parameters.items():
            # Each pass is added up in float32 as it comes; a hook of an earlier optimizer does so already.
            if master_of(parameter) is parameter:
                parameter.register_post_accumulate_grad_hook(_take_gradient)
            parameter.master = self._masters[name]  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of parameters and masters."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._masters[name].grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the masters and round them to the model's weights."""
        self._inner.step()
        for name, parameter in self._parameters.items():
            parameter.copy_(self._masters[name])

    def state_dict(self) -> JsonDict:
        """The inner optimizer's state and the masters, as full tensors."""
        masters = {name: gather_if_sharded(value.detach()) for name, value in self._masters.items()}
        return {"inner": self._inner.state_dict(), "masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state_dict: JsonDict) -> None:
        """Put both back as they were, and the model's weights with them."""
        self._inner.load_state_dict(state_dict["inner"])
        self.param_groups = self._inner.param_groups
        for name, master in self._masters.items():
            master.copy_(shard_like(state_dict["masters"][name], master))
            self._parameters[name].copy_(master)


def _in_float32(parameter: nn.Parameter) -> Tensor:
    """A copy of the weight: of its earlier master, which an optimizer before this one moved, unless the weight was set since."""
    master = master_of(parameter)
    exact = torch.equal(master.to(parameter.dtype), parameter)
    return (master if exact else parameter).detach().float().clone()


def _take_gradient(parameter: Tensor) -> None:
    master = master_of(cast(nn.Parameter, parameter))
    assert parameter.grad is not None
    gradient = parameter.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    parameter.grad = None
