"""The audit's scoreboard: how often it is right about graders of which it is known whether they are sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.api.given import as_list
from gradus.api.shown import Shown
from gradus.core.documents import SCHEMA


@dataclass(frozen=True, repr=False)
class Scoreboard(Shown):
    """Detection and false alarms by part, with intervals; what was missed; what was flagged though sound."""

    parts: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """What ``gradus audit --scoreboard --json`` prints."""
        return {"schema": SCHEMA, "parts": [dict(part) for part in self.parts]}

    def tables(self) -> Sequence[Any]:
        """A table over the parts, then misses and false alarms by name."""
        from rich.table import Table
        from rich.text import Text

        from gradus.runs.scoreboard import shown_share

        table = Table("part", "flawed", "detection", "sound", "false alarms", "seconds", box=None)
        named: list[Text] = []
        for part in self.parts:
            flawed, sound, seconds = part["detection"], part["false_alarms"], part["seconds"]
            figures = (str(flawed["n"]), shown_share(flawed), str(sound["n"]), shown_share(sound))
            table.add_row(part["part"], *figures, f"{seconds['median']} to {seconds['most']}")
            for title, rows in (("missed", part["misses"]), ("flagged though sound", part["alarms"])):
                named += [Text(f"{title}: {row['name']} ({row['verdict']}) {row['evidence'][:120]}") for row in rows]
        return [table, "", *named]

    def save(self, path: str | Path) -> Path:
        """Write the page of results; returns its path."""
        from gradus.core.files import write_text
        from gradus.runs.scoreboard import scoreboard_page

        write_text(Path(path), scoreboard_page(self.parts))
        return Path(path)


def scoreboard(parts: Sequence[str] = (), *, seed: int = 0, folder: str | Path | None = None) -> Scoreboard:
    """Audit graders of which it is known whether they are sound. Takes minutes to an hour.

    ``parts``: of ``planted``, ``reasoning-gym`` and ``reasoning-gym-held-out``; all if empty. ``folder``: keeps what was done, so that a second
    call goes on there.

    >>> from gradus.api.measuring import scoreboard
    >>> scoreboard(["planted"]).parts[0]["detection"]["share"]    # doctest: +SKIP
    0.98
    """
    from gradus.runs.scoreboard import PARTS, run_scoreboard

    place = None if folder is None else Path(folder)
    chosen = as_list("parts", parts, example="['planted']")
    return Scoreboard([run_scoreboard(part, seed=seed, folder=place) for part in chosen or PARTS])
