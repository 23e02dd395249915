"""The stages of a run: functions of a recipe and a folder, each done once."""
