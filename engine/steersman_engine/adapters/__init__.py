"""Adapters to engines that are not ours. They import neither torch nor transformers of ours."""
