"""`why`: what keeps device memory in use, and which statement frees it."""
