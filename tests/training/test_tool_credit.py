"""A reward term that stands at a call is credited to the tokens of that call, and what is trained is what was sampled."""

from dataclasses import replace

from gradus import FunctionPolicy
from gradus.core import Group, Language, ToolCall, TurnTokens, Vocabulary
from gradus.core.calls import write_calls
from gradus.environments.tools import by_call, call_vocabulary, tool_environment
from gradus.policies.local.loading import load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rewards.grading import completion_of
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups, token_ends
from gradus.training.data.sequences import episode_samples
from gradus.training.data.sft_sequences import text_sequences

CALLS = [ToolCall(name="look", arguments={"at": place}) for place in ("here", "there")]


class Place:
    system_prompt = "look"

    def reset(self, seed: int) -> str:
        return "where"

    def look(self, at: str) -> str:
        """Look.

        Args:
            at: Where.
        """
        return f"nothing {at}"


def vocabulary() -> Vocabulary:
    return call_vocabulary(CALLS, ["look where nothing here there done"])


SPEC = tool_environment(
    Place, name="place", max_turns=3, reward=lambda e: 0.0, language=Language(vocabulary=vocabulary)
)


def test_spans_tokens_and_taught_calls(tmp_path):
    loaded = load_model(make_nano(tmp_path / "nano", vocabulary(), NanoConfig(hidden_size=32, layers=1, heads=2)))
    renderer = loaded.renderer.for_tools([{"function": {"name": "look"}}])
    text = "done\n" + write_calls(CALLS)

    def teach(seen, script):
        return text if seen.messages[-1].role == "user" else "done"

    taught = roll_out(SPEC, FunctionPolicy("t", teach), SPEC.tasks("main", 2)).episodes
    sampled = roll_out(
        SPEC, LocalPolicy(loaded, SamplingConfig(max_new_tokens=12)), SPEC.tasks("main", 2), group_size=2
    )
    for episode in sampled.episodes:
        (sample,) = episode_samples(episode)
        ids = []
        for turn in episode.turns:
            ids += [
                *(renderer.following(turn.shown) if turn.index else renderer.first("look", turn.shown)),
                *turn.tokens.action_ids,
            ]
            assert renderer.decode(turn.tokens.action_ids) == turn.action
        if not any(turn.cut for turn in episode.turns[:-1]):
            assert sample.ids.tolist() == ids
    (sequence, _) = text_sequences(loaded, taught)
    assert loaded.tokenizer.decode(sequence.ids[sequence.positions][: len(renderer.encode_answer(text)) - 1]) == text

    # The first member's first call is paid, the second member's is not; all the rest is equal.
    tokens = episode_tokens(taught[0], renderer)
    paid = by_call(tokens, 0.0, lambda call: float(call.arguments["at"] == "here"))
    unpaid = by_call(tokens, 0.0)
    group = Group(task=tokens.task, episodes=(replace(tokens, reward=paid), replace(tokens, reward=unpaid, member=1)))
    rule = GrpoConfig(credit="span", scale="none")
    first, second = credit_groups([group], rule, renderer, weights={"call": 1.0, "reward": 1.0})
    span = tokens.turns[0].spans[0]
    ends = token_ends(renderer, tokens.turns[0].tokens.action_ids)
    inside = [span.start < end <= span.end for end in ends]
    assert any(inside)
    for sample, sign in ((first, 1.0), (second, -1.0)):
        values = sample.advantages[: len(ends)].tolist()
        assert [value != 0.0 for value in values] == inside
        assert all(value * sign > 0 for value, there in zip(values, inside, strict=True) if there)

    messages = completion_of(taught[0]).messages
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "assistant"]
    assert messages[0]["content"] == "done"
    assert [call["function"]["arguments"] for call in messages[0]["tool_calls"]] == [call.arguments for call in CALLS]
    assert messages[1] == {"role": "tool", "content": "nothing here", "name": "look"}


def episode_tokens(episode, renderer):
    """The episode as if a model had sampled it."""
    turns = []
    for turn in episode.turns:
        action = renderer.encode_answer(turn.action)
        context = renderer.following(turn.shown) if turn.index else renderer.first(episode.system_prompt, turn.shown)
        tokens = TurnTokens(
            context_ids=context, action_ids=action, logprobs=(0.0,) * len(action), restart=not turn.index
        )
        turns.append(replace(turn, tokens=tokens))
    return replace(episode, turns=tuple(turns))
