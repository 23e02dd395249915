"""Recipes: one TOML file and one page each. `gradus run ENV` uses the environment's own."""
