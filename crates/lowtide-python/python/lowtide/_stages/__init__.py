"""Scopes at whose end memory is released: stages, and the tasks of a service."""
