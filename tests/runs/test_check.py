"""`gradus check`: what would go wrong is found, with a remedy, and nothing else is."""

import json
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_qwen2 import FORGETFUL, make_tiny_qwen2

import gradus
from gradus.commands.training import make_job
from gradus.core import ConfigError
from gradus.core.findings import worst
from gradus.environments.verifiable.from_files import parse_source, read_tasks
from gradus.policies.local.folders import is_nano
from gradus.policies.nano.model import NanoConfig, make_nano
from gradus.runs.forecast import checks
from gradus.runs.forecast.checks import CHECKS, setting_warnings
from gradus.runs.forecast.data import faults
from gradus.runs.job import resolve
from gradus.runs.recipe.load import load_recipe
from gradus.runs.recipe.tables import own_recipes

NANO = [
    "model.nano.hidden_size=16",
    "model.nano.layers=1",
    "model.nano.heads=2",
    "model.nano.kv_heads=1",
    "model.nano.intermediate_size=32",
]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise AssertionError("a check opened a connection that nobody had asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen2(tmp_path_factory.mktemp("qwen") / "model", context=512)


@contextmanager
def only(*names: str) -> Iterator[None]:
    """Leaves out the checks that these do not build on: to try a model takes a second."""
    wanted = set(names)
    for name, (_, needs) in reversed(CHECKS.items()):
        wanted |= set(needs) if name in wanted else set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CHECKS", {name: check for name, check in CHECKS.items() if name in wanted})
        yield


def checked(
    named: str, out: Path, *changes: str, model: Path | str | None = None, names: Sequence[str] = tuple(CHECKS)
) -> dict[str, list[tuple[str, str, str]]]:
    """check -> (status, message, remedy)"""
    lines: dict[str, list[tuple[str, str, str]]] = {}
    chosen = str(model) if model else None
    settings = [*([] if model else NANO), *changes]
    with only(*names):
        for each in gradus.check(named, out=out / "run", model=chosen, settings=settings).findings:
            lines.setdefault(each.subject, []).append((each.status, each.evidence, each.remedy))
    return lines


def found(
    check: str, named: str, out: Path, *changes: str, model: Path | str | None = None
) -> list[tuple[str, str, str]]:
    """What one check finds."""
    return checked(named, out, *changes, model=model, names=[check])[check]


def rows(path: Path, *more: dict, count: int = 40) -> Path:
    good = [{"question": f"What is {n} + {n * n} ?", "answer": str(n + n * n)} for n in range(count)]
    path.write_text("\n".join(json.dumps(row) for row in [*good, *more]))
    return path


def test_every_check_speaks_and_a_good_recipe_passes(tmp_path: Path) -> None:
    lines = checked("arithmetic", tmp_path)
    assert list(lines) == ["recipe", *(name for name in CHECKS if name != "server")]
    assert {each[0] for each in (one for several in lines.values() for one in several)} == {"pass"}, lines
    assert not (tmp_path / "run").exists()  # looking leaves nothing behind


@pytest.mark.parametrize("name", [name for name in own_recipes() if not name.startswith("gsm8k")])
def test_no_recipe_that_comes_along_would_fail(name: str, tmp_path: Path) -> None:
    findings = gradus.check(recipe=name, out=tmp_path / "run").findings
    for each in findings:
        if "needs a package that is not installed" in each.evidence:
            pytest.skip(each.evidence)  # the suites are an extra of their own
    assert worst(findings) != "fail", [each for each in findings if each.status == "fail"]


@pytest.mark.parametrize(
    ("check", "status", "changes", "says", "way"),
    [
        ("recipe", "fail", ["grpo.group_size=1"], "greater than or equal to 2", "correct the recipe"),
        ("recipe", "fail", ["grpo.distill_teacher=gold"], "no effect while distill_coef is 0", "set it"),
        ("recipe", "fail", ["eval.pairs=true"], "should be a valid tuple, got True", "correct the recipe"),
        ("recipe", "fail", ["environment=arithmetic:digits=99"], "between 1 and 8", ""),
        ("names", "fail", ['eval.policies=["golden"]', "eval.pairs=[]"], "'golden'", "correct the name"),
        ("names", "fail", ['eval.pairs=["grpo-tea"]'], "grpo-tea", "there are"),
        ("names", "fail", ["eval.episodes=100000"], "997 seeds", ""),
        ("names", "fail", ['stage=[{name="a",weights={tone=1.0}}]'], "component 'tone'", ""),
        ("model", "fail", ["model.path=nowhere"], "there is no model in nowhere", "check the path"),
        ("model", "fail", ["model.path=./nowhere"], "there is no model in ./nowhere", "check the path"),
        ("context", "fail", ["grpo.sampling.max_new_tokens=400"], "the model's context holds 256", "max_new_tokens"),
        ("context", "warn", ["grpo.sampling.max_new_tokens=8"], "8 may be sampled", "at least"),
        ("memory", "fail", ["grpo.token_budget=30000000", "grpo.groups=200000"], "would need", "set grpo.token_budget="),
        ("names", "fail", ['trackers=["comet"]'], "unknown tracker comet", "there are"),
        ("settings", "warn", ["grpo.group_size=2"], "noisy baseline", "group_size to 8"),
        ("settings", "warn", ["grpo.minibatches=5"], "equal minibatches", "divide"),
        ("settings", "warn", ["teach.episodes=16"], "less than one batch", "teach.episodes"),
        ("settings", "warn", ["grpo.first_task=0"], "which SFT has seen", "first_task"),
        ("settings", "warn", ["grpo.sampling.temperature=0.3"], "resemble each other", "temperature 1"),
        ("settings", "warn", ["eval.episodes=5"], "too few to prove a gain", "100"),
    ],
)  # fmt: skip
def test_what_would_go_wrong_is_found(
    check: str, status: str, changes: list[str], says: str, way: str, tmp_path: Path
) -> None:
    lines = found(check, "arithmetic", tmp_path, *changes)
    assert any(
        state == status and says in message + remedy and way in message + remedy for state, message, remedy in lines
    ), lines


def test_a_warm_start_on_all_rows_is_not_warned_of(tmp_path: Path, qwen: Path) -> None:
    """The run chose it itself, and no later task was left to begin with."""
    name, changes = f"jsonl:{rows(tmp_path / 'rows.jsonl')}", ("teach.enabled=true", "teach.episodes=512")
    lines = found("settings", name, tmp_path, *changes, model=qwen)
    assert not any("which SFT has seen" in message for _, message, _ in lines), lines


def test_a_data_set_is_looked_at_whole(tmp_path: Path, qwen: Path) -> None:
    good = rows(tmp_path / "good.jsonl")
    assert [status for status, *_ in found("data", f"jsonl:{good}", tmp_path, model=qwen)] == ["pass"]
    bad = rows(tmp_path / "bad.jsonl", {"question": "What is 3 + 9 ?", "answer": "13"})
    assert "contradictions" in found("data", f"jsonl:{bad}", tmp_path, model=qwen)[-1][1]


def test_the_check_finds_every_kind_of_problem(tmp_path: Path) -> None:
    asked = [{"prompt": f"What is {n} plus one?", "target": str(n + 1)} for n in range(60)]
    rows = list(asked)
    rows += [
        {"prompt": "What is 3 plus one?", "target": "4"},
        {"prompt": "What is 4 plus  one?", "target": "6"},
        {"prompt": "Empty?", "target": "#### "},
        {"prompt": "Long? " + "word " * 200, "target": "1"},
        {"prompt": "How many minutes are 28 hours?", "target": "1680"},
        {"prompt": "How many minutes are 28 hours?", "target": "1,680 minutes"},
    ]
    for name, several in (("a", rows), ("b", asked[20:25])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, several)))
    train, test = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tasks = read_tasks(parse_source("jsonl", f"{train}?question=prompt&answer=target&test={test}"))
    found = {
        each.evidence.partition(":")[0]: each for each in faults(tasks, lambda system, question: len(question), 900)
    }
    assert {name: each.status for name, each in found.items()} == {
        "empty answers": "fail",
        "prompt length": "fail",
        "duplicates": "warn",
        "contradictions": "fail",
        "overlap": "fail",
    }
    assert "different rows: 1, as in" in found["contradictions"].evidence


