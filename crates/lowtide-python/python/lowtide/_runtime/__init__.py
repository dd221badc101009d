"""What the other packages ask of the interpreter and of torch, and how they log."""
