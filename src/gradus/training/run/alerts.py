"""Reacts to the alerts of a run's monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from gradus.core.metrics import AlertRecord
from gradus.training.config import OnAlert

Monitor = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
LOWEST_LR_SCALE = 1 / 64  # adjusting never lowers the learning rate below this share of what was asked for
SPIKE, SPIKE_WINDOW, SPIKE_LEAST = 10.0, 50, 5  # those of the rule "gradient spike"
_TOGETHER = 20  # steps of SFT between two looks, which cost more than they may cost at each


def spike_limit(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The gradient norm above which an update is a spike: ten times the median of the 50 steps before.

    None before five norms are known.
    """
    norms = [record.get("grad_norm") for record in records if record["kind"] == "step"][-SPIKE_WINDOW:]
    known = [norm for norm in norms if norm is not None]
    return SPIKE * max(median(known), 1e-12) if len(known) >= SPIKE_LEAST else None


def alert_line(alert: AlertRecord) -> str:
    """An alert on the screen."""
    return f"{alert['severity']}: {alert['rule']}: {alert['evidence']} -> {alert['remedy']} ({alert['action']})"


class AlertHandler:
    """Asks a monitor, remembers which alerts are known, and reacts as ``on_alert`` says.

    An alert is told when its rule begins to hold, not at every step that it goes on. ``warn`` does no more. ``stop`` ends the
    run at an alert of severity ``stop``. ``adjust`` does what the alert names as safe: ``lr`` is a factor on the learning
    rate, ``restore`` goes back to the best weights; updates whose gradient spikes are skipped.
    """

    def __init__(self, monitor: Monitor | None, on_alert: OnAlert, *, restore_best: Callable[[], int | None]) -> None:
        self._monitor = monitor
        self._on_alert = on_alert
        self._restore_best = restore_best
        self._known: set[tuple[str, str]] = set()
        self.lr_scale = 1.0
        self.stopped: str | None = None

    def skip_above(self, records: Sequence[Mapping[str, Any]]) -> float | None:
        """The gradient norm above which an update is skipped; None for never."""
        return spike_limit(records) if self._on_alert == "adjust" else None

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
                "action": self._react(alert, records[-1]),
            }
            for alert in fresh
        ]

    def _react(self, alert: Mapping[str, Any], record: Mapping[str, Any]) -> str:
        if self._on_alert == "stop" and alert["severity"] == "stop":
            self.stopped = str(alert["rule"])
            return "stopped"
        adjust = (alert.get("adjust") or {}) if self._on_alert == "adjust" else {}
        actions: list[str] = []
        if adjust and (skipped := record.get("skipped_updates")):
            actions.append(f"skipped {skipped} update{'s' if skipped > 1 else ''}")
        if adjust.get("restore") == "best":
            best_step = self._restore_best()
            actions.append("no best weights to restore" if best_step is None else f"restored step {best_step}")
        if (factor := adjust.get("lr")) is not None:
            self.lr_scale = max(LOWEST_LR_SCALE, self.lr_scale * float(factor))
            actions.append(f"learning rate x {self.lr_scale:g}")
        return ", ".join(actions) or "warned"

    def state(self) -> dict[str, Any]:
        """JSON values from which :meth:`restore` goes on."""
        return {"known": sorted(map(list, self._known)), "lr_scale": self.lr_scale, "stopped": self.stopped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._known = {(rule, severity) for rule, severity in state.get("known", [])}
        self.lr_scale = float(state.get("lr_scale", 1.0))
        self.stopped = state.get("stopped")


class AlertNotes:
    """Asks a monitor after every 20 steps of SFT, which are too short to ask at each; nothing is stored or changed."""

    def __init__(self, monitor: Monitor | None) -> None:
        self._handler = AlertHandler(monitor, "warn", restore_best=lambda: None)
        self._records: list[Mapping[str, Any]] = []

    def of(self, record: Mapping[str, Any]) -> list[str]:
        """New alerts as lines, after every 20 records."""
        self._records.append(record)
        if len(self._records) < _TOGETHER:
            return []
        seen, self._records = self._records, []
        return [alert_line(alert) for alert in self._handler.handle(record["step"], seen)]
