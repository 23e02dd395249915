"""The command `gradus memory`."""
