"""One-turn tasks with a checkable answer: arithmetic, GSM8K, one's own JSONL or CSV."""

from gradus.environments.verifiable.arithmetic import ArithmeticTasks
from gradus.environments.verifiable.checks import DataProblem, check_tasks
from gradus.environments.verifiable.environment import VerifiableEnvironment
from gradus.environments.verifiable.from_files import (
    DataSource,
    load_csv,
    load_gsm8k,
    load_jsonl,
    parse_source,
    read_tasks,
)
from gradus.environments.verifiable.from_rows import one_turn, rows_spec, with_own_rewards
from gradus.environments.verifiable.items import SYSTEM_PROMPT, Item, TableTasks, TaskSource
from gradus.environments.verifiable.policies import in_format
from gradus.environments.verifiable.rows import list_rows
from gradus.environments.verifiable.spec import load_arithmetic

__all__ = [
    "SYSTEM_PROMPT",
    "ArithmeticTasks",
    "DataProblem",
    "DataSource",
    "Item",
    "TableTasks",
    "TaskSource",
    "VerifiableEnvironment",
    "check_tasks",
    "in_format",
    "list_rows",
    "load_arithmetic",
    "load_csv",
    "load_gsm8k",
    "load_jsonl",
    "one_turn",
    "parse_source",
    "read_tasks",
    "rows_spec",
    "with_own_rewards",
]
