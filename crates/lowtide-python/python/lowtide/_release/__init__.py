"""Releases of the whole program or of one object, and the tests that assert them."""
