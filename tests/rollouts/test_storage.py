"""What is written is what is read, whatever happens to the file."""

import gzip
import json
import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.core import Episode, StopReason, StorageError, Task, Turn, TurnTokens
from gradus.rollouts import EpisodeWriter, decode, encode, grade_episodes, read_episodes, roll_out, write_episodes

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TURNS = st.builds(
    Turn,
    index=st.integers(0, 99),
    observation=st.text(),
    action=st.text(),
    data=st.dictionaries(st.text(max_size=5), st.one_of(FLOATS, st.text(), st.none(), st.booleans()), max_size=3),
    env_reward=st.none() | FLOATS,
    valid=st.booleans(),
    error=st.none() | st.text(),
    tokens=st.none()
    | st.builds(
        TurnTokens,
        context_ids=st.lists(st.integers(0, 9)).map(tuple),
        action_ids=st.lists(st.integers(0, 9)).map(tuple),
        logprobs=st.lists(FLOATS).map(tuple),
        restart=st.booleans(),
        legal=st.none() | st.just(((1, 2), None)),
    ),
)


@given(st.lists(TURNS, max_size=4), st.sampled_from(StopReason), st.text())
def test_an_episode_reads_back_equal(turns, stop, prompt):
    episode = Episode(
        task=Task(environment="e", seed=1), policy="p", turns=tuple(turns), stop=stop, system_prompt=prompt
    )
    assert decode(json.loads(json.dumps(encode(episode)))) == episode


@pytest.fixture
def episodes(spec):
    return roll_out(spec, spec.policy("random"), spec.tasks("main")).episodes


def test_a_file_reads_back_equal(tmp_path, episodes):
    write_episodes(tmp_path / "e.jsonl", episodes, environment="guess")
    result = read_episodes(tmp_path / "e.jsonl")
    assert result.episodes == episodes
    assert not result.problems


def test_a_torn_last_line_costs_that_line_only_and_appending_goes_on(tmp_path, episodes):
    path = tmp_path / "e.jsonl"
    with EpisodeWriter(path, environment="guess") as writer:
        writer.write(episodes[:5])
    path.write_bytes(path.read_bytes()[:-40])
    result = read_episodes(path)
    assert result.episodes == episodes[:4]
    assert "cut off" in result.problems[0]
    with EpisodeWriter(path, environment="guess") as writer:
        writer.write(episodes[4:])
    again = read_episodes(path)
    assert again.episodes == episodes
    assert not again.problems


def packed(path, episodes):
    """Episodes in members of five."""
    with EpisodeWriter(path, environment="guess") as writer:
        for place in range(0, len(episodes), 5):
            writer.write(episodes[place : place + 5])


def test_a_packed_file_reads_back_equal_and_any_tool_reads_it(tmp_path, episodes):
    path, plain = tmp_path / "e.jsonl.gz", tmp_path / "plain.jsonl"
    packed(path, episodes)
    assert read_episodes(path).episodes == episodes
    write_episodes(plain, episodes, environment="guess")
    assert gzip.decompress(path.read_bytes()) == plain.read_bytes()
    assert path.stat().st_size < plain.stat().st_size / 3
    plain.unlink()


def test_a_torn_packed_file_keeps_its_whole_lines_and_appending_goes_on(tmp_path, episodes):
    path = tmp_path / "e.jsonl.gz"
    packed(path, episodes[:10])
    for lost in (1, 7, 40):
        path.write_bytes(path.read_bytes()[:-lost])
        kept = read_episodes(path)
        assert kept.episodes == episodes[: len(kept.episodes)]
        assert 5 <= len(kept.episodes) <= 10
        assert "cut off" in kept.problems[0]
        with EpisodeWriter(path, environment="guess") as writer:
            writer.write(episodes[len(kept.episodes) : 10])
    with EpisodeWriter(path, environment="guess") as writer:
        writer.write(episodes[10:])
    again = read_episodes(path)
    assert again.episodes == episodes
    assert not again.problems


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.999])
def test_a_flipped_bit_is_refused(tmp_path, episodes, share):
    path = tmp_path / "e.jsonl.gz"
    packed(path, episodes)
    raw = bytearray(path.read_bytes())
    raw[int(share * (len(raw) - 1))] ^= 4
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="is damaged"):
        read_episodes(path)


def test_a_spoilt_line_in_the_middle_is_named(tmp_path, episodes):
    path = tmp_path / "e.jsonl"
    write_episodes(path, episodes[:3], environment="guess")
    lines = path.read_text().split("\n")
    lines[2] = '{"nonsense": 1}'
    path.write_text("\n".join(lines))
    result = read_episodes(path)
    assert result.episodes == [episodes[0], episodes[2]]
    assert "line 3" in result.problems[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "header"),
        ("hello\n", "header"),
        ('{"kind": "gradus episodes", "schema": 99, "environment": "e"}\n', "at schema: .* got 99"),
        ('{"kind": "something", "schema": 2, "environment": "e"}\n', "at kind: .* got 'something'"),
        ('{"question": "1 + 1?", "answer": "2"}\n', "is not a file of episodes: .* to look at rows type gradus check"),
    ],
)
def test_what_is_no_file_of_episodes_is_refused_with_the_reason(tmp_path, text, says):
    path = tmp_path / "e.jsonl"
    path.write_text(text)
    with pytest.raises(StorageError, match=says):
        read_episodes(path)


def test_regrading_changes_the_grade_and_nothing_else(spec, episodes):
    again = grade_episodes(spec, episodes, spec.grader("quick"))
    assert again == episodes


FULL_DISK = """
import resource, signal, sys
from gradus.core import StorageError
from gradus.rollouts import read_episodes, write_episodes
source, target = sys.argv[1:]
episodes = read_episodes(source).episodes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    write_episodes(target, episodes, environment="guess")
except StorageError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path, episodes):
    source, target = tmp_path / "source.jsonl", tmp_path / "target.jsonl"
    write_episodes(source, episodes, environment="guess")
    write_episodes(target, episodes[:1], environment="guess")
    before = target.read_bytes()
    run = subprocess.run([sys.executable, "-c", FULL_DISK, source, target], capture_output=True, text=True, check=True)
    assert "could not write" in run.stdout
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.jsonl", "target.jsonl"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000


def test_what_json_or_a_file_cannot_hold_is_replaced_where_it_is_written(tmp_path):
    turn = Turn(index=0, observation="a\ud800", action="b", action_data={"x": float("inf"), "y": {3, 1}})
    episode = Episode(task=Task(environment="e", seed=1), policy="p", turns=(turn,), stop=StopReason.TERMINATED)
    write_episodes(tmp_path / "e.jsonl", [episode], environment="e")
    (read,) = read_episodes(tmp_path / "e.jsonl").episodes
    assert (read.turns[0].observation, read.turns[0].action_data) == ("a?", {"x": None, "y": [1, 3]})
