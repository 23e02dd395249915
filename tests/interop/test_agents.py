"""Foreign agents: whatever talks to an OpenAI client is rolled out, graded and trained as an environment is."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any

import foreign_agents as agents
import httpx
import openai
import pytest
import torch
from tiny_qwen2 import FORGETFUL, make_tiny_qwen2

import gradus
from gradus.core import ConfigError, Episode, Policy, Reward, RewardTerm, StopReason
from gradus.environments import load, load_stored
from gradus.interop.agents.calls import AgentLimits, endpoint
from gradus.interop.agents.environment import AgentCommand
from gradus.interop.agents.spec import agent_spec
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy, LocalSession
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import decode, encode, roll_out
from gradus.runs.recipe.starter import starter
from gradus.training.data.sequences import episode_samples
from gradus_worlds.shop.policies import call


def episodes(
    agent: Any, policy: Policy, *, tasks: int = 2, members: int = 2, rewards: Any = (agents.length,), **limits: Any
) -> list[Episode]:
    spec = agent_spec(agent, agents.ROWS, rewards, limits=AgentLimits(**limits))
    taken = [spec.train_task(index) for index in range(tasks)]
    return list(roll_out(spec, policy, taken, group_size=members).episodes)


async def two_calls(task: Any, client: Any) -> str:
    first = await agents.ask(client, ("system", "Be brief."), ("user", task["question"]))
    said = ("system", "Be brief."), ("user", task["question"]), ("assistant", first), ("user", "Sure?")
    return await agents.ask(client, *said)


def test_calls_are_turns_and_their_tokens_are_those_that_were_sampled(policy: LocalPolicy, loaded: LoadedModel) -> None:
    for episode in episodes(two_calls, policy):
        assert episode.outcome["result"] == episode.turns[1].action
        assert [turn.restart for turn in episode.turns] == [True, False]
        (sample,) = episode_samples(episode)
        first, second = (turn.tokens for turn in episode.turns)
        parts = first.context_ids + first.action_ids + second.context_ids + second.action_ids
        assert sample.ids.tolist() == list(parts)
        assert "Be brief." in loaded.tokenizer.decode(first.context_ids)
        assert "Sure?" in loaded.tokenizer.decode(second.context_ids)
        assert decode(json.loads(json.dumps(encode(episode)))) == episode


def test_the_same_seed_gives_the_same_episodes_and_members_differ(policy: LocalPolicy) -> None:
    once, again = (episodes(two_calls, policy) for _ in range(2))
    assert [each.turns for each in once] == [each.turns for each in again]
    assert len({each.outcome["result"] for each in once}) > 1


def test_calls_of_episodes_that_run_at_once_are_answered_together(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    act = LocalSession.act
    monkeypatch.setattr(LocalSession, "act", lambda self, asked: batches.append(len(asked)) or act(self, asked))
    episodes(two_calls, policy, tasks=4, members=4)
    assert batches == [16, 16]


async def branches(task: Any, client: Any) -> None:
    question = ("user", task["question"])
    first = await agents.ask(client, question)
    second = await agents.ask(client, question, ("assistant", first), ("user", "one"))
    await agents.ask(client, ("user", "helper"))  # a tree of its own
    await agents.ask(client, question, ("assistant", first), ("user", "other"))  # a branch of the first answer
    await agents.ask(client, question, ("assistant", first), ("user", "one"), ("assistant", second), ("user", "end"))


def test_calls_form_a_forest_and_each_token_is_trained_once(policy: LocalPolicy) -> None:
    (episode,) = episodes(branches, policy, tasks=1, members=1)
    samples = episode_samples(episode)
    assert [sorted(set(sample.turns.tolist())) for sample in samples] == [[0, 1, 4], [2], [3]]
    trained = [token for sample in samples for token in sample.ids[sample.positions].tolist()]
    sampled = [token for turn in (0, 1, 4, 2, 3) for token in episode.turns[turn].tokens.action_ids]  # type: ignore[union-attr]
    assert trained == sampled
    first, other = (episode.turns[turn].tokens for turn in (0, 3))
    shared = first.context_ids + first.action_ids
    assert other.context_ids[: len(shared)] == shared, "an answer that comes back is not tokenized again"


async def by_hand(task: Any, client: Any) -> None:
    """The first answer comes back changed: its tokens are no longer those that were sampled."""
    first = await agents.ask(client, ("user", task["question"]))
    await agents.ask(client, ("user", task["question"]), ("assistant", f"{first} indeed"), ("user", "more"))


def test_a_rewritten_history_begins_a_sample_of_its_own(policy: LocalPolicy) -> None:
    (episode,) = episodes(by_hand, policy, tasks=1, members=1)
    assert [len(set(sample.turns.tolist())) for sample in episode_samples(episode)] == [1, 1]


async def parallel(task: Any, client: Any) -> list[str]:
    async def helper(number: int) -> str:
        time.sleep(0.1)  # on a busy machine calls come one behind the other
        return await agents.ask(client, ("user", f"helper {number}"))

    plan = await agents.ask(client, ("user", "plan"))
    return [plan, *await asyncio.gather(*map(helper, range(3)))]


def test_parallel_calls_are_calls_of_one_episode_and_wait_together(policy: LocalPolicy) -> None:
    (episode,) = episodes(parallel, policy, tasks=1, members=1)
    assert sorted(episode.outcome["result"]) == sorted(turn.action for turn in episode.turns)
    assert [turn.asked and turn.asked.parallel for turn in episode.turns] == [False, False, True, True]


# -- the protocol --------------------------------------------------------------------------------------------------------


async def streamed(task: Any, client: Any) -> Any:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    said = [{"role": "user", "content": task["question"]}]
    pieces, usage = [], None
    async for chunk in await client.chat.completions.create(model="any", messages=said, **options):
        pieces += [each.delta.content or "" for each in chunk.choices]
        usage = chunk.usage or usage
    return ["".join(pieces), usage.completion_tokens]


def test_a_streamed_answer_is_the_same_record_in_pieces(policy: LocalPolicy) -> None:
    for episode in episodes(streamed, policy):
        (turn,) = episode.turns
        assert episode.outcome["result"] == [turn.action, len(turn.tokens.action_ids)]


def test_n_answers_are_n_turns_with_one_prompt(policy: LocalPolicy) -> None:
    async def choices(task: Any, client: Any) -> list[str]:
        said = [{"role": "user", "content": task["question"]}]
        reply = await client.chat.completions.create(model="any", messages=said, n=3)
        return [each.message.content for each in reply.choices]

    (episode,) = episodes(choices, policy, tasks=1, members=1)
    assert episode.outcome["result"] == [turn.action for turn in episode.turns]
    assert len({turn.tokens.context_ids for turn in episode.turns if turn.tokens}) == 1
    assert len(episode_samples(episode)) == 3


def test_a_stop_string_ends_the_text_and_the_tokens_go_as_far_as_it_takes(
    policy: LocalPolicy, loaded: LoadedModel
) -> None:
    def answered(**options: Any) -> Episode:
        async def stopping(task: Any, client: Any) -> str:
            return await agents.ask(client, ("user", "hello"), **options)

        (episode,) = episodes(stopping, policy, tasks=1, members=1)
        return episode

    whole = answered().turns[0]
    stop = whole.action[3:5]
    place = whole.action.find(stop)
    cut = answered(stop=[stop])
    tokens = cut.turns[0].tokens
    assert cut.outcome["result"] == cut.turns[0].action == whole.action[:place]
    assert stop in loaded.renderer.decode(tokens.action_ids)
    assert stop not in loaded.renderer.decode(tokens.action_ids[:-1])
    assert tokens.action_ids == whole.tokens.action_ids[: len(tokens.action_ids)]
    assert tokens.logprobs == whole.tokens.logprobs[: len(tokens.action_ids)]


def test_limits_and_seeds_of_a_call_are_kept_and_the_rest_of_sampling_is_the_runs(
    policy: LocalPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    async def options(task: Any, client: Any) -> Any:
        hello = [{"role": "user", "content": "hello"}]
        create = client.chat.completions.create
        short = await create(model="any", messages=hello, max_tokens=2, temperature=0.11)
        one, other = [(await create(model="any", messages=hello, seed=seed)) for seed in (1, 2)]
        return [short.choices[0].finish_reason, one.choices[0].message.content != other.choices[0].message.content]

    (episode,) = episodes(options, policy, tasks=1, members=1)
    assert episode.outcome["result"] == ["length", True]
    assert next(len(turn.tokens.action_ids) for turn in episode.turns if turn.tokens) == 2
    assert episode.outcome["overruled"] == {"temperature": 0.11}
    assert capsys.readouterr().err.count("asks for a temperature of its own; the run's setting holds") <= 1


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_come_out_as_calls_and_their_results_go_back(stream: bool) -> None:
    async def with_tools(task: Any, client: Any) -> Any:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        create = client.chat.completions.create
        if stream:
            chunks = [
                each async for each in await create(model="any", messages=messages, tools=[agents.TOOL], stream=True)
            ]
            deltas = [each.choices[0].delta for each in chunks]
            (call,), *more = [delta.tool_calls for delta in deltas if delta.tool_calls]
            assert len(more) > 1, "arguments come in pieces"
            call.function.arguments = "".join(each[0].function.arguments for each in more)
        else:
            (call,) = (await create(model="any", messages=messages, tools=[agents.TOOL])).choices[0].message.tool_calls
        written = {"id": call.id, "type": "function", "function": dict(call.function)}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [written]},
            {"role": "tool", "tool_call_id": call.id, "content": "4"},
        ]
        reply = await create(model="any", messages=messages, tools=[agents.TOOL])
        return [call.function.name, json.loads(call.function.arguments), reply.choices[0].message.content]

    (episode,) = episodes(with_tools, agents.CALLER, tasks=1, members=1)
    assert episode.outcome["result"] == ["add", {"a": 2}, "it is 4"]
    assert [turn.restart for turn in episode.turns] == [True, False]
    assert [call.name for call in episode.turns[0].calls] == ["add"]
    assert episode.tools == (agents.TOOL,)


def test_the_responses_api_is_the_same_conversation() -> None:
    """What the OpenAI Agents SDK speaks unless told otherwise."""

    async def with_responses(task: Any, client: Any) -> Any:
        tool = {"type": "function", **agents.TOOL["function"], "strict": True}
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": task["question"]}]}]
        asked = {"model": "any", "instructions": "Add.", "tools": [tool], "include": [], "max_output_tokens": 50}
        first = await client.responses.create(input=items, **asked)
        (said,) = first.output
        items += [each.model_dump(exclude_none=True) for each in first.output]
        items.append({"type": "function_call_output", "call_id": said.call_id, "output": "4"})
        last = await client.responses.create(input=items, **asked)
        return [said.name, json.loads(said.arguments), last.output_text, last.usage.total_tokens]

    (episode,) = episodes(with_responses, agents.CALLER, tasks=1, members=1)
    assert episode.outcome["result"] == ["add", {"a": 2}, "it is 4", 0]
    assert [turn.restart for turn in episode.turns] == [True, False]
    assert episode.system_prompt == "Add."
    assert episode.tools == (agents.TOOL,)


def test_a_plain_function_gets_a_plain_client(policy: LocalPolicy) -> None:
    def agent(task: Any, client: openai.OpenAI) -> str | None:
        said = [{"role": "user", "content": task["question"]}]
        return client.chat.completions.create(model="any", messages=said).choices[0].message.content  # type: ignore[arg-type]

    assert all(each.outcome["result"] == each.turns[0].action for each in episodes(agent, policy))


def test_a_shell_script_with_curl_is_an_agent(policy: LocalPolicy, tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text(
        "#!/bin/sh\ncat > /dev/null\n"
        """curl -s "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" """
        """-H "Content-Type: application/json" -d '{"messages": [{"role": "user", "content": "hello"}]}'\n"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for episode in episodes(AgentCommand(str(script)), policy):
        assert episode.failure is None
        assert episode.outcome["result"]["choices"][0]["message"]["content"] == episode.turns[0].action


