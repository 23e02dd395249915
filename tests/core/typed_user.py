"""The calls of the README and of the first pages, as a user with a strict type checker writes them; pyright reads this file."""

import gradus


def right(completions: list[str], answer: list[str], **columns: object) -> list[float | None]:
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def my_agent(task: dict[str, object], client: object) -> str:
    return "done"


def user() -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(80)]
    run = gradus.train(
        "Qwen/Qwen2.5-0.5B-Instruct", "rows.jsonl", rewards=[right, ("length", 0.1)], steps=200, out="runs/mine"
    )
    print(run.report(), run.results["environment"], run.metrics()[0]["reward_mean"])
    gradus.train(None, rows, rewards=[right], settings={"grpo.lr": 1e-3})
    gradus.train(None, my_agent, rows, rewards=[right])
    audit = gradus.audit(right, "rows.jsonl")
    print(
        audit.verdict,
        gradus.audit("arithmetic", grader="format-only").to_json(),
        gradus.audit([right, ("length", 0.1)], rows),
    )
    scores = gradus.evaluate([run, "gold"], env="rows.jsonl", rewards=[right], episodes=20)
    print(scores.to_json(), gradus.check(rows, rewards=[right]).status)
    gradus.distill("student", "teacher", "rows.jsonl", steps=3)
    gradus.run("rhythm", quick=True, out="runs/first").report()
    spec = gradus.load_environment("arithmetic")
    print(gradus.roll_out(spec, "gold", episodes=4).episodes[0].reward, gradus.compare("runs/a", run))
