"""An object in a child process that a release may end."""
