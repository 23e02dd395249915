"""Distillation: exact targets of tokens, scripted teachers and models that teach, one loop with SFT."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import lamps
from short_runs import Stopped, same_weights, stop_after

import gradus
from gradus import environments
from gradus.core import ConfigError, SpanDistribution
from gradus.policies.local.loading import LoadedModel, load_model
from gradus.policies.local.policy import LocalPolicy
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.policies.scripted import FunctionPolicy
from gradus.rollouts import roll_out
from gradus.training.config import GrpoConfig
from gradus.training.data.answer_targets import AnswerTargets
from gradus.training.data.credit import credit_groups, graded_episodes
from gradus.training.data.microbatches import microbatches
from gradus.training.data.sequences import episode_samples
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.distill import train_distill
from gradus.training.engine import vocabulary_loss
from gradus.training.engine.forward import compare_tokens, vocabulary_size
from gradus.training.engine.prepare import prepare_model
from gradus.training.engine.tree_support import tree_attention
from gradus.training.grpo import train_grpo
from gradus.training.lesson_config import DistillConfig, DistillTable, SftConfig
from gradus.training.run.folder import RunFolder
from gradus.training.run.options import GrpoOptions, RunOptions
from gradus.training.teachers import ModelTeacher, ScriptedTeacher, Teacher, with_teacher

RHYTHM = environments.load("rhythm")
SAMPLING = SamplingConfig(max_new_tokens=8, grammar=True)


@pytest.fixture(scope="module")
def rhythm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rhythm") / "model"
    shape = NanoConfig(hidden_size=32, layers=2, heads=2, intermediate_size=64, context=1024)
    return make_nano(folder, RHYTHM.language.vocabulary(), shape)


def settings(**changes: Any) -> DistillConfig:
    base: dict[str, Any] = {"max_steps": 4, "batch_size": 4, "lr": 1e-2, "threads": 1, "device": "cpu"}
    return DistillConfig(**{**base, "checkpoint_every": 2, **changes})


def prepared(model: Path, config: DistillConfig) -> LoadedModel:
    return prepare_model(load_model(model, device="cpu"), config)


def distill(model: Path, folder: Path, config: DistillConfig, teacher: Teacher | None = None, **options: Any) -> Any:
    loaded = prepared(model, config)
    teacher = teacher or ScriptedTeacher(RHYTHM.policy("bayes"), RHYTHM, loaded)
    given = {"options": RunOptions(live=False), **options}
    return train_distill(loaded, teacher, RHYTHM, config, folder, sampling=SAMPLING, **given)


def chances(targets: Any) -> list[dict[int, float] | None]:
    return [None if each is None else {token: round(share, 6) for token, share in each.items()} for each in targets]


def test_spans_become_exact_targets_of_tokens(loaded: LoadedModel) -> None:
    """Letters of one word are tokens here, so answers share prefixes, and one ends where another goes on."""
    spell = AnswerTargets(loaded.renderer)
    encode = loaded.tokenizer.encode
    a, b, c = (encode(letter, add_special_tokens=False)[-1] for letter in ("za", "zb", "zc"))
    stated = [
        SpanDistribution("one", ("zq", "zqa", "zqb"), (0.5, 0.3, 0.2)),
        SpanDistribution("two", ("zqa", "zqc"), (0.25, 0.75)),
    ]
    said = list(loaded.renderer.encode_answer("zqa zqc"))
    whole = chances(spell.of(stated, said))
    space = next(token for token in said if token not in {a, b, c, said[0]} and said.count(token) and token != said[1])
    first = next(each for each in whole if each is not None and len(each) == 3)
    assert first == {a: 0.3, b: 0.2, next(iter(first.keys() - {a, b})): 0.5}
    assert space in said
    second = next(each for each in reversed(whole) if each is not None and len(each) == 2)
    assert second == {a: 0.25, c: 0.75}
    assert whole[-1] == {loaded.renderer.stop_id: 1.0}
    assert len(whole) == len(said)
    off = chances(spell.of(stated, [said[0], b, *said[2:]]))
    assert off[0] is not None
    assert off[2:] == [None] * len(off[2:])


def test_two_readings_of_one_text_keep_their_chances(loaded: LoadedModel) -> None:
    """Brute force over all answers: P(next | so far) for every prefix of every answer, in a whole-answer distribution."""
    spell = AnswerTargets(loaded.renderer)
    answers = ("ab", "abc", "abcd", "b", "a")
    shares = (0.1, 0.2, 0.3, 0.15, 0.25)
    ids = {answer: loaded.renderer.encode_answer(answer) for answer in answers}
    for answer in answers:
        targets = spell.of([SpanDistribution("", answers, shares)], ids[answer])
        for place, target in enumerate(targets):
            begun = [
                (each, share)
                for each, share in zip(answers, shares, strict=True)
                if ids[each][:place] == ids[answer][:place]
            ]
            expected: dict[int, float] = {}
            for each, share in begun:
                token = ids[each][place]
                expected[token] = expected.get(token, 0.0) + share / sum(share for _, share in begun)
            assert target == pytest.approx(expected)


@pytest.mark.parametrize("on_policy", [0.0, 0.5])
def test_a_student_learns_what_a_script_states_and_resumes_bit_for_bit(
    rhythm_model: Path, tmp_path: Path, on_policy: float
) -> None:
    config = settings(on_policy=on_policy, history_noise=1.0, observations=0.3, short_turns=6)
    distill(rhythm_model, tmp_path / "whole", config)
    records = RunFolder(tmp_path / "whole").records()
    assert [record["kind"] for record in records] == ["distill"] * 4
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]

    with pytest.raises(Stopped):
        distill(rhythm_model, tmp_path / "parts", config, options=RunOptions(live=False, on_step=stop_after(3)))
    distill(rhythm_model, tmp_path / "parts", config, resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_model_that_teaches_itself_has_nothing_to_teach(rhythm_model: Path, tmp_path: Path) -> None:
    config = settings(max_steps=1, divergence="reverse")
    teacher = ModelTeacher(load_model(rhythm_model, device="cpu"), RHYTHM, prepared(rhythm_model, config), SAMPLING)
    assert abs(distill(rhythm_model, tmp_path / "run", config, teacher).loss) < 1e-6


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_that_of_the_distribution_that_is_sampled(
    rhythm_model: Path, tmp_path: Path, temperature: float
) -> None:
    """Enumerated with one pass of the model over a sequence; the loss was the same at each temperature."""
    config, sampling = settings(max_steps=1, batch_size=1, on_policy=0.0), SamplingConfig(temperature=temperature)
    loaded = prepared(rhythm_model, config)
    teacher = ScriptedTeacher(RHYTHM.policy("bayes"), RHYTHM, loaded)
    episodes = roll_out(RHYTHM, teacher.actor(), [RHYTHM.train_task(0)], key=("distill", "taught"), seed=0).episodes
    (sample,) = teacher.label(text_sequences(loaded, episodes), episodes)
    with torch.no_grad():
        logits = loaded.model(input_ids=sample.ids[None]).logits[0, sample.positions - 1].double()
    ids, q = sample.soft
    p = (logits / temperature).log_softmax(-1).gather(1, ids)
    expected = torch.where(q > 0, q * (q.log() - p), 0.0).sum(1).mean()
    result = train_distill(
        loaded, teacher, RHYTHM, config, tmp_path / "run", sampling=sampling, options=RunOptions(live=False)
    )
    assert result.loss == pytest.approx(float(expected), rel=1e-4)


def test_reverse_of_a_hard_answer_is_refused(rhythm_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="infinite with the teacher bayes"):
        distill(rhythm_model, tmp_path / "run", settings(divergence="reverse"))
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_refused(rhythm_model: Path, lamps_model: Path) -> None:
    student, other = (load_model(path, device="cpu") for path in (rhythm_model, lamps_model))
    with pytest.raises(ConfigError, match="another vocabulary or chat template than the student"):
        ModelTeacher(other, RHYTHM, student, SAMPLING)
    own = load_model(rhythm_model, device="cpu")
    own.tokenizer.chat_template = own.tokenizer.chat_template.replace(
        "'<|observation|>' +", "'<|observation|>' + 'x' +"
    )
    changed = replace(own, renderer=type(own.renderer)(own.tokenizer))
    with pytest.raises(ConfigError, match="another vocabulary or chat template than the student"):
        ModelTeacher(changed, RHYTHM, student, SAMPLING)


def test_a_student_ends_at_what_is_stated(lamps_model: Path, tmp_path: Path) -> None:
    """A teacher that is 70 % sure of one color, whatever is shown: sampled by itself, the student comes to the same 70 %."""
    chances = (
        SpanDistribution("number", ("1", "2"), (0.5, 0.5)),
        SpanDistribution("color", ("red", "blue"), (0.7, 0.3)),
    )
    teacher = FunctionPolicy("sure", lambda seen, script: "1 red", lambda seen, script: chances)
    spec = lamps(turns=1)
    config = settings(max_steps=80, batch_size=8, lr=1e-2, on_policy=0.5, schedule="linear")
    loaded = prepared(lamps_model, config)
    sampling = SamplingConfig(max_new_tokens=6)
    scripted = ScriptedTeacher(teacher, spec, loaded)
    result = train_distill(
        loaded, scripted, spec, config, tmp_path / "run", sampling=sampling, options=RunOptions(live=False)
    )
    assert result.loss < 0.02
    policy = LocalPolicy(load_model(result.best, device="cpu"), sampling)
    said = [each.turns[0].action for each in roll_out(spec, policy, [spec.train_task(i) for i in range(400)]).episodes]
    known = [each for each in said if each in {"1 red", "1 blue", "2 red", "2 blue"}]
    assert len(known) > 360
    assert sum(each.endswith("red") for each in known) / len(known) == pytest.approx(0.7, abs=0.1)
    assert sum(each.startswith("1") for each in known) / len(known) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("own", [True, False], ids=["its own episodes", "another's"])
def test_a_policy_that_only_answers_states_its_answer(rhythm_model: Path, own: bool) -> None:
    loaded = prepared(rhythm_model, settings())
    teacher = ScriptedTeacher(RHYTHM.policy("heuristic+constant"), RHYTHM, loaded)
    actor = teacher.actor() if own else RHYTHM.policy("heuristic+constant")
    episodes = roll_out(RHYTHM, actor, [RHYTHM.train_task(0)]).episodes
    (sample,) = text_sequences(loaded, episodes)
    (labeled,) = teacher.label([sample], episodes)
    assert labeled.actions == sample.actions
    assert labeled.soft[0][:, 0].tolist() == sample.ids[sample.positions].tolist()
    assert teacher.logprobs([sample], episodes)[0].tolist() == [0.0] * sample.actions


def test_grpo_adds_what_the_teacher_finds_likelier(rhythm_model: Path, tmp_path: Path) -> None:
    """Each token's advantage gains coef (log q - log p); one step of it alone makes the student likelier to the teacher."""
    loaded = prepared(rhythm_model, settings())
    tasks = [RHYTHM.train_task(index) for index in range(2)]
    policy = LocalPolicy(loaded, SAMPLING, grammar=RHYTHM.language.grammar)
    groups = roll_out(RHYTHM, policy, tasks, group_size=2, max_turns=3).groups
    by_span = GrpoConfig(credit="span", sampling=SAMPLING).resolved(RHYTHM.grader())
    samples = credit_groups(groups, by_span, loaded.renderer, weights=RHYTHM.grader().weights)
    for teacher in (
        ScriptedTeacher(RHYTHM.policy("bayes"), RHYTHM, loaded),
        ModelTeacher(load_model(rhythm_model, device="cpu"), RHYTHM, loaded, SAMPLING),
    ):
        logprobs = teacher.logprobs(samples, graded_episodes(groups))
        gained = with_teacher(samples, logprobs, 0.5)
        for one, other, theirs in zip(samples, gained, logprobs, strict=True):
            assert one.advantages is not None
            expected = 0.5 * (theirs.double() - one.logprobs).clamp(-10, 10)
            torch.testing.assert_close(other.advantages - one.advantages, expected)
            if isinstance(teacher, ModelTeacher):  # the student's own weights
                torch.testing.assert_close(other.advantages, one.advantages, atol=1e-4, rtol=0)
    config = GrpoConfig(
        credit="span", sampling=SAMPLING, distill_coef=0.1, max_steps=1, groups=2, group_size=2, max_turns=2, lr=1e-3,
        threads=1, device="cpu", validation_every=0,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="distill_coef needs a teacher"):
        train_grpo(rhythm_model, RHYTHM, config, tmp_path / "none", options=GrpoOptions(live=False))

    def teacher_of(student: LoadedModel) -> Teacher:
        return ScriptedTeacher(RHYTHM.policy("bayes"), RHYTHM, student)

    options = GrpoOptions(live=False, teacher=teacher_of)
    assert train_grpo(rhythm_model, RHYTHM, config, tmp_path / "run", options=options).steps == 1


