"""Worlds that come with Gradus as guests: Rhythm, memory and shop. They use the doors that a stranger's package uses."""
