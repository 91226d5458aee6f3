"""One loop for every task, checkpoints that survive anything, and the run folder around them."""
