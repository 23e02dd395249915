"""A server that returns token ids and log-probs (vLLM, or gradus serve), as a policy that can be trained on."""
