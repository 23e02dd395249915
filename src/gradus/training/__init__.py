"""Training: supervised fine-tuning on stored episodes (``sft``), then GRPO in an environment (``grpo``).

``data`` turns episodes into microbatches, ``engine`` takes optimizer steps on them, ``distributed`` does so in several processes,
and ``run`` keeps the run folder: metrics, checkpoints, alerts, the screen.
"""
