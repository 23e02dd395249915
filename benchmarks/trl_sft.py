"""SFT on a scripted teacher's weeks of Rhythm, Gradus against TRL's SFTTrainer: the same ids, the same labels, AdamW, float32.

0.9 million parameters (d 128, 4 layers), 16 weeks a step, whole weeks. What is measured is the time from one step's end to the next, data
and records included. Rounds of both in turn; the first step of a round is left out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _against_trl as bench
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from gradus.core import Episode
from gradus.policies.local.loading import load_model, quiet_transformers
from gradus.policies.nano.model import NanoConfig
from gradus.rollouts import roll_out
from gradus.training.data.sequences import TrainingSample
from gradus.training.data.sft_sequences import text_sequences
from gradus.training.lesson_config import SftConfig
from gradus.training.run.options import RunOptions
from gradus.training.sft import train_sft
from gradus_worlds.rhythm import load

BATCH, RATE = 16, 1e-3
SHAPE = NanoConfig(hidden_size=128, layers=4, heads=4, intermediate_size=384, context=1024)


class Watch(TrainerCallback):
    """Seconds from the end of one step to the end of the next."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(bench.clock())

    @property
    def seconds(self) -> list[float]:
        """All steps but the first."""
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]


def our_round(model: Path, episodes: list[Episode], folder: Path, steps: int, backward: str) -> list[float]:
    """Seconds of our steps."""
    watch = Watch()

    def seen(record: Mapping[str, Any]) -> None:
        watch.on_step_end(None, None, None)

    config = SftConfig(
        lr=RATE,
        schedule="constant",
        warmup=0.0,
        max_steps=steps,
        batch_size=BATCH,
        validation_share=0.0,
        backward=backward,  # pyright: ignore[reportArgumentType]
        threads=bench.torch.get_num_threads(),
        device="cpu",
    )
    train_sft(model, episodes, config, folder, options=RunOptions(on_step=seen, live=False))
    return watch.seconds


def trl_round(model: Path, rows: list[dict[str, Any]], folder: Path, steps: int) -> list[float]:
    """Seconds of TRL's steps."""
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(model)
        weights = AutoModelForCausalLM.from_pretrained(model, dtype=bench.torch.float32)
    settings = TrlConfig(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_length=None,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    watch = Watch()
    trainer = SFTTrainer(
        model=weights,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    trainer.train()
    return watch.seconds


def row_of(sequence: TrainingSample) -> dict[str, Any]:
    """Ids and labels as SFTTrainer takes them: what was read is -100."""
    said = set(sequence.positions.tolist())
    ids = sequence.ids.tolist()
    return {"input_ids": ids, "labels": [token if place in said else -100 for place, token in enumerate(ids)]}


def main() -> None:
    """Measure and print."""
    parser = bench.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    steps, spec = options.steps + 1, load()
    with bench.workplace(options) as name:
        folder = Path(name)
        model = bench.nano(folder, spec, SHAPE)
        tasks = [spec.train_task(index) for index in range(BATCH * steps)]
        episodes = roll_out(spec, spec.policy("profile-blind+random"), tasks).episodes
        sequences = text_sequences(load_model(model, device="cpu"), episodes)
        rows = [row_of(one) for one in sequences]
        ours: list[float] = []
        theirs: list[float] = []
        for round_ in range(options.rounds):
            ours += our_round(model, episodes, folder / f"ours{round_}", steps, options.backward)
            theirs += trl_round(model, rows, folder / f"trl{round_}", steps)
    mine, other = statistics.median(ours), statistics.median(theirs)
    tokens = BATCH * len(rows[0]["input_ids"])
    table = Table("", "Gradus", "TRL", title=f"SFT, {BATCH} weeks of {len(rows[0]['input_ids'])} tokens a step")
    table.add_row("seconds a step (median)", f"{mine:.3f}", f"{other:.3f}")
    table.add_row("tokens a second", f"{tokens / mine:.0f}", f"{tokens / other:.0f}")
    Console(width=100).print(table)
    line = {"name": "trl_sft", "ratio": round(other / mine, 3), "ours": round(mine, 4), "other": round(other, 4)}
    print(json.dumps({**line, "unit": "seconds a step", "runs": len(ours)}))


if __name__ == "__main__":
    main()
