"""From rollouts to microbatches: tasks, training sequences, credit, and how they are packed."""
