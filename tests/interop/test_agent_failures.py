"""What the model breaks costs its reward, what the world breaks is left out; calls are known by place and content."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import foreign_agents as agents
import httpx
import openai
import pytest
import torch
from short_runs import lines

import gradus
from gradus.commands import Checklist
from gradus.core import (
    Asked,
    Episode,
    Language,
    Observation,
    Reward,
    RewardTerm,
    StopReason,
    Turn,
    TurnTokens,
    Vocabulary,
)
from gradus.interop.agents.calls import AgentLimits, Endpoint
from gradus.interop.agents.checkup import check_agent
from gradus.interop.agents.environment import AgentCommand
from gradus.interop.agents.spec import agent_spec
from gradus.policies.local.loading import LoadedModel
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import RolloutResult, roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import turn_places
from gradus.training.data.sequences import episode_samples
from gradus.training.grpo import train_grpo

ODD = "odd"


def rolled(
    agent: Any, policy: Any, *, tasks: int = 1, members: int = 1, rewards: Any = None, **more: Any
) -> RolloutResult:
    limits = AgentLimits(**more.pop("limits", {}))
    spec = agent_spec(agent, agents.ROWS, rewards or [agents.length], limits=limits, **more)
    return roll_out(spec, policy, [spec.train_task(index) for index in range(tasks)], group_size=members)


def one(agent: Any, policy: Any, **more: Any) -> Episode:
    (episode,) = rolled(agent, policy, **more).episodes
    return episode


def even(result: Sequence[str], **_: Any) -> list[float]:
    """1 for an answer of even length, 0 for an odd one."""
    return [float(each != ODD) for each in result]


def test_an_agent_that_raises_has_the_gradient_of_one_that_scores_0(loaded: LoadedModel) -> None:
    """The crash vanished: of two answers, one of which breaks the agent, no gradient was left."""

    def agent_that(raises: bool) -> Any:
        async def agent(task: Any, client: Any) -> str:
            answer = await agents.ask(client, ("user", task["question"]))
            if len(answer) % 2 == 0:
                return answer
            if raises:
                raise ValueError("the answer cannot be read")
            return ODD

        return agent

    policy = LocalPolicy(loaded, SamplingConfig(max_new_tokens=24, grammar=False))
    raising, scoring = (
        rolled(agent_that(raises), policy, tasks=4, members=4, rewards=[even]) for raises in (True, False)
    )
    broken = sum(each.stop is StopReason.BROKEN for each in raising.episodes)
    assert 2 < broken < 14
    assert [each.reward and each.reward.value for each in raising.episodes] == [
        each.reward and each.reward.value for each in scoring.episodes
    ]
    ours, other = (agents.gradient(loaded, result.groups, "episode", grammar=False) for result in (raising, scoring))
    assert ours.abs().max() > 1e-4
    assert torch.equal(ours, other)


def test_a_model_unlearns_a_crash_as_fast_as_an_answer_that_scores_0(tmp_path: Path) -> None:
    """Half of the first episodes break; the rewards of all steps are those of an agent that never raises."""
    rewards: dict[bool, list[float]] = {}
    broken: dict[bool, list[float]] = {}
    for raises in (True, False):

        async def agent(task: Any, client: Any, raises: bool = raises) -> str:
            answer = await agents.ask(client, ("user", task["question"]))
            if answer != "red" and raises:
                raise ValueError("the answer cannot be read")
            return answer if answer == "red" else ODD

        spec = agent_spec(agent, agents.ROWS, [even])
        vocabulary = Vocabulary(words=["red", "blue", "What", "is"], pieces=list("0123456789+?."))
        spec = replace(spec, language=Language(vocabulary=lambda words=vocabulary: words, grammar=[("red", "blue")]))
        model = make_nano(tmp_path / f"nano-{raises}", vocabulary, NanoConfig(hidden_size=32, layers=1, heads=2))
        sampling = SamplingConfig(max_new_tokens=4, grammar=True)
        config = GrpoConfig(
            groups=4, group_size=4, max_steps=20, lr=3e-3, sampling=sampling, validation_every=0, store_every=0
        )
        run = tmp_path / f"run-{raises}"
        train_grpo(model, spec, config, run)
        steps = lines(run)
        rewards[raises] = [step["reward_mean"] for step in steps]
        broken[raises] = [step["broken_episodes"] for step in steps]
    assert rewards[True] == rewards[False]
    assert set(broken[False]) == {0.0}
    assert 0.25 < broken[True][0] < 0.75
    assert sum(broken[True][-5:]) / 5 < broken[True][0] / 4


async def _asked(task: Any, client: Any) -> str:
    return await agents.ask(client, ("user", task["question"]))


async def _raises(task: Any, client: Any) -> None:
    await _asked(task, client)
    raise ConnectionError("the shop's own server is down")


async def _silent(task: Any, client: Any) -> None:
    raise ValueError("before any call")


async def _swallows(task: Any, client: Any) -> str:
    with contextlib.suppress(openai.BadRequestError):
        await agents.ask(client, ("user", "x"), modalities=["audio"])
    return await _asked(task, client)


def _command(behind: str) -> AgentCommand:
    call = (
        "import httpx, os; httpx.post(os.environ['OPENAI_BASE_URL'] + '/chat/completions', trust_env=False, "
        "headers={'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}, json={'messages': [{'role': 'user', 'content': 'x'}]})"
    )
    return AgentCommand(f'{sys.executable} -c "{call}; {behind}"')


@pytest.mark.parametrize(
    ("agent", "stop", "words"),
    [
        (_raises, StopReason.FAILED, "server is down"),
        (_silent, StopReason.FAILED, "before any call"),
        (_swallows, StopReason.FAILED, "refused modalities"),
        (_command("raise SystemExit(3)"), StopReason.BROKEN, "code 3"),
        (_command("raise SystemExit(75)"), StopReason.FAILED, "code 75"),
    ],
)
def test_whose_fault_an_end_is(agent: Any, stop: StopReason, words: str, policy: LocalPolicy) -> None:
    episode = one(agent, policy, missing=(ConnectionError, 75))
    assert episode.stop is stop
    assert words in str(episode.failure)
    assert (episode.reward is None) == (stop is StopReason.FAILED)


def test_an_answer_that_nobody_waited_for_is_no_turn_of_training(policy: LocalPolicy) -> None:
    class Slow:
        name = "slow"

        def start(self, episodes: Any) -> Any:
            self.inside, self.close, self.calls = policy.start(episodes), lambda: None, 0
            return self

        def act(self, requests: Any) -> Any:
            self.calls += 1
            time.sleep(0.6 * (self.calls == 1))
            return self.inside.act(requests)

    async def hasty(task: Any, client: Any) -> str:
        with contextlib.suppress(openai.APITimeoutError):
            await agents.ask(client, ("user", "hurry"), timeout=0.2)
        return await agents.ask(client, ("user", "hurry"))

    episode = one(hasty, Slow())
    assert [turn.undelivered for turn in episode.turns] == [True, False]
    assert episode.turns[1].restart
    assert [set(sample.turns.tolist()) for sample in episode_samples(episode)] == [{1}]
    assert episode.outcome["result"] == episode.turns[1].action


def test_parallel_calls_draw_by_what_they_ask_and_not_by_who_came_first(policy: LocalPolicy) -> None:
    def agent_with(order: Sequence[int]) -> Any:
        async def agent(task: Any, client: Any) -> dict[str, str]:
            async def late(number: int) -> tuple[str, str]:
                await asyncio.sleep(0.02 * order.index(number))
                return str(number), await agents.ask(client, ("user", f"helper {number % 3}"))

            return dict(await asyncio.gather(*map(late, range(4))))

        return agent

    results = [one(agent_with(order), policy).outcome["result"] for order in ([0, 1, 2, 3], [2, 1, 3, 0])]
    assert {results[0][name] for name in "03"} == {results[1][name] for name in "03"}
    assert [results[0][name] for name in "12"] == [results[1][name] for name in "12"]
    assert results[0]["0"] != results[0]["3"], "the same question twice is two draws"


def test_calls_that_wait_together_share_an_index() -> None:
    tokens = TurnTokens(context_ids=(1,), action_ids=(2,), logprobs=(0.0,), restart=True)
    parallel = [False, True, True, False]
    turns = [
        Turn(index=place, observation="", action="", asked=Asked(parallel=together), tokens=tokens)
        for place, together in enumerate(parallel)
    ]
    episode = Episode(
        task=agent_spec(_asked, agents.ROWS).train_task(0), policy="p", turns=tuple(turns), stop=StopReason.TERMINATED
    )
    assert turn_places(episode) == [0, 0, 0, 1]


def test_a_client_may_write_ids_of_its_own() -> None:
    """A framework wrote all ids anew that do not begin with call_, and every turn began a conversation of its own."""

    async def rewriting(task: Any, client: Any) -> str:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        create = client.chat.completions.create
        (call,) = (await create(model="any", messages=messages, tools=[agents.TOOL])).choices[0].message.tool_calls
        ids.append(call.id)
        function = {"name": call.function.name, "arguments": call.function.arguments.replace(" ", "  ")}
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "mine", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "mine", "content": "4"},
        ]
        return (await create(model="any", messages=messages, tools=[agents.TOOL])).choices[0].message.content

    ids: list[str] = []
    episode = one(rewriting, agents.CALLER)
    assert [turn.restart for turn in episode.turns] == [True, False]
    assert ids[0].startswith("call_")
    (answered,), (result,) = episode.turns[0].calls, episode.turns[1].messages
    assert (answered.id, answered.name) == (result.call_id, result.name)
    assert episode.metrics["continued_calls"] == 1.0


# -- what a client may ask ---------------------------------------------------------------------------------------------


def parrot(answer: Any) -> tuple[FunctionPolicy, list[Observation]]:
    """A policy that answers by a function of what was asked, and what it was asked."""
    asked: list[Observation] = []
    return FunctionPolicy("parrot", lambda seen, _: asked.append(seen) or answer(seen)), asked


def test_a_form_of_the_answer_stands_in_the_prompt() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def agent(task: Any, client: Any) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        chat = await agents.ask(client, ("system", "Be brief."), ("user", "x"), response_format=form)
        flat = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        response = await client.responses.create(model="any", input="x", text=flat)
        loose = await agents.ask(client, ("user", "x"), response_format={"type": "json_object"})
        return [json.loads(each)["n"] for each in (chat, response.output_text, loose)]

    policy, asked = parrot(lambda seen: '{"n": 4}')
    episode = one(agent, policy)
    assert episode.outcome["result"] == [4, 4, 4]
    systems = [episode.system_prompt, *(seen.messages[0].content for seen in asked[1:])]
    assert systems[0].startswith("Be brief.\n\nAnswer with JSON that fits this schema")
    assert json.loads(systems[0].splitlines()[-1]) == json.loads(systems[1].splitlines()[-1]) == schema
    assert systems[2] == "Answer with one JSON object and nothing else."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_tool_that_must_be_called_is_called(choice: Any, calling: LoadedModel) -> None:
    """The beginning of the call is put in the model's mouth: it is read, not trained."""

    async def agent(task: Any, client: Any) -> Any:
        said = [{"role": "user", "content": "go"}]
        reply = await client.chat.completions.create(
            model="any", messages=said, tools=[agents.TOOL], tool_choice=choice
        )
        return reply.model_dump()

    episode = one(agent, LocalPolicy(calling, SamplingConfig(max_new_tokens=8)))
    (turn,) = episode.turns
    prompt = calling.tokenizer.decode(turn.tokens.context_ids)
    assert prompt.rstrip().endswith('"name": "' if choice == "required" else '"arguments":')
    assert episode.stop in (StopReason.TERMINATED, StopReason.TOKEN_LIMIT)


