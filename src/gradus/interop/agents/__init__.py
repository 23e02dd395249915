"""Any agent that talks to an OpenAI client, as an environment: its calls are the turns of an episode."""
