"""Before a run: what the machine has, and what the run will need of memory, time and money."""