def test_log_probs_and_the_beginning_of_an_answer(loaded: LoadedModel, policy: LocalPolicy) -> None:
    async def agent(task: Any, client: Any) -> Any:
        said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"}]
        reply = await client.chat.completions.create(model="any", messages=said, logprobs=True)
        said[1]["content"] += reply.choices[0].message.content
        await agents.ask(client, *((each["role"], each["content"]) for each in said), ("user", "and?"))
        return [[each.token, each.logprob] for each in reply.choices[0].logprobs.content]

    episode = one(agent, policy)
    first, second = (turn.tokens for turn in episode.turns)
    assert [logprob for _, logprob in episode.outcome["result"]] == list(first.logprobs)
    assert loaded.tokenizer.decode(first.context_ids).endswith("The answer is")
    assert not second.restart, "the answer with its beginning comes back and goes on"
    assert episode.metrics["continued_calls"] == 1.0


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("dialect", ["responses", "messages"])
def test_other_dialects_are_streamed_in_pieces_and_say_the_same(dialect: str) -> None:
    add = agents.TOOL["function"]
    tool = {"type": "function", **add} if dialect == "responses" else {"name": "add", "input_schema": add["parameters"]}  # type: ignore[dict-item]
    limit = {"max_tokens": 50} if dialect == "messages" else {}

    async def agent(task: Any, client: Any) -> Any:
        key = {"x-api-key": client.api_key} if dialect == "messages" else {"Authorization": f"Bearer {client.api_key}"}
        address = f"{str(client.base_url).rstrip('/')}/{dialect}"
        field = "messages" if dialect == "messages" else "input"
        results = []
        async with httpx.AsyncClient(timeout=30) as http:
            for question in ("call", "speak"):
                for stream in (False, True):
                    said = [{"role": "user", "content": question}]
                    body = {"model": "any", field: said, "tools": [tool], "stream": stream, **limit}
                    reply = await http.post(address, json=body, headers=key)
                    results.append(reply.text)
        return results

    written = '{"name": "add", "arguments": {"a": 2, "b": [1]}}'
    policy, _ = parrot(lambda seen: written if "call" in seen.text else "one two three")
    call, calls, speech, speeches = one(agent, policy).outcome["result"]
    events, spoken = _events(calls), _events(speeches)
    if dialect == "messages":
        assert json.loads(call)["content"][0]["input"] == {"a": 2, "b": [1]}
        assert json.loads(call)["stop_reason"] == events[-2]["delta"]["stop_reason"] == "tool_use"
        pieces = [each["delta"]["partial_json"] for each in events if "partial_json" in each.get("delta", {})]
        texts = [each["delta"]["text"] for each in spoken if "text" in each.get("delta", {})]
        assert json.loads(speech)["content"] == [{"type": "text", "text": "one two three"}]
    else:
        assert json.loads(json.loads(call)["output"][0]["arguments"]) == {"a": 2, "b": [1]}
        pieces = [each["delta"] for each in events if each["type"] == "response.function_call_arguments.delta"]
        texts = [each["delta"] for each in spoken if each["type"] == "response.output_text.delta"]
        assert spoken[-1]["response"]["output"][0]["content"][0]["text"] == "one two three"
    assert len(pieces) > 2
    assert json.loads("".join(pieces)) == {"a": 2, "b": [1]}
    assert texts == ["one ", "two ", "three"]