# -- faults --------------------------------------------------------------------------------------------------------------


def failing(fault: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An agent that does well on all tasks but one, on which ``fault`` is done behind its call."""

    async def agent(task: Any, client: Any) -> str:
        answer = await agents.ask(client, ("user", task["question"]))
        if task["question"] == WRONG:
            await fault(task, client)
        return answer

    return agent


WRONG = "the wrong one"
MIXED = [{"question": WRONG}, *agents.ROWS]


def one_fails(agent: Any, policy: Policy, **limits: Any) -> tuple[Episode, list[Episode]]:
    """The episode of the wrong task, and the others."""
    spec = agent_spec(
        agent,
        [{k: v for k, v in row.items() if k != "answer"} for row in MIXED],
        [agents.length],
        limits=AgentLimits(**limits),
    )
    tasks = [spec.train_task(index) for index in range(len(spec.data_set.splits["train"]))]
    rolled = roll_out(spec, policy, tasks[:40]).episodes
    wrong = [
        each for each in rolled if (each.turns and WRONG in each.turns[0].observation) or WRONG in str(each.failure)
    ]
    others = [each for each in rolled if each not in wrong]
    assert all(each.reward is not None and each.reward.value is not None for each in others)
    return wrong[0], others


async def _raise(task: Any, client: Any) -> None:
    raise ValueError(f"no idea about {WRONG}")


async def _exit(task: Any, client: Any) -> None:
    sys.exit(3)


async def _hang(task: Any, client: Any) -> None:
    await asyncio.sleep(600)


@pytest.mark.parametrize(("fault", "said"), [(_raise, "ValueError"), (_exit, "SystemExit"), (_hang, "took more than")])
def test_what_an_agent_does_wrong_fails_its_own_episode(fault: Any, said: str, policy: LocalPolicy) -> None:
    wrong, others = one_fails(failing(fault), policy, seconds=3.0)
    assert wrong.stop is StopReason.BROKEN
    assert wrong.reward.value == 0.0
    assert said in wrong.failure.message
    assert len(others) > 20
    assert {each.stop for each in others} <= {StopReason.TERMINATED, StopReason.TOKEN_LIMIT}


def test_an_agent_that_makes_no_call_fails(policy: LocalPolicy) -> None:
    async def silent(task: Any, client: Any) -> str:
        return "done"

    for episode in episodes(silent, policy, tasks=1, members=1):
        assert episode.stop is StopReason.FAILED
        assert "without a call" in str(episode.failure)


def test_calls_and_tokens_beyond_the_limit_end_the_episode_as_truncated_and_named(policy: LocalPolicy) -> None:
    errors: list[str] = []

    async def endless(task: Any, client: Any) -> None:
        try:
            while True:
                await agents.ask(client, ("user", "more"))
        except openai.APIStatusError as error:
            errors.append(f"{error.status_code} {error}")
            raise

    (episode,) = episodes(endless, policy, tasks=1, members=1, calls=3)
    assert "429" in errors[0]
    assert "3 calls" in errors[0]
    assert (episode.stop, len(episode.turns), episode.outcome["limit"]) == (StopReason.TRUNCATED, 3, "3 calls")
    assert episode.reward.value is not None
    (episode,) = episodes(endless, policy, tasks=1, members=1, tokens=10)
    assert (episode.stop, episode.outcome["limit"]) == (StopReason.TRUNCATED, "10 tokens")


def test_a_flood_of_calls_is_held_back(policy: LocalPolicy) -> None:
    async def flood(task: Any, client: Any) -> list[int]:
        calls = (agents.ask(client, ("user", "x")) for _ in range(400))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [each.status_code for each in answers if isinstance(each, openai.APIStatusError)]

    (episode,) = episodes(flood, policy, tasks=1, members=1, calls=100)
    assert episode.stop is StopReason.TRUNCATED or "64 calls of this episode wait" in str(episode.failure)


def test_a_command_that_dies_or_is_not_there_fails(policy: LocalPolicy) -> None:
    killed = f"{sys.executable} -c 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'"
    for line, said in (
        (killed, "code -9"),
        ("no-such-program", "No such file"),
        ("sh -c 'echo oh >&2; exit 4'", "4: oh"),
    ):
        (episode,) = episodes(AgentCommand(line), policy, tasks=1, members=1)
        assert episode.stop is StopReason.FAILED
        assert said in str(episode.failure)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(policy: LocalPolicy, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (episode,) = episodes(
        AgentCommand(f"sh -c 'sleep 600 & echo $! > {pid}; wait'"), policy, tasks=1, members=1, seconds=1.0
    )
    assert episode.stop is StopReason.FAILED
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    time.sleep(0.5)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_keys_are_of_one_episode_and_the_host_is_checked(policy: LocalPolicy) -> None:
    seen: list[tuple[str, str]] = []

    async def agent(task: Any, client: Any) -> list[int]:
        address, key = f"{str(client.base_url).rstrip('/')}/chat/completions", client.api_key
        seen.append((address, key))
        body = {"messages": [{"role": "user", "content": "hello"}]}
        own = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(timeout=30) as http:
            answers = [
                await http.post(address, json=body, headers=own),
                await http.post(address, json=body),
                await http.post(address, json=body, headers={"Authorization": "Bearer x"}),
                await http.post(address, json=body, headers={**own, "Host": "evil.example"}),
                await http.post(address, content=b"{" * 100, headers=own),
                await http.post(address, json={"messages": []}, headers=own),
                await http.post(address, json={**body, "n": 10**6}, headers=own),
                await http.post(address, json={**body, "audio": {"voice": "x"}}, headers=own),
            ]
        codes.append([each.status_code for each in answers])

    codes: list[list[int]] = []
    for episode in episodes(agent, policy):
        assert episode.stop is StopReason.FAILED
        assert "refused the body is not JSON" in str(episode.failure)
    assert codes == [[200, 401, 401, 403, 400, 400, 400, 400]] * 4
    assert len({key for _, key in seen}) == 4
    address, key = seen[0]
    assert address.startswith("http://127.0.0.1:")
    over = httpx.post(address, json={}, headers={"Authorization": f"Bearer {key}"})
    assert (over.status_code, "key ends with it" in over.text) == (401, True)
    assert endpoint(AgentLimits()) is endpoint(AgentLimits())


# -- what is given, and what a run makes of it ---------------------------------------------------------------------------


def test_the_agent_sees_no_answer_and_rewards_see_task_result_and_conversation(policy: LocalPolicy) -> None:
    tasks: list[Any] = []

    async def agent(task: Any, client: Any) -> str:
        tasks.append(task)
        return await two_calls(task, client)

    def score(
        prompts: Any, completions: Any, task: Any, result: Any, conversation: Any, answer: Any, **_: Any
    ) -> list[float]:
        told.append((task[0], result[0], answer[0], conversation[0]))
        return [1.0] * len(completions)

    told: list[Any] = []
    (episode,) = episodes(agent, policy, tasks=1, members=1, rewards=[score])
    assert list(tasks[0]) == ["question"]
    task, result, answer, conversation = told[0]
    assert task == tasks[0]
    assert (result, answer) == (episode.turns[1].action, str(2 * int(tasks[0]["question"].split()[2])))
    assert [each["role"] for each in conversation] == ["user", "assistant", "user", "assistant"]


def test_rows_with_one_answer_in_common_ask_an_agent_for_no_policy_that_it_lacks() -> None:
    """A run ended with "unknown policy 'constant'"."""
    spec = agent_spec(two_calls, [{**row, "answer": "red"} for row in agents.ROWS], [agents.length])
    assert "constant" not in json.dumps(starter("agent", spec))


def test_an_agent_is_found_by_its_file_and_never_by_a_stored_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "rewards = [lambda completions, **_: [1.0] * len(completions)]\n"
        "async def agent(task, client):\n    '''Says hello.'''\n"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in agents.ROWS))
    spec = load(f"{file}:agent?tasks={rows}&calls=5")
    assert (spec.summary, spec.max_turns, list(spec.graders)) == ("Says hello.", 6, ["rewards"])
    assert load(f"command:node agent.js?tasks={rows}").name == f"command:node agent.js?tasks={rows}"
    for name, said in (
        (f"{file}:agent", "has no tasks"),
        (f"{file}:agent?cals=5", "unknown option 'cals'"),
        ("command:node agent.js", "needs tasks"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(name)
    for name in (f"agent:{file}:agent", "command:rm -r x"):
        with pytest.raises(ConfigError, match="runs other code"):
            load_stored(name)
    with pytest.raises(ConfigError, match="a function or coroutine of a task and a client"):
        gradus.agent(lambda task: None, agents.ROWS)


# -- the shop, as an environment and as an agent -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    vocabulary = load("shop").language.vocabulary
    small = NanoConfig(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=64, context=2048)
    return load_model(make_nano(tmp_path_factory.mktemp("models") / "shop", vocabulary(), small, seed=3))


def _shops(policy: Policy) -> list[list[Any]]:
    rolled = []
    shop = load("shop")
    # Both draw by the content of their prompts, as every agent does.
    for spec in (replace(shop, stepping=replace(shop.stepping, by_content=True)), agents.shop_spec()):
        tasks = [spec.train_task(index) for index in range(4)]
        rolled.append(list(roll_out(spec, policy, tasks, group_size=4).groups))
    return rolled


def test_the_shop_as_an_agent_earns_what_it_earns_as_an_environment() -> None:
    ours, foreign = _shops(load("shop").policy("careless:0.3"))
    rewards = [[member.reward.value for group in each for member in group.episodes] for each in (ours, foreign)]
    actions = [[[t.action for t in m.turns] for g in each for m in g.episodes] for each in (ours, foreign)]
    assert actions[0] == actions[1]
    assert rewards[0] == rewards[1]
    assert len(set(rewards[0])) > 2


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_the_shop_as_an_agent_has_the_tokens_and_the_gradient_of_the_environment(
    credit: str, shop_model: LoadedModel
) -> None:
    def of_length(groups: list[Any]) -> list[Any]:
        """The reward of random weights is 0 in every episode; the length of each answer is not."""

        def graded(episode: Episode) -> Episode:
            terms = [(RewardTerm(component="calls", value=-0.01 * len(turn.action)),) for turn in episode.turns]
            value = fsum(term.value for turn in terms for term in turn)
            return replace(episode, reward=Reward(grader="service", value=value, terms=tuple(terms)))

        return [replace(group, episodes=tuple(map(graded, group.episodes))) for group in groups]

    said = [call("ask", about="reason"), call("ask", about="wish"), call("replace"), "nobody", "done"]
    sampling = SamplingConfig(max_new_tokens=24, grammar=True)  # random weights would seldom spell a call
    ours, foreign = _shops(LocalPolicy(shop_model, sampling, grammar=[said]))
    tokens = [[[t.tokens for t in m.turns] for g in each for m in g.episodes] for each in (ours, foreign)]
    rewards = [[m.reward.value for g in each for m in g.episodes] for each in (ours, foreign)]
    assert tokens[0] == tokens[1]
    assert rewards[0] == rewards[1]
    assert max(map(len, tokens[0])) > 1
    one, other = (agents.gradient(shop_model, of_length(each), credit) for each in (ours, foreign))
    assert one.abs().max() > 1e-4
    assert (one - other).abs().max() < 1e-6


def test_a_taught_agent_goes_on_as_an_environment_does(tmp_path: Path) -> None:
    """Audit is left out; teacher, SFT, GRPO, evaluation and report take an agent as they take the environment."""
    run = gradus.run(
        f"{agents.EXAMPLES / 'shop_agent.py'}:spec", quick=True, out=tmp_path / "run", settings={"teach.episodes": 32}
    )
    pairs = next(iter(run.results["conditions"].values()))["pairs"]
    assert "grpo - sft" in pairs
    assert run.metrics()[-1]["step"] == 2
    assert (tmp_path / "run" / "report.html").is_file()


DOOMED = """
import os, pathlib, signal
import foreign_agents as agents
tasks, rewards = agents.ROWS, [agents.length]

async def agent(task, client):
    metrics = pathlib.Path(os.environ.get("KILLED_BEHIND_STEP_2_OF", "none"))
    if metrics.exists() and metrics.read_text().count('"kind": "step"') == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    first = await agents.ask(client, ("user", task["question"]))
    return await agents.ask(client, ("user", task["question"]), ("assistant", first), ("user", "Sure?"))
"""


def test_a_run_that_was_killed_ends_as_the_unbroken_one(tmp_path: Path) -> None:
    (tmp_path / "doomed.py").write_text(DOOMED)
    quick = {"grpo.max_steps": 3, "grpo.checkpoint_every": 1, "grpo.groups": 2, "grpo.group_size": 2, "grpo.lr": 1e-3}
    quick |= {"grpo.sampling.max_new_tokens": 8, "grpo.validation_every": 0, "eval.episodes": 2, "audit.enabled": False}
    told: dict[str, Any] = {"model": str(make_tiny_qwen2(tmp_path / "tiny", context=1024)), "settings": quick}
    name = f"{tmp_path / 'doomed.py'}:agent"
    code = f"import gradus; gradus.run({name!r}, out={str(tmp_path / 'killed')!r}, **{told!r})"
    path = os.pathsep.join(each for each in sys.path if each)
    own = {**os.environ, "PYTHONPATH": path, "KILLED_BEHIND_STEP_2_OF": str(tmp_path / "killed/grpo/metrics.jsonl")}
    assert subprocess.run([sys.executable, "-c", code], env=own, timeout=170).returncode == -signal.SIGKILL
    runs = [gradus.run(name, out=tmp_path / each, **told) for each in ("killed", "whole")]
    killed, whole = (load_model(each.folder / "grpo" / "best").model.state_dict() for each in runs)
    assert all(torch.equal(killed[key], whole[key]) for key in whole)
    assert runs[0].results["conditions"] == runs[1].results["conditions"]


def test_a_template_that_strips_thoughts_is_no_obstacle(tmp_path: Path) -> None:
    """An answer that comes back whole goes on; a client that strips the thoughts begins a branch. Nothing is refused."""

    async def agent(task: Any, client: Any) -> None:
        first = await agents.ask(client, ("user", task["question"]))
        await agents.ask(client, ("user", task["question"]), ("assistant", first), ("user", "more"))
        await agents.ask(client, ("user", task["question"]), ("assistant", first[2:]), ("user", "more"))

    folder = make_tiny_qwen2(tmp_path / "forgetful", context=1024)
    (folder / "chat_template.jinja").write_text(FORGETFUL)
    with pytest.raises(ConfigError, match="rewrites history"):
        load_model(folder)
    spec = gradus.agent(agent, agents.ROWS, [agents.length])
    (episode,) = gradus.roll_out(spec, folder, episodes=1).episodes
    assert [sorted(set(each.turns.tolist())) for each in episode_samples(episode)] == [[0, 1], [2]]
