"""Which objects hold device memory, how much, and who holds it in native code."""