def test_chunks_and_microbatches_change_nothing(
    lamps_model: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, teacher = lamps(), load_model(lamps_model, device="cpu")
    with torch.no_grad():
        for parameter in teacher.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    policy = LocalPolicy(loaded, SamplingConfig(max_new_tokens=4))
    episodes = roll_out(spec, policy, [spec.train_task(index) for index in range(4)]).episodes
    samples = [one for index, each in enumerate(episodes) for one in episode_samples(each, index=index)]

    def apart(logits: torch.Tensor, taught: torch.Tensor | None, rows: slice) -> torch.Tensor:
        return (logits.log_softmax(-1) - taught.log_softmax(-1)).square().sum(1)

    def figures(budget: int) -> tuple[float, list[torch.Tensor]]:
        loaded.model.zero_grad()
        loss = 0.0
        for batch in microbatches(samples, budget=budget):
            with tree_attention(loaded.model), tree_attention(teacher.model):
                values, _ = compare_tokens(loaded.model, batch, apart, teacher=teacher.model)
            values.sum().backward()
            loss += float(values.detach().sum())
        return loss, [each.grad.clone() for each in loaded.model.parameters() if each.grad is not None]

    loss, gradients = figures(4096)
    assert all(each.grad is None for each in teacher.model.parameters())
    monkeypatch.setattr(vocabulary_loss, "MAX_LOGITS", 3 * vocabulary_size(loaded.model))
    for budget in (4096, 64):
        again, others = figures(budget)
        assert again == pytest.approx(loss, rel=1e-4)
        for one, other in zip(gradients, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    loaded.model.zero_grad()


def test_a_recipe_distills_as_its_table_sft_says() -> None:
    sft = SftConfig(lr=1e-4, optimizer="muon", muon_lr=0.03, batch_size=9, seed=3, validation_every=5, max_steps=8)
    config = DistillTable(teacher="bayes", batch_size=2).over(sft)
    assert (config.lr, config.optimizer, config.muon_lr, config.batch_size) == (1e-4, "muon", 0.03, 2)
    assert (config.teacher, config.max_steps, config.validation_every) == ("bayes", 100, None)
    assert "seed" not in config.model_fields_set


def test_the_command_teaches_a_new_model_and_a_run_teaches_the_next(tmp_path: Path) -> None:
    small = {"model.nano.hidden_size": 32, "model.nano.layers": 1, "distill.batch_size": 2, "sft.threads": 1}
    first = gradus.distill(
        "nano", "bayes", "rhythm", steps=2, out=tmp_path / "one", settings={**small, "distill.on_policy": 0.5}
    )
    second = gradus.distill(first, tmp_path / "one", "rhythm", steps=1, out=tmp_path / "two", settings=small)
    assert (second / "model.safetensors").is_file()
    record = json.loads((tmp_path / "two" / "distill" / "metrics.jsonl").read_text())
    assert record["kind"] == "distill"
    assert abs(record["loss"]) < 0.01  # it is its own teacher, but for bfloat16