def test_a_template_that_forgets_is_refused_where_it_matters(tmp_path: Path, qwen: Path) -> None:
    forgetful = shutil.copytree(qwen, tmp_path / "forgetful")
    (forgetful / "chat_template.jinja").write_text(FORGETFUL)
    # One turn: nothing is ever rewritten.
    assert found("model", "arithmetic", tmp_path, model=forgetful)[0][0] == "pass"
    ((status, message, way),) = found("model", "memory", tmp_path, model=forgetful)
    assert (status, "rewrites history" in message + way) == ("fail", True)
    assert "model.keep_history = true" in message + way
    assert found("model", "memory", tmp_path, "model.keep_history=true", model=forgetful)[0][0] == "pass"


def test_a_name_on_the_hub_is_not_asked_for(tmp_path: Path) -> None:
    skipped = found("model", "arithmetic", tmp_path, model="somebody/some-model")
    assert (skipped[0][0], "--online" in skipped[0][2]) == ("open", True)


@pytest.mark.parametrize(
    ("change", "says"),
    [("grpo.lr=1e-3", "all weights"), ("sft.lr=2e-3", "sft.lr"), ("sft.optimizer=muon", "trained from nothing")],
)
def test_settings_of_a_nano_model_fail_for_a_trained_one(change: str, says: str, tmp_path: Path, qwen: Path) -> None:
    lines = found("settings", "arithmetic", tmp_path, change, model=qwen)
    assert any(status == "fail" and says in message for status, message, _ in lines)


