"""OpenEnv: environments behind a server (client), our environments as a server, and packages of them."""
