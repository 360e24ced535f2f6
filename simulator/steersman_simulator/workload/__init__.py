"""Which requests come, and when: traces, recordings and made-up traffic."""