@pytest.mark.parametrize("name", own_recipes())
def test_every_recipe_has_a_quick_form_and_gives_a_trained_model_no_settings_of_a_nano_model(name: str) -> None:
    """A stage of 110 steps left none of the three that the quick form takes."""
    assert load_recipe(None, path=Path(name), quick=True).quick
    recipe = load_recipe(None, path=Path(name), changes=["model.path=somebody/some-model"])
    assert (recipe.sft.optimizer, recipe.grpo.optimizer) == ("adamw", "adamw")
    assert recipe.sft.lr <= 1e-4
    assert recipe.grpo.lr <= 1e-5
    assert recipe.grpo.lora is not None
    assert recipe.grpo.sampling.max_new_tokens >= 128


@pytest.mark.parametrize("name", own_recipes())
def test_no_recipe_computes_in_16_bits_where_that_is_slow(name: str) -> None:
    """`autocast = true` made a step of SFT six times as slow on a CPU without instructions for bfloat16."""
    recipe = load_recipe(None, path=Path(name))
    for section in (recipe.sft, recipe.grpo):
        assert section.autocast in (False, "auto")
        assert section.backward != "bfloat16"
        assert section.dtype in ("auto", "float32")


@pytest.mark.parametrize("environment", ["rhythm", "memory", "arithmetic"])
def test_a_model_gets_settings_for_language_models(environment: str, qwen: Path) -> None:
    """`--model` kept Muon at 0.03, an SFT rate of 2e-3 and 8 tokens an answer, all meant for a nano model."""
    recipe = load_recipe(environment, changes={"model.path": str(qwen)})
    assert (recipe.sft.optimizer, recipe.grpo.optimizer) == ("adamw", "adamw")
    assert (recipe.sft.lr, recipe.grpo.lr) == (1e-3, 5e-5)  # by its size: all weights of a small model
    assert recipe.grpo.sampling.max_new_tokens >= 128
    assert not recipe.promises
    assert load_recipe(environment, changes=["model.path=somebody/some-model"]).grpo.lora is not None, (
        "a size that is not known: adapters"
    )
    assert load_recipe(environment).promises, "without a model nothing changes"
    assert load_recipe(environment, changes={"model.path": str(qwen)}, quick=True).quick


