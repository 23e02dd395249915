"""Forward pass, loss, optimizers and precision: everything between a microbatch and new weights."""
