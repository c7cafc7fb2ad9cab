"""The machine: hosts, GPUs and the tree of domains that connects them."""
