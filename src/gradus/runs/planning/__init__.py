"""Before a run: the memory that it needs and the machine has, and if the model is computed alike everywhere."""