def test_a_reward_of_a_broken_episode_may_have_terms_for_each_call(policy: LocalPolicy) -> None:
    from gradus.core import Grader

    def compute(episodes: Sequence[Episode]) -> list[Reward]:
        return [
            Reward(grader="g", value=1.0, terms=((RewardTerm(component="g", value=1.0),), *[()] * (len(e.turns) - 1)))
            for e in episodes
        ]

    async def breaks(task: Any, client: Any) -> None:
        await _asked(task, client)
        await _asked(task, client)
        raise KeyError("x")

    grader = Grader(name="g", compute=compute, per_turn=True, range=(-1.0, 1.0))
    episode = one(breaks, policy, rewards=[grader])
    assert episode.reward.turn_rewards == (0.0, -1.0)


# -- anywhere, and bounded ---------------------------------------------------------------------------------------------


def test_one_episode_on_a_scripted_model_says_what_an_agent_does(capsys: pytest.CaptureFixture[str]) -> None:
    async def odd(task: Any, client: Any) -> str:
        said = [{"role": "user", "content": task["question"]}]
        first = await client.chat.completions.create(model="any", messages=said, tools=[agents.TOOL], temperature=0.2)
        assert first.choices[0].message.tool_calls[0].function.name == "add"
        await agents.ask(client, ("user", "other"))
        await asyncio.gather(*(agents.ask(client, ("user", f"helper {each}")) for each in range(2)))
        schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return await agents.ask(client, ("user", "form"), response_format=form)

    findings = check_agent(agent_spec(odd, agents.ROWS))
    by_subject = {each.subject: each for each in findings}
    assert by_subject["agent"].evidence == '5 calls of the model; it returned \'{"city": "x", "n": 1}\''
    assert by_subject["overruled"].evidence.startswith("temperature = 0.2")
    assert by_subject["continued calls"].status == "warn"
    assert by_subject["parallel calls"].evidence.startswith("1 of 5")
    assert "its tools are others than before" in [each.evidence for each in findings]
    notes = Checklist([each for each in findings if each.status == "note"])
    assert (notes.status, len(notes.tables())) == ("pass", 2)
    (refused, _) = check_agent(agent_spec(_swallows, agents.ROWS))
    assert (refused.subject, refused.status, "modalities" in refused.evidence) == ("refused", "fail", True)
    (broken, *_) = check_agent(agent_spec(_raises, agents.ROWS))
    assert (broken.status, "ConnectionError" in broken.evidence) == ("warn", True)
    (silent, *_) = check_agent(agent_spec(_silent, agents.ROWS))
    assert silent.status == "fail"


