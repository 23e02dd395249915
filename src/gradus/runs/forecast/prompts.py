"""Tries prompts on the base before anything is spent: as the rows ask, with a line of instruction, and with two and four examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gradus.core import EnvironmentSpec, Task
from gradus.core.frozen_record import frozen_record
from gradus.environments.verifiable.items import TableTasks, example_of, mixed
from gradus.policies.local.loading import LoadedModel
from gradus.rollouts import roll_out
from gradus.runs.forecast.base_probe import mean_reward
from gradus.runs.job import Job
from gradus.runs.progress import progress_bar
from gradus.stats import Interval, format_number
from gradus.training.run.validation import sampling_policy

QUESTIONS = 24
_EXAMPLES = (2, 4)
_LONG_EXAMPLE = 300  # letters; a prompt of longer examples costs more than it gives
_KEY = "model.system_prompt"
_INSTRUCTION = "instruction"  # the recipe's own line


@frozen_record
class TriedPrompt:
    """A system prompt under trial. ``reward``: what the base's greedy answers earn with it, on the same questions for all prompts."""

    name: str
    text: str | None
    reward: Interval


@frozen_record
class PromptTrial:
    """The prompts that were tried, the simplest first. ``fixed``: a person set the prompt, and it stays."""

    prompts: Sequence[TriedPrompt]
    fixed: bool

    @property
    def best(self) -> TriedPrompt:
        """Returns the prompt that earns the most; of equal ones the simplest."""
        return max(self.prompts, key=lambda prompt: prompt.reward.mean or 0.0)

    def changes(self) -> dict[str, str | None]:
        """Returns the setting that follows: a better prompt than a person's is asked of the base beside it."""
        best = self.best
        if not self.fixed:
            return {_KEY: best.text}
        rewards = {prompt.name: prompt.reward.mean or 0.0 for prompt in self.prompts}
        if best.text is None or rewards[best.name] <= rewards[_INSTRUCTION]:
            return {}
        return {"eval.prompted": best.text}

    def line(self) -> str:
        """Returns the figures in a line."""
        figures = ", ".join(f"{prompt.name} {format_number(prompt.reward.mean)}" for prompt in self.prompts)
        outcome = f"the recipe's stays, {self.best.name} earned most" if self.fixed else f"{self.best.name} is used"
        return f"greedy reward of {self.prompts[0].reward.n} questions by prompt: {figures}; {outcome}"


def try_prompts(job: Job, loaded: LoadedModel, fixed: Collection[str]) -> PromptTrial | None:
    """Asks the base with each prompt, greedily. None if the rows bring their own prompt, or no short answers are expected."""
    texts = prompts_of(job)
    if not texts:
        return None
    jobs = {name: job.with_settings({_KEY: text}) for name, text in texts.items()}
    tasks = {name: _tasks_by_question(candidate.environment) for name, candidate in jobs.items()}
    # Questions that every candidate can ask: none of them is an example of a prompt.
    first, *others = tasks.values()
    shared = set(first).intersection(*others)
    questions = [question for question in first if question in shared][:QUESTIONS]
    prompts: list[TriedPrompt] = []
    with progress_bar("prompts", len(jobs), "prompts") as advance:
        for name, candidate in jobs.items():
            reward = _greedy_reward(candidate, loaded, [tasks[name][question] for question in questions])
            prompts.append(TriedPrompt(name=name, text=texts[name], reward=reward))
            advance(len(prompts), len(jobs))
    return PromptTrial(prompts=prompts, fixed=_KEY in fixed)


def prompts_of(job: Job) -> dict[str, str | None]:
    """Returns the prompts to try by name: none unless the recipe has a line of instruction for plain questions of one turn."""
    line, tasks = job.recipe.model.system_prompt, job.environment.data_set
    if line is None or not isinstance(tasks, TableTasks) or tasks.system_prompt != line:
        return {}
    texts: dict[str, str | None] = {"none": None, _INSTRUCTION: line}
    examples = [example_of(item) for item in mixed(tasks.splits["train"]) if item.answer]
    examples = [example for example in examples if len(example) <= _LONG_EXAMPLE]
    for count in _EXAMPLES:
        if len(examples) > 2 * count:  # rows that are shown in a prompt are not trained on
            texts[f"{count} examples"] = "\n\n".join([line, *examples[:count]])
    return texts


def _tasks_by_question(spec: EnvironmentSpec) -> Mapping[str, Task]:
    """Returns the tasks of one pass through the training rows by what they ask."""
    rows, content = spec.data_set, spec.content
    assert isinstance(rows, TableTasks)
    assert content is not None
    tasks = [spec.train_task(index) for index in range(rows.size("train"))]
    return {content(task): task for task in tasks}


def _greedy_reward(job: Job, loaded: LoadedModel, tasks: Sequence[Task]) -> Interval:
    """The reward of the base's greedy answers to these tasks."""
    policy = sampling_policy(loaded, job.environment, job.recipe.grpo, name="base", greedy=True)
    rolled = roll_out(job.environment, policy, tasks, seed=job.recipe.seed, key=("prompts",), grader=job.grader)
    return mean_reward(rolled.episodes)
