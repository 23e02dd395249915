"""Registration of the shop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradus.core import (
    AuditHints,
    Condition,
    ConfigError,
    EnvironmentSpec,
    Language,
    Panel,
    Presentation,
    Task,
    ToolCall,
    Vocabulary,
)
from gradus.environments.shop.cases import CUSTOMERS, DAYS, IDS, ITEMS, LIMITS, PRICES, REASONS, REMEDIES, WISHES
from gradus.environments.shop.desk import SYSTEM_PROMPT, Desk
from gradus.environments.shop.graders import GRADERS, metrics, settled_right
from gradus.environments.shop.policies import make_policies, random_answer
from gradus.environments.tools import ToolEnvironment, call_vocabulary

__all__ = ["load"]

_TRAIN_SEED = 1_000_000  # training cases begin here; conditions stay below
_MAX_TURNS = 10

_CONDITIONS = {
    "in-distribution": Condition(
        name="in-distribution", seeds=range(400), summary="customers that training never met, rules of the known kinds"
    ),
    "new-rules": Condition(
        name="new-rules",
        seeds=range(10_000, 10_400),
        summary="rules that training never draws",
        options={"rules": "new"},
    ),
    "more-orders": Condition(
        name="more-orders",
        seeds=range(20_000, 20_400),
        summary="customers with up to six orders instead of three",
        options={"orders": 6},
    ),
}


def load(argument: str | None = None) -> EnvironmentSpec:
    """The specification of the shop; it takes no argument."""
    if argument:
        raise ConfigError(f"shop takes no argument, got {argument!r}; choose customers by condition")
    return EnvironmentSpec(
        name="shop",
        summary="serve customers of a shop by calls of tools: find out what happened, and give what the rule book says",
        make=lambda: ToolEnvironment(Desk()),
        graders=GRADERS,
        default_grader="service",
        conditions=_CONDITIONS,
        train_task=lambda index: Task(environment="shop", seed=_TRAIN_SEED + index),
        policies=make_policies(),
        true_reward=settled_right,
        true_reward_name="cases settled right",
        max_turns=_MAX_TURNS,
        teacher="teacher",
        metrics=metrics,
        presentation=Presentation(watched={"invalid calls": "invalid_calls", "wrong changes": "wrong_changes"}),
        language=Language(vocabulary=_vocabulary),
        audit=AuditHints(
            panel=Panel(
                ladder=("random", "deny", "careless:0.3", "teacher"),
                reflexes=("deny", "replace-all"),
                exploits=("generous", "obliging", "give-everything"),
            ),
            random_answers=random_answer,
            hidden=("due", "settled"),
        ),
        recipe="shop.toml",
    )


def _vocabulary() -> Vocabulary:
    """The words of all calls, and of all that customers and tools say."""
    values: Mapping[str, Sequence[object]] = {
        "customer": CUSTOMERS,
        "about": ("reason", "wish"),
        "reason": tuple(REASONS),
        "order": IDS,
        "share": ("full", "half"),
    }
    tools = {
        "orders": "customer",
        "ask": "about",
        "rule": "reason",
        "refund": "order",
        "replace": "order",
        "cancel": "order",
    }
    calls = [ToolCall(name=name, arguments={key: value}) for name, key in tools.items() for value in values[key]]
    calls += [ToolCall(name="refund", arguments={"share": share}) for share in values["share"]]
    numbers = " ".join(str(number) for number in sorted({*IDS, *DAYS, *LIMITS, *PRICES}))
    texts = (
        SYSTEM_PROMPT,
        *REASONS.values(),
        *WISHES.values(),
        *REMEDIES,
        " ".join((*CUSTOMERS, *ITEMS, *REASONS)),
        numbers,
        "I am . It is about the : within days , later sent delivered ago paid for replaced cancelled refunded already is no order of done",
        "Error: there is no tool reason; customer; the tools are ask, cancel, orders, refund, replace, rule",
        "unknown argument reason; it takes about customer share order, ask: orders: rule: refund: replace: cancel: argument order: about:",
        "share: reason: 'full' 'half' is not of type 'integer' one of ['reason', 'wish'] ['full', 'half'] ['broken', 'unwanted', 'missing']",
        'the call is not JSON: Expecting value near \'rguments": \'ments": {"about":\' {"customer":\' {"reason":\' {"order":\' no orders of full',
    )
    return call_vocabulary(calls, texts)
