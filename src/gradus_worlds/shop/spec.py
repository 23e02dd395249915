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
from gradus.environments.tools import ToolEnvironment, call_vocabulary
from gradus_worlds.shop.desk import (
    CUSTOMERS,
    DAYS,
    IDS,
    ITEMS,
    PRICES,
    REASONS,
    REMEDIES,
    SYSTEM_PROMPT,
    WISHES,
    Desk,
)
from gradus_worlds.shop.graders import GRADERS, metrics, settled_right
from gradus_worlds.shop.policies import POLICIES, random_answer

_TRAIN_SEED = 1_000_000  # training cases begin here; conditions stay below
_MAX_TURNS = 10

_CONDITIONS = {
    "in-distribution": Condition(
        name="in-distribution", seeds=range(400), summary="cases that training never drew, rules of the known kinds"
    ),
    "new-rules": Condition(
        name="new-rules",
        seeds=range(10_000, 10_400),
        summary="rules that training never shows",
        options={"rules": "new"},
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
        policies=POLICIES,
        true_reward=settled_right,
        true_reward_name="cases settled right",
        max_turns=_MAX_TURNS,
        teacher="teacher",
        metrics=metrics,
        presentation=Presentation(watched={"invalid calls": "invalid_calls", "wrong changes": "wrong_changes"}),
        language=Language(vocabulary=_vocabulary),
        audit=AuditHints(
            panel=Panel(
                ladder=("random", "refuse-all", "careless:0.2", "teacher"),
                reflexes=("silent", "refuse-all", "replace-all"),
                exploits=("generous", "obliging"),
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
        "item": ITEMS,
        "about": ("reason", "wish"),
        "reason": tuple(REASONS),
        "share": ("full", "half"),
    }
    tools = {
        "ask": "about",
        "rule": "reason",
        "refund": "share",
    }
    calls = [ToolCall(name=name, arguments={key: value}) for name, key in tools.items() for value in values[key]]
    calls += [ToolCall(name=name) for name in ("replace", "cancel", "refuse", "customer", "reason", "share")]
    calls += [ToolCall(name="find", arguments={key: value}) for key in ("customer", "item") for value in values[key]]
    numbers = " ".join(map(str, sorted({*IDS, *DAYS, *PRICES})))
    texts = (
        SYSTEM_PROMPT,
        *REASONS.values(),
        *WISHES.values(),
        *REMEDIES,
        " ".join((*CUSTOMERS, *ITEMS, *REASONS)),
        numbers,
        "I am . It is about the : recent old days , sent delivered ago , euro for replaced cancelled refunded refused already is has no order of a done",
        "Error: there is no tool reason; customer; the tools are ask, cancel, find, refund, refuse, replace, rule",
        "unknown argument reason; it takes about customer, item share order, ask: find: rule: refund: replace: cancel: argument order: about: customer: item:",
        "share: reason: 'full' 'half' is not of type 'integer' one of ['reason', 'wish'] ['full', 'half'] ['broken', 'unwanted', 'missing']",
        'the call is not JSON: Expecting value near \'rguments": \'ments": {"about":\' {"customer":\' {"reason":\' {"order":\' full has no order of a full find the order first',
    )
    return call_vocabulary(calls, texts)
