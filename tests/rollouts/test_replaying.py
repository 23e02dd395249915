"""A policy's answers where another one was."""

from gradus.rollouts import replay, roll_out


def acts(session, requests):
    return [action.text for action in session.act(requests)]


def test_a_policy_answers_its_own_episodes_as_it_did(spec, monkeypatch):
    monkeypatch.setattr("gradus.rollouts.replaying.MAX_CONCURRENT", 7)
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main")).episodes
    said = replay(spec, spec.policy("bisect"), episodes, acts)
    assert said == [[turn.action for turn in episode.turns] for episode in episodes]


def test_it_answers_in_the_states_of_another(spec):
    played = roll_out(spec, spec.policy("random"), spec.tasks("main")).episodes
    said = replay(spec, spec.policy("bisect"), played, acts)
    assert [len(each) for each in said] == [len(episode.turns) for episode in played]
    assert {each[0] for each in said} == {"4"}  # the middle of 0 to 9


def test_a_session_with_a_memory_is_told_what_was_answered(spec, scripted):
    told = []

    class Remembering(scripted):
        def replace_action(self, row, text):
            told.append((row, text))

    played = roll_out(spec, spec.policy("random"), spec.tasks("main", 3)).episodes
    replay(spec, Remembering("remembering", lambda start, seen, memory: 4), played, acts)
    assert sorted(told) == sorted((row, turn.action) for row, each in enumerate(played) for turn in each.turns)
