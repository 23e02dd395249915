"""What a run does when its monitor raises an alert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

__all__ = ["Alarm", "OnAlert"]

OnAlert = Literal["warn", "stop", "adjust"]
FLOOR = 1 / 64  # adjusting never lowers the learning rate below this share of what was asked for


class Alarm:
    """Listens to a monitor, remembers what is already known, and reacts.

    An alert is told when its rule begins to hold, not at every step that it goes on. With ``adjust``, the one remedy applied is
    a factor on the learning rate that the alert names (``adjust: {"lr": 0.5}``): nothing else is safe to change
    without asking. With ``stop``, an alert of severity ``stop`` ends the run.
    """

    def __init__(
        self, monitor: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]] | None, on_alert: OnAlert
    ) -> None:
        self._monitor = monitor
        self._on_alert = on_alert
        self._holding: set[tuple[str, str]] = set()
        self.lr_scale = 1.0
        self.stopped: str | None = None

    def listen(self, step: int, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The new alerts of a step, as records of docs/metrics.md."""
        if self._monitor is None:
            return []
        found = {(str(alert["rule"]), str(alert["severity"])): alert for alert in self._monitor(records)}
        fresh = [alert for key, alert in found.items() if key not in self._holding]
        self._holding = set(found)
        return [
            {
                "kind": "alert",
                "step": step,
                **{name: alert.get(name) for name in ("rule", "severity", "evidence", "remedy")},
                "action": self._react(alert),
            }
            for alert in fresh
        ]

    def _react(self, alert: Mapping[str, Any]) -> str:
        if self._on_alert == "stop" and alert["severity"] == "stop":
            self.stopped = str(alert["rule"])
            return "stopped"
        factor = (alert.get("adjust") or {}).get("lr")
        if self._on_alert == "adjust" and factor is not None:
            self.lr_scale = max(FLOOR, self.lr_scale * float(factor))
            return f"learning rate x {self.lr_scale:g}"
        return "warned"

    def state(self) -> dict[str, Any]:
        """JSON values from which :meth:`restore` goes on."""
        return {"holding": sorted(map(list, self._holding)), "lr_scale": self.lr_scale}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._holding = {(rule, severity) for rule, severity in state.get("holding", [])}
        self.lr_scale = float(state.get("lr_scale", 1.0))
