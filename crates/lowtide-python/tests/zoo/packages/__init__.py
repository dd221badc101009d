"""Packages of other people, for the animals that live in them."""
