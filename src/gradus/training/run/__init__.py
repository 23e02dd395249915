"""The run folder and what happens beside the loop: metrics, checkpoints, validation, alerts, trackers, the screen."""
