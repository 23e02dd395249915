"""Several processes as one trainer: data parallel, and FSDP 2."""
