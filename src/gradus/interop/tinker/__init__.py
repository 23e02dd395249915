"""A server of the Tinker training API over the local engine: LoRA adapters on one base model, JSON and protobuf."""
