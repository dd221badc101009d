"""Releases while the program does no work: free on idle, and pauses between two tasks."""