@pytest.mark.parametrize("run", [False, True], ids=["a model's folder", "a run's folder"])
def test_a_nano_model_keeps_the_settings_for_nano_models(
    run: bool, qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gradus grpo rhythm --model STUDENT` gave the student of `gradus sft` a language model's rate, and answers without a grammar."""
    folder = tmp_path / "run"
    spec = resolve(load_recipe("rhythm")).environment
    shape = NanoConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)
    made = make_nano(folder / "best" if run else folder, spec.language.vocabulary(), shape)
    own, job = load_recipe("rhythm"), make_job("rhythm", model=folder)
    assert capsys.readouterr().err == f"settings: the recipe's for a nano model, which {folder} is\n"
    for section in ("sft", "grpo", "teach", "eval"):
        assert getattr(job.recipe, section) == getattr(own, section)
    assert not job.recipe.promises, "they are about the nano model that the recipe makes"
    assert not job.pretrained
    make_job("rhythm", model=qwen)
    said = capsys.readouterr().err
    assert said.startswith("settings: the recipe's for a language model ([lm]), with rates and adapters by its 0.")
    make_job("rhythm")
    assert capsys.readouterr().err == "", "there is no choice"
    stored = json.loads((made / "config.json").read_text())
    (tmp_path / "adapters").mkdir()
    adapters = {"base_model_name_or_path": str(made), "peft_type": "LORA"}
    (tmp_path / "adapters" / "adapter_config.json").write_text(json.dumps(adapters))
    assert stored["model_type"] == "llama"
    assert is_nano(tmp_path / "adapters")
    assert not is_nano(qwen)
    assert not is_nano("somebody/some-model")


def test_what_a_recipe_of_ones_own_leaves_out_follows_the_size(qwen: Path, tmp_path: Path) -> None:
    """One line of [grpo] dropped rates and adapters: a pretrained model was trained at a nano model's rate."""
    path = tmp_path / "own.toml"
    text = f'environment = "arithmetic"\n[model]\npath = "{qwen}"\n[sft]\nlr = 0.5\n[grpo]\nmax_steps = 3\n'
    path.write_text(text)
    recipe = load_recipe(None, path=path)
    assert (recipe.grpo.lr, recipe.grpo.max_steps, recipe.sft.lr, recipe.sft.epochs) == (5e-5, 3, 0.5, 6)
    path.write_text(f"quick = false\n{text}")  # as a run stores it
    assert load_recipe(None, path=path).grpo.lr != 5e-5


def test_without_a_teacher_the_model_before_takes_the_students_place(tmp_path: Path) -> None:
    """A run without SFT trained to its end, and then failed because there was no student of SFT to compare with."""
    job = resolve(load_recipe("rhythm", changes=["teach.enabled=false"]))
    assert [name for name in job.policies() if "sft" in name] == []
    assert {"base", "base-greedy", "grpo"} < set(job.policies())
    assert {("grpo", "base"), ("grpo-greedy", "base-greedy"), ("base", "heuristic")} < set(job.pairs() or ())
    assert job.promises()
    assert not [each for each in job.promises() if "sft" in f"{each.pair}"]
    lines = found("names", "rhythm", tmp_path, "teach.enabled=false", *NANO)
    assert [line[0] for line in lines] == ["pass"]


OWN = """
import random

made = []


class Own:
    actions = ["1", "2"]

    def reset(self, seed):
        made.append(1)
        {reset}

    def step(self, action):
        {step}

    def expert(self):
        {expert}
"""


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, None),
        ({"reset": "raise OSError('flooded')"}, "a training task cannot be begun: OSError: flooded"),
        ({"reset": "return f'episode {len(made)}'"}, "began with"),
        ({"step": "return None"}, "an episode of expert failed in step: EnvironmentFault: Own.step returned NoneType"),
        ({"expert": "raise KeyError('k')"}, "an episode of expert failed in act: KeyError: 'k'"),
    ],
)
def test_an_environment_of_ones_own_is_begun_twice_and_played(
    parts: dict[str, str], says: str | None, tmp_path: Path
) -> None:
    """It was begun once, and what it raised was a traceback."""
    whole = {"reset": "return 'go'", "step": "return 'end', 1.0, True", "expert": "return '1'", **parts}
    (tmp_path / "own.py").write_text(OWN.format(**whole))
    (line,) = found("environment", str(tmp_path / "own.py"), tmp_path)
    assert line[0] == ("fail" if says else "pass"), line
    assert says is None or says in line[1]


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_another_optimizer_or_schedule_takes_the_place_of_the_recipes_with_its_settings(stage: str) -> None:
    """`--set grpo.optimizer=adamw` would else be refused for the recipe's own `muon_lr`."""
    changed = load_recipe("rhythm", changes={f"{stage}.optimizer": "adamw", f"{stage}.schedule": "constant"})
    settings = getattr(changed, stage)
    assert (settings.optimizer, settings.schedule) == ("adamw", "constant")
    assert not settings.model_fields_set & {"muon_lr", "min_lr_ratio"}
    with pytest.raises(ConfigError, match="muon_lr has no effect"):
        load_recipe("rhythm", changes={f"{stage}.optimizer": "adamw", f"{stage}.muon_lr": 0.02})


def test_a_run_says_before_it_begins_that_its_held_out_tasks_are_too_few() -> None:
    rows = [{"question": f"{number} ?", "answer": str(number)} for number in range(60)]
    (warning,) = setting_warnings(make_job(rows))
    assert "too few to prove a gain, 40 are needed" in warning.evidence
    assert "more rows" in warning.remedy
    assert not setting_warnings(make_job(rows, quick=True))
