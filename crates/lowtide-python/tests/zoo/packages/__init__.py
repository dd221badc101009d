"""Packages of other people, for the programs that use them."""
