"""Several processes as one trainer: data parallel, FSDP and DeepSpeed."""
