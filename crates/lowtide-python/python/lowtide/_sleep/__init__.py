"""Device memory that moves to the host and comes back: tags, their backups, the agent."""
