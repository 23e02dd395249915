"""Reacts to the alerts of a run's monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradus.core.metrics import AlertRecord
from gradus.training.config import OnAlert

Monitor = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
_TOGETHER = 20  # steps of SFT between two looks, which cost more than they may cost at each


def alert_line(alert: AlertRecord) -> str:
    """An alert on the screen."""
    return f"{alert['severity']}: {alert['rule']}: {alert['evidence']} -> {alert['remedy']} ({alert['action']})"


class AlertHandler:
    """Asks a monitor, remembers which alerts are known, and reacts as ``on_alert`` says.

    An alert is told when its rule begins to hold, not at every step that it goes on. ``warn`` does no more. ``stop`` ends the
    run at an alert of severity ``stop``.
    """

    def __init__(self, monitor: Monitor | None, on_alert: OnAlert) -> None:
        self._monitor = monitor
        self._on_alert = on_alert
        self._known: set[tuple[str, str]] = set()
        self.stopped: str | None = None

    def handle(self, step: int, records: Sequence[Mapping[str, Any]]) -> list[AlertRecord]:
        """React to the new alerts of a step; returns them as records of docs/metrics.md."""
        if self._monitor is None:
            return []
        alerts = {(str(alert["rule"]), str(alert["severity"])): alert for alert in self._monitor(records)}
        fresh = [alert for key, alert in alerts.items() if key not in self._known]
        self._known = set(alerts)
        return [
            {
                "kind": "alert",
                "step": step,
                "rule": alert["rule"],
                "severity": alert["severity"],
                "evidence": alert["evidence"],
                "remedy": alert["remedy"],
                "action": self._react(alert),
            }
            for alert in fresh
        ]

    def _react(self, alert: Mapping[str, Any]) -> str:
        if self._on_alert == "stop" and alert["severity"] == "stop":
            self.stopped = str(alert["rule"])
            return "stopped"
        return "warned"

    def state(self) -> dict[str, Any]:
        """JSON values from which :meth:`restore` goes on."""
        return {"known": sorted(map(list, self._known)), "stopped": self.stopped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._known = {(rule, severity) for rule, severity in state.get("known", [])}
        self.stopped = state.get("stopped")


class AlertNotes:
    """Asks a monitor after every 20 steps of SFT, which are too short to ask at each; nothing is stored or changed."""

    def __init__(self, monitor: Monitor | None) -> None:
        self._handler = AlertHandler(monitor, "warn")
        self._records: list[Mapping[str, Any]] = []

    def of(self, record: Mapping[str, Any]) -> list[str]:
        """New alerts as lines, after every 20 records."""
        self._records.append(record)
        if len(self._records) < _TOGETHER:
            return []
        seen, self._records = self._records, []
        return [alert_line(alert) for alert in self._handler.handle(record["step"], seen)]
