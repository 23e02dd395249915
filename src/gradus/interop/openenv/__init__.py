"""OpenEnv: environments behind a server (client), and our environments as a server."""
