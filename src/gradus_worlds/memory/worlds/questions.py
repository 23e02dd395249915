"""Questions on a synthetic world: current and former values, dates, two hops, and what is not known."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from gradus_worlds.memory.worlds.phrases import ATTRIBUTES, Attribute
from gradus_worlds.memory.worlds.records import Hop, Question
from gradus_worlds.memory.worlds.timeline import Key, Timeline

KINDS = ("changed", "current", "former", "date", "two-hop", "never-said", "retracted")
Topics = Mapping[str, Sequence[Attribute]]


def ask(
    timeline: Timeline,
    people: Sequence[str],
    topics: Topics,
    number: int,
    weights: Mapping[str, float],
    rng: random.Random,
) -> list[Question]:
    """Up to ``number`` different questions, of kinds that the world allows, drawn by the weights of the kinds."""
    candidates = {kind: _CANDIDATES[kind](timeline, people, topics) for kind in KINDS}
    for keys in candidates.values():
        rng.shuffle(keys)
    asked: list[Question] = []
    while len(asked) < number:
        left = [kind for kind in KINDS if candidates[kind] and weights[kind]]
        if not left:
            break
        kind = rng.choices(left, [weights[one] for one in left])[0]
        asked.append(_QUESTIONS[kind](timeline, candidates[kind].pop()))
    return asked


def _changed(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    return [key for key in timeline.known() if timeline.rewritten(key)]


def _unchanged(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    return [key for key in timeline.known() if not timeline.rewritten(key)]


def _with_former(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    return [key for key in timeline.known() if timeline.before(key)]


def _any(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    return timeline.known()


def _friends(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    """(person, noun) such that the noun is known of the person's friend."""
    keys: list[Key] = []
    for person in people:
        friend = timeline.current((person, "friend"))
        if friend:
            keys += [
                (person, noun) for noun in ATTRIBUTES if noun != "friend" and timeline.current((friend.value, noun))
            ]
    return keys


def _never(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    retracted = set(timeline.retracted())
    slots = [(person, noun) for person in people for noun in ATTRIBUTES]
    return [key for key in slots if not timeline.current(key) and key not in retracted]


def _retracted(timeline: Timeline, people: Sequence[str], topics: Topics) -> list[Key]:
    return timeline.retracted()


_CANDIDATES: Mapping[str, Callable[[Timeline, Sequence[str], Topics], list[Key]]] = {
    "changed": _changed,
    "current": _unchanged,
    "former": _with_former,
    "date": _any,
    "two-hop": _friends,
    "never-said": _never,
    "retracted": _retracted,
}


def _hop(timeline: Timeline, key: Key, then: Hop | None = None) -> Hop:
    person, noun = key
    return Hop(slot=timeline.slot(person, ATTRIBUTES[noun]), query=f"{{}} {noun}", then=then)


def _value_question(kind: str) -> Callable[[Timeline, Key], Question]:
    def build(timeline: Timeline, key: Key) -> Question:
        told = timeline.current(key)
        assert told is not None
        return Question(
            text=f"What is {key[0]}'s {key[1]} now?",
            answers=(told.value,),
            kind=kind,
            hops=(_hop(timeline, key),),
            evidence=(told.evidence,),
        )

    return build


def _former_question(timeline: Timeline, key: Key) -> Question:
    told, before = timeline.current(key), timeline.before(key)
    assert told is not None
    assert before is not None
    return Question(
        text=f"What was {key[0]}'s {key[1]} before {told.value}?",
        answers=(before.value,),
        kind="former",
        wanted="former",
        hops=(_hop(timeline, key),),
        of=told.value,
        evidence=(before.evidence,),
    )


def _date_question(timeline: Timeline, key: Key) -> Question:
    told = timeline.current(key)
    assert told is not None
    return Question(
        text=f"On which day did we hear that {key[0]}'s {key[1]} is {told.value}?",
        answers=(told.since,),
        kind="date",
        wanted="date",
        hops=(_hop(timeline, key),),
        of=told.value,
        evidence=(told.evidence,),
    )


def _two_hop_question(timeline: Timeline, key: Key) -> Question:
    person, noun = key
    friend = timeline.current((person, "friend"))
    assert friend is not None
    told = timeline.current((friend.value, noun))
    assert told is not None
    return Question(
        text=f"What is the {noun} of {person}'s friend?",
        answers=(told.value,),
        kind="two-hop",
        hops=(_hop(timeline, (person, "friend"), then=_hop(timeline, (friend.value, noun))),),
        evidence=(friend.evidence, told.evidence),
    )


def _unknown_question(kind: str) -> Callable[[Timeline, Key], Question]:
    def build(timeline: Timeline, key: Key) -> Question:
        evidence = (timeline.retracted_evidence(key),) if kind == "retracted" else ()
        return Question(
            text=f"What is {key[0]}'s {key[1]} now?",
            answers=(),
            kind=kind,
            hops=(_hop(timeline, key),),
            evidence=evidence,
        )

    return build


_QUESTIONS: Mapping[str, Callable[[Timeline, Key], Question]] = {
    "changed": _value_question("changed"),
    "current": _value_question("current"),
    "former": _former_question,
    "date": _date_question,
    "two-hop": _two_hop_question,
    "never-said": _unknown_question("never-said"),
    "retracted": _unknown_question("retracted"),
}