def test_a_command_may_print_without_end(policy: LocalPolicy) -> None:
    episode = one(
        _command("[print('x' * 2**16) or print('y' * 2**16, file=__import__('sys').stderr) for _ in range(640)]"),
        policy,
    )
    assert len(episode.outcome["result"]) == 2**20


def test_slow_tools_of_one_agent_do_not_hold_up_the_others(policy: LocalPolicy) -> None:
    async def agent(task: Any, client: Any) -> None:
        for _ in range(3):
            await agents.ask(client, ("user", task["question"]))
            if task["question"] == slow:
                await asyncio.sleep(1.0)
                order.append("slow")
        order.append("other")

    order: list[str] = []
    spec = agent_spec(agent, agents.ROWS, [agents.length])
    slow = spec.data_set.item("train", spec.train_task(0).seed).question
    before = {}
    for wait_ms in (None, 20.0):
        order.clear()
        rolled(agent, policy, tasks=4, limits={"wait_ms": wait_ms})
        before[wait_ms] = order.index("slow")
    assert before[None] == 0, "in rounds all wait for the slow one"
    assert before[20.0] > 0


_ELSEWHERE = """
import json, os, sys, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(json.load(opener.open(request, timeout=20))["choices"][0]["message"]["content"])
"""


@pytest.fixture
def elsewhere() -> Any:
    """A network namespace with its own end of a cable; the address of this end."""
    name, ours = f"gradus{os.getpid() % 10**6}", "10.213.7.1"
    here, there = f"g{os.getpid() % 10**6}a", f"g{os.getpid() % 10**6}b"
    lines = [
        f"ip netns add {name}",
        f"ip link add {here} type veth peer name {there} netns {name}",
        f"ip addr add {ours}/24 dev {here}",
        f"ip link set {here} up",
        f"ip netns exec {name} ip addr add 10.213.7.2/24 dev {there}",
        f"ip netns exec {name} ip link set {there} up",
    ]
    try:
        for line in lines:
            done = subprocess.run(line.split(), capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"network namespaces are not allowed here: {done.stderr.decode().strip()}")
        yield name, ours
    except FileNotFoundError:
        pytest.skip("no ip on this machine")
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_an_agent_in_another_network_reaches_the_endpoint(elsewhere: Any, policy: LocalPolicy, tmp_path: Path) -> None:
    name, ours = elsewhere
    (tmp_path / "agent.py").write_text(_ELSEWHERE)
    command = AgentCommand(f"ip netns exec {name} {sys.executable} {tmp_path / 'agent.py'}")
    episode = one(command, policy, limits={"endpoint_host": ours, "seconds": 30.0})
    assert episode.outcome["result"] == episode.turns[0].action.strip()
    lonely = one(command, policy, limits={"seconds": 30.0})
    assert lonely.stop is StopReason.FAILED, "without endpoint_host it listens to this machine alone"


