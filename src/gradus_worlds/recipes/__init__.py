"""The recipes of the guests, one TOML file each."""
