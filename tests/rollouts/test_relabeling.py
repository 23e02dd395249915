"""A teacher's answers where the student was."""

from gradus.rollouts import decode, encode, relabel, roll_out


def test_the_teachers_own_play_is_corrected_to_itself(spec):
    episodes = roll_out(spec, spec.policy("bisect"), spec.tasks("main")).episodes
    for episode in relabel(spec, spec.policy("bisect"), episodes):
        assert [turn.expert_action for turn in episode.turns] == [turn.action for turn in episode.turns]


def test_a_students_play_stays_as_it_was_and_carries_the_teachers_answers(spec):
    played = roll_out(spec, spec.policy("random"), spec.tasks("main")).episodes
    corrected = relabel(spec, spec.policy("bisect"), played, max_concurrent=7)
    for before, after in zip(played, corrected, strict=True):
        assert [turn.action for turn in before.turns] == [turn.action for turn in after.turns]
        assert after.turns[0].expert_action == "4"  # the middle of 0 to 9
        assert decode(encode(after)) == after


def test_a_session_with_a_memory_is_told_what_was_answered(spec, scripted):
    told = []

    class Remembering(scripted):
        def replace_action(self, row, text):
            told.append((row, text))

    played = roll_out(spec, spec.policy("random"), spec.tasks("main", 3)).episodes
    relabel(spec, Remembering("remembering", lambda start, seen, memory: 4), played)
    assert sorted(told) == sorted((row, turn.action) for row, each in enumerate(played) for turn in each.turns)


def test_a_failing_teacher_leaves_the_rest_without_targets(spec, scripted):
    from gradus.core import Action, Failure

    class Failing(scripted):
        def act(self, requests):
            return [Action(failure=Failure(stage="act", type="PolicyError", message="gone")) for _ in requests]

    played = roll_out(spec, spec.policy("random"), spec.tasks("main", 2)).episodes
    for episode in relabel(spec, Failing("failing", None), played):
        assert all(turn.expert_action is None for turn in episode.turns)