def test_idle_connections_leave_the_run_its_files() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, limit[1]))
    try:
        server = Endpoint("127.0.0.1", ())
        host, port = urlsplit(server._base).netloc.split(":")
        idle = [socket.create_connection((host, int(port)), 20) for _ in range(300)]
        time.sleep(0.3)
        for each in idle:
            each.setblocking(False)
        alive = sum(_is_open(each) for each in idle)
        assert alive <= 200
        for each in idle:
            each.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_a_nano_model_knows_the_words_that_its_teacher_meets() -> None:
    async def wordy(task: Any, client: Any) -> str:
        return await agents.ask(client, ("system", "Zwieback before marmalade."), ("user", task["question"]))

    bare, taught, told = (
        gradus.agent(wordy, agents.ROWS, [agents.length], missing=(TimeoutError, 75), **more)
        for more in ({}, {"teacher": parrot(lambda seen: "quince jelly")[0]}, {"vocabulary": ["damson"]})
    )
    words = [set(spec.language.vocabulary().words) for spec in (bare, taught, told) if spec.language.vocabulary]
    assert {"Zwieback", "marmalade.", "quince", "jelly"} <= words[1] - words[0]
    assert "damson" in words[2]


def test_a_call_without_tools_may_tell_of_earlier_calls(calling: LoadedModel) -> None:
    """A framework that reflects on a result sends no tools with it: the template knew no role tool."""

    async def reflecting(task: Any, client: Any) -> str:
        function = {"name": "add", "arguments": "{}"}
        said: list[Any] = [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "x", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "is four"},
        ]
        return (await client.chat.completions.create(model="any", messages=said)).choices[0].message.content

    episode = one(reflecting, LocalPolicy(calling, SamplingConfig(max_new_tokens=8)))
    assert episode.failure is None
    prompt = calling.tokenizer.decode(episode.turns[0].tokens.context_ids)
    assert "is four" in prompt
    assert '"name": "add"' in prompt
