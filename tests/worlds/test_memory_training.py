"""GRPO on memory, by hand: real log-probs of a tiny model, per-chunk rewards, and the loss of one step worked out on paper."""

from dataclasses import replace

import pytest
import torch

from gradus.core import Group, TurnTokens
from gradus.environments import load
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.credit import credit_groups
from gradus.training.data.sequences import TrainingSample
from gradus.training.engine.update import policy_update

SPEC = load("memory:synthetic:chunks=3,questions=4")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    assert SPEC.language.vocabulary is not None
    shape = NanoConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64, context=512)
    folder = make_nano(tmp_path_factory.mktemp("nano") / "model", SPEC.language.vocabulary(), shape, seed=1)
    return load_model(str(folder))


def with_tokens(loaded, episode):
    """The episode as if the model had sampled it: exact ids, and log-probs from one plain forward pass a turn."""
    turns = []
    for turn in episode.turns:
        context = loaded.renderer.first(episode.system_prompt, turn.observation)
        action = (*loaded.tokenizer(turn.action, add_special_tokens=False)["input_ids"], min(loaded.renderer.stop_ids))
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*context, *action]])).logits[0]
        rows = logits.log_softmax(-1)[len(context) - 1 : -1]
        logprobs = rows[range(len(action)), list(action)].tolist()
        tokens = TurnTokens(context_ids=context, action_ids=action, logprobs=tuple(logprobs), restart=True)
        turns.append(replace(turn, tokens=tokens))
    return replace(episode, turns=tuple(turns))


@pytest.fixture(scope="module")
def pair(loaded):
    """One world, two policies: a group of two."""
    task = SPEC.train_task(7)
    names = ("teacher", "dump")
    return [with_tokens(loaded, roll_out(SPEC, SPEC.policy(name), [task]).episodes[0]) for name in names]


def graded(pair, grader: str) -> Group:
    rewards = SPEC.graders[grader].compute(pair)
    episodes = tuple(
        replace(one, reward=reward, member=i) for i, (one, reward) in enumerate(zip(pair, rewards, strict=True))
    )
    return Group(task=pair[0].task, episodes=episodes)


def samples_of(group: Group, config: GrpoConfig, loaded: LoadedModel) -> list[TrainingSample]:
    grader = SPEC.grader("v2")
    return credit_groups([group], config.resolved(grader), loaded.renderer, weights=grader.weights)


@pytest.mark.parametrize("grader", ["v2", "mem-alpha"])
@pytest.mark.parametrize("algorithm", ["gradus", "grpo"])
def test_one_step_is_what_it_is_on_paper(loaded, pair, grader: str, algorithm: str) -> None:
    group = graded(pair, grader)
    rewards = [episode.reward.turn_rewards for episode in group.episodes if episode.reward]
    assert [len(row) for row in rewards] == [3, 3]
    to_go = [[sum(row[turn:]) for turn in range(3)] for row in rewards]
    # The leave-one-out baseline of a group of two is the other member.
    advantage = [[to_go[0][t] - to_go[1][t] for t in range(3)], [to_go[1][t] - to_go[0][t] for t in range(3)]]
    lengths = [[len(turn.tokens.action_ids) for turn in episode.turns if turn.tokens] for episode in group.episodes]
    weighted = [
        a * n for rows, counts in zip(advantage, lengths, strict=True) for a, n in zip(rows, counts, strict=True)
    ]
    if algorithm == "gradus":  # ratios are 1: minus the mean advantage over all sampled tokens
        by_hand = -sum(weighted) / sum(map(sum, lengths))
    else:  # one advantage per episode; mean over training sequences (one a turn, for each turn restarts)
        mean = sum(sum(row) for row in rewards) / 2
        by_hand = -sum(3 * (sum(row) - mean) for row in rewards) / 6
    config = GrpoConfig(algorithm=algorithm, scale="none", groups=1, group_size=2, max_turns=3, validation_every=0)
    credited = samples_of(group, config, loaded)
    assert len(credited) == 6
    still = torch.optim.SGD(loaded.model.parameters(), lr=0.0)
    result = policy_update(loaded, still, credited, config, 0.0)
    assert result.figures["loss"] == pytest.approx(by_hand, abs=1e-5)
    assert result.figures["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert result.logp_diff_max is not None
    assert result.logp_diff_max < 1e-4
